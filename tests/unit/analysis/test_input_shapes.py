"""The same step recorded in every shape that trainers have gives the same verdicts."""

import itertools

import numpy as np
import pytest

import rldbg
from rldbg.analysis import check, compare
from rldbg.core import IncompleteDataError
from rldbg.recording import Ragged

PAD = 0
SHAPES = (
    "lists",
    "ragged",
    "right",
    "right_masked",
    "left",
    "left_masked",
    "whole_sequence",
    "response_only",
    "jagged",
    "whole_lists",
    "lists_from_the_second_token",
)


def batch(seed, *, spoil=None):
    """Rows of different lengths, one turn of the environment within each response."""
    rng = np.random.default_rng(seed)
    prompts = {group: rng.integers(5, 50, 3 + 2 * group) for group in range(3)}
    rows = []
    for group, run in itertools.product(range(3), range(4)):
        length = int(rng.integers(6, 12))
        mask = np.ones(length, np.int64)
        mask[2:4] = 0  # the environment's tokens
        log_probs = -rng.random(length, dtype=np.float32) - 0.1
        rows.append(
            {
                "sample": (f"g{group}", run),
                "prompt": prompts[group],
                "response": rng.integers(5, 50, length),
                "mask": mask,
                "rollout": log_probs + 1e-3,
                "log_probs": log_probs,
                "reward": float(run % 2),
            }
        )
    if spoil == "rollout":
        rows[5]["rollout"] = rows[5]["rollout"] * 3
    if spoil == "log_probs":
        rows[7]["log_probs"] = rows[7]["log_probs"].copy()
        rows[7]["log_probs"][5] -= 0.5
    if spoil == "token":
        rows[4]["response"][4] = 51
    return rows


def padded(rows, fill, *, left=False):
    width = max(map(len, rows))
    out = np.full((len(rows), width), fill, np.asarray(rows[0]).dtype)
    for row, values in zip(out, rows, strict=True):
        row[width - len(values) :] = values if left else row[width - len(values) :]
        if not left:
            row[: len(values)] = values
    return out


def sequence(item, name, prompt_value):
    return np.concatenate([np.full(len(item["prompt"]), prompt_value, np.asarray(item[name]).dtype), item[name]])


def jagged(rows):
    import torch

    return torch.nested.as_nested_tensor([torch.from_numpy(np.asarray(row)) for row in rows], layout=torch.jagged)


def write(root, rows, shape):
    """One step, the per-token fields in the named shape."""
    per_token = {
        "tokens": ([np.concatenate([item["prompt"], item["response"]]) for item in rows], PAD),
        "loss_mask": ([sequence(item, "mask", 0) for item in rows], 0),
        "logprobs": ([sequence(item, "rollout", 0.0) for item in rows], 0.0),
    }
    response = {
        "log_probs": [item["log_probs"] for item in rows],
        "entropy": [-item["log_probs"] for item in rows],
        "response_mask": [item["mask"] for item in rows],
    }
    old = response["log_probs"]
    if shape in ("left", "left_masked", "whole_sequence"):
        trajectory = {}
        for name, (values, fill) in per_token.items():
            lengths = [len(item["prompt"]) for item in rows]
            head = padded([row[:n] for row, n in zip(values, lengths, strict=True)], fill, left=True)
            tail = padded([row[n:] for row, n in zip(values, lengths, strict=True)], fill)
            trajectory[name] = np.concatenate([head, tail], 1)
        if shape != "left":
            attended = [np.ones(len(item["prompt"]), np.int64) for item in rows]
            tails = [np.ones(len(item["response"]), np.int64) for item in rows]
            trajectory["attention_mask"] = np.concatenate([padded(attended, 0, left=True), padded(tails, 0)], 1)
        prompt_width = max(len(item["prompt"]) for item in rows)
        forward = {name: padded(values, 0) for name, values in response.items()}
        old = padded(old, 0.0)
        old = padded(response["log_probs"], np.float32(-9.0))  # loops leave what they computed on padding
        if shape == "whole_sequence":  # column j holds the value of token j + 1
            ahead = np.zeros((len(rows), prompt_width - 1))
            forward = {name: np.concatenate([ahead.astype(value.dtype), value], 1) for name, value in forward.items()}
    elif shape in ("right", "right_masked"):
        trajectory = {name: padded(values, fill) for name, (values, fill) in per_token.items()}
        if shape == "right_masked":
            trajectory["attention_mask"] = padded([np.ones(len(row), np.int64) for row in per_token["tokens"][0]], 0)
        forward, old = {name: padded(values, 0) for name, values in response.items()}, padded(old, 0.0)
    else:
        form = {"ragged": Ragged.from_rows, "jagged": jagged}.get(shape, list)
        trajectory = {name: form(values) for name, (values, _) in per_token.items()}
        forward, old = {name: form(values) for name, values in response.items()}, form(old)
        if shape in (
            "whole_lists",
            "lists_from_the_second_token",
        ):  # the prompt is computed as well
            ahead = int(shape != "whole_lists")
            old = [sequence(item, "log_probs", -2.0)[ahead:] for item in rows]
            masks = [sequence(item, "mask", 0)[ahead:] for item in rows]
            forward = {"log_probs": old, "entropy": [-row for row in old], "response_mask": masks}
        if shape == "response_only":
            trajectory["logprobs"] = [item["rollout"] for item in rows]
    samples = [item["sample"] for item in rows]
    rewards = np.array([item["reward"] for item in rows], np.float32)
    with rldbg.Recorder(root) as recorder:
        recorder.record("trajectory", step=0, samples=samples, reward=rewards, **trajectory)
        recorder.record("old_log_probs", step=0, samples=samples, old_log_probs=old)
        recorder.record("forward_data", step=0, samples=samples, **forward)
    return rldbg.open(root)


def said(report):
    """What a check found, without what it could not look at."""
    return [(finding.id, finding.where, finding.evidence) for finding in report.findings], set(report.passed)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_clean_step_is_equal_in_every_shape(tmp_path, shape, seed):
    lists = write(tmp_path / "lists", batch(seed), "lists")
    other = write(tmp_path / "other", batch(seed), shape)
    for pair in ((lists, other), (other, lists)):
        result = compare(*pair)
        assert result.verdict == "equal", (result.first_difference, result.findings)
    assert said(check(other)) == said(check(lists))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("spoil", ["rollout", "log_probs", "token"])
def test_a_bug_is_placed_alike_in_every_shape(tmp_path, shape, spoil):
    clean = write(tmp_path / "clean", batch(0), "lists")
    expected = compare(clean, write(tmp_path / "lists", batch(0, spoil=spoil), "lists"))
    found = compare(clean, write(tmp_path / "other", batch(0, spoil=spoil), shape))
    assert expected.verdict == found.verdict == "different"
    first, wanted = found.first_difference, expected.first_difference
    assert (first.stage, first.field, first.place.sample, first.place.token) == (
        wanted.stage,
        wanted.field,
        wanted.place.sample,
        wanted.place.token,
    )
    spoilt = check(rldbg.open(tmp_path / "other"))
    assert said(spoilt) == said(check(rldbg.open(tmp_path / "lists")))
    if spoil == "rollout":
        assert any(finding.id == "rollout-matches-trainer" for finding in spoilt.findings)


@pytest.mark.parametrize("shape", ["right", "left", "left_masked"])
def test_prompts_pair_samples_whose_ids_differ(tmp_path, shape):
    """Another framework names its samples otherwise: the prompt's tokens pair them, padded or not."""
    renamed = batch(0)
    for number, item in enumerate(renamed):
        item["sample"] = (f"other-{number // 4}", number % 4)
    result = compare(write(tmp_path / "a", batch(0), "lists"), write(tmp_path / "b", renamed, shape))
    assert result.verdict == "equal", (result.first_difference, result.findings)


def test_prompts_that_begin_with_the_same_digits_are_not_padding(tmp_path):
    """Rows of one length have no padding, whatever they begin and end with."""
    tokens = np.array([[11, 11, 12, 13, 14], [11, 12, 11, 13, 11], [12, 11, 11, 13, 12]])
    mask = np.array([[0, 0, 0, 1, 1]] * 3)
    samples = [("g", run) for run in range(3)]
    for name, form in (("dense", np.asarray), ("lists", list)):
        with rldbg.Recorder(tmp_path / name) as recorder:
            recorder.record(
                "trajectory", step=0, samples=samples, tokens=form(tokens), loss_mask=form(mask), reward=np.zeros(3)
            )
    assert compare(rldbg.open(tmp_path / "dense"), rldbg.open(tmp_path / "lists")).verdict == "equal"


@pytest.mark.parametrize("first", [(1, 0), (0, 1), (7, 0)])
def test_steps_that_count_from_another_number_are_named(tmp_path, first):
    for name, start in zip("ab", first, strict=True):
        with rldbg.Recorder(tmp_path / name) as recorder:
            for step in range(3):
                rows = batch(step)
                recorder.record(
                    "trajectory",
                    step=start + step,
                    samples=[item["sample"] for item in rows],
                    tokens=[np.concatenate([item["prompt"], item["response"]]) for item in rows],
                    loss_mask=[sequence(item, "mask", 0) for item in rows],
                    reward=[item["reward"] for item in rows],
                )
    a, b = rldbg.open(tmp_path / "a"), rldbg.open(tmp_path / "b")
    with pytest.raises(IncompleteDataError) as refused:
        compare(a, b)
    shift = first[0] - first[1]
    assert f"--shift {shift}" in refused.value.hint
    assert compare(a, b, shift=shift).verdict == "equal"


def padded_rows(path, *, left):
    """Two samples in full-width rows, padded on one side, with a mask beside the old log probs."""
    rows = [([5, 6, 7, 8, 2], [0, 0, 1, 1, 1]), ([9, 4, 3], [0, 0, 1])]

    def dense(values, width=5):
        pad = [0] * (width - len(values))
        return pad + list(values) if left else list(values) + pad

    samples = [("g", 0), ("g", 1)]
    ids, real, mask = (
        np.array([dense(row) for row in part])
        for part in ([t for t, _ in rows], [[1] * len(t) for t, _ in rows], [m for _, m in rows])
    )
    values = np.where(mask, -0.1 * ids, 0.0).astype(np.float32)[:, 1:]
    with rldbg.Recorder(path) as recorder:
        key = {"step": 0, "samples": samples}
        recorder.record(
            "trajectory", **key, tokens=ids, attention_mask=real, loss_mask=mask, reward=np.array([1.0, 0.0])
        )
        recorder.record("old_log_probs", **key, old_log_probs=values, response_mask=mask[:, 1:])
        recorder.record("forward_data", **key, micro=0, input_ids=ids, log_probs=values, response_mask=mask[:, 1:])
    return rldbg.open(path)


def test_the_side_that_rows_are_padded_on_is_no_difference(tmp_path):
    a, b = padded_rows(tmp_path / "a", left=True), padded_rows(tmp_path / "b", left=False)
    assert compare(a, b).verdict == "equal"


def write_cut(root, rows, *, size, left, columns=-1, ids=True, zero=False, value_loss=0.5):
    """Whole rows padded on one side to the width of their own micro-batch; `columns` leaves out the first token's.

    With `zero`, log probs of untrained tokens are 0 and not what a pass gives them.
    """
    lists = {
        "tokens": [np.concatenate([item["prompt"], item["response"]]) for item in rows],
        "loss_mask": [sequence(item, "mask", 0) for item in rows],
        "log_probs": [sequence(item, "log_probs", np.float32(-3)) for item in rows],
    }
    if zero:
        lists["log_probs"] = [
            np.where(mask, row, row.dtype.type(0))
            for row, mask in zip(lists["log_probs"], lists["loss_mask"], strict=True)
        ]
    samples = [item["sample"] for item in rows]
    rewards = np.array([item["reward"] for item in rows], np.float32)
    with rldbg.Recorder(root) as recorder:
        sequences = {"tokens": lists["tokens"], "loss_mask": lists["loss_mask"], "logprobs": lists["log_probs"]}
        recorder.record("trajectory", step=0, samples=samples, reward=rewards, **sequences)
        recorder.record("old_log_probs", step=0, samples=samples, old_log_probs=[row[1:] for row in lists["log_probs"]])
        for micro, start in enumerate(range(0, len(rows), size)):
            part = {name: padded(values[start : start + size], 0, left=left) for name, values in lists.items()}
            mask, log_probs = (part[name][:, 1:] for name in ("loss_mask", "log_probs"))
            if not columns:  # as wide as the sequence: column j holds the value of token j + 1
                mask, log_probs = (np.pad(value, ((0, 0), (0, 1))) for value in (mask, log_probs))
            fields = {"log_probs": log_probs, "response_mask": mask} | ({"input_ids": part["tokens"]} if ids else {})
            at = {"step": 0, "micro": micro, "samples": samples[start : start + size]}
            recorder.record("forward_data", **at, **fields)
            critic = {"values": log_probs / 2, "returns": log_probs / 3, "response_mask": mask}
            recorder.record(
                "value_loss", **at, **critic, **({"input_ids": part["tokens"]} if ids else {}), loss=value_loss
            )
    return rldbg.open(root)


@pytest.mark.parametrize("ids", [True, False])
@pytest.mark.parametrize("columns", [-1, 0])
@pytest.mark.parametrize("left", [True, False])
def test_rows_padded_to_the_width_of_their_micro_batch_are_no_difference(tmp_path, left, columns, ids):
    a = write_cut(tmp_path / "a", batch(0), size=12, left=True, ids=ids)
    b = write_cut(tmp_path / "b", batch(0), size=4, left=left, columns=columns, ids=ids)
    # How losses are cut is another matter: without denominators they are sums of unknown parts.
    found = compare(a, b, kinds=["trajectory", "old_log_probs", "forward_data"])
    assert found.verdict == "equal", (found.first_difference, found.findings)
    first = compare(a, b, kinds=["value_loss"]).first_difference
    assert first is None or first.stage == "loss", first


def test_a_row_that_is_as_wide_as_the_trajectory_by_accident_is_no_difference(tmp_path):
    """Each row alone, with columns to spare: one of them happens to have as many as the padded trajectories."""
    rows = batch(0)
    tokens = [np.concatenate([item["prompt"], item["response"]]) for item in rows]
    masks = [sequence(item, "mask", 0) for item in rows]
    samples, width = [item["sample"] for item in rows], max(map(len, tokens))
    sequences = {"tokens": padded(tokens, 0), "loss_mask": padded(masks, 0), "reward": np.zeros(len(rows))}
    for name, spare in (("a", 0), ("b", 3)):
        with rldbg.Recorder(tmp_path / name) as recorder:
            recorder.record("trajectory", step=0, samples=samples, **sequences)
            for micro, (item, mask) in enumerate(zip(rows, masks, strict=True)):
                values = np.pad(sequence(item, "log_probs", np.float32(0))[1:], (0, spare))
                fields = {"log_probs": values[None], "response_mask": np.pad(mask[1:], (0, spare))[None]}
                recorder.record("forward_data", step=0, micro=micro, samples=samples[micro : micro + 1], **fields)
    assert any(len(row) - 1 + 3 == width for row in tokens)
    assert compare(rldbg.open(tmp_path / "a"), rldbg.open(tmp_path / "b")).verdict == "equal"


def test_a_bug_in_rows_of_their_own_width_is_placed(tmp_path):
    a = write_cut(tmp_path / "a", batch(0), size=12, left=True, ids=False)
    b = write_cut(tmp_path / "b", batch(0, spoil="log_probs"), size=4, left=True, ids=False)
    found = compare(a, b, kinds=["forward_data"]).first_difference
    assert (found.field, found.place.sample, found.place.token) == ("log_probs", "g1/3", 5)


def test_losses_of_a_critic_are_compared_however_they_are_cut(tmp_path):
    a = write_cut(tmp_path / "a", batch(0), size=12, left=True)
    assert not compare(a, write_cut(tmp_path / "b", batch(0), size=4, left=True)).first_difference
    other = compare(a, write_cut(tmp_path / "c", batch(0), size=4, left=True, value_loss=0.55)).first_difference
    assert (other.kind, other.field, other.stage) == ("value_loss", "loss", "loss")


def test_what_stands_on_untrained_tokens_is_no_difference(tmp_path):
    a = write_cut(tmp_path / "a", batch(0), size=4, left=False)
    b = write_cut(tmp_path / "b", batch(0), size=4, left=False, zero=True)
    assert compare(a, b).verdict == "equal"
