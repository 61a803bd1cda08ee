"""Loops that record by the README alone: the cut of micro-batches, padding and dtypes are no difference."""

import itertools

import numpy as np
import pytest

import rldbg
from rldbg.analysis import check, compare
from rldbg.analysis.explain import Evidence
from rldbg.analysis.noise.certain import _fitting
from rldbg.analysis.side import Side
from rldbg.analysis.tolerances import Tolerances

PAD, BEGIN = 0, 2
LENGTHS = ((2, 3), (2, 6), (3, 2), (3, 5), (5, 4), (5, 6), (4, 1), (4, 6))


def rows(seed=0):
    """Prompts and responses; some responses contain the id that rows are padded with."""
    rng = np.random.default_rng(seed)
    prompts = {prompt: rng.integers(3, 20, prompt) for prompt, _ in LENGTHS}
    found = [
        (np.r_[BEGIN, prompts[prompt]], rng.integers(3, 20, response), rng.random()) for prompt, response in LENGTHS
    ]
    found[1][1][3] = found[5][1][2] = PAD
    # Samples with equal tokens, whose rewards are equal as well.
    return [*found, found[7], found[0]]


def padded(parts, *, left):
    width = max(map(len, parts))
    return np.asarray([np.pad(row, (width - len(row), 0) if left else (0, width - len(row))) for row in parts])


def write(root, batch, *, left=False, cut=4, order=None, one_by_one=False, dtype=np.float32, loss=lambda value: value):
    """One step of losses, inputs and a gradient as `record_loop` records them: losses do not name their samples."""
    order = list(range(len(batch))) if order is None else order
    tokens = [np.r_[prompt, response] for prompt, response, _ in batch]
    masks = [np.r_[np.zeros(len(prompt), int), np.ones(len(response), int)] for prompt, response, _ in batch]
    with rldbg.Recorder(root) as recorder:
        recorder.record(
            "trajectory",
            step=0,
            samples=[(f"g{place // 2}", place % 2) for place in order],
            tokens=padded([tokens[place] for place in order], left=left),
            loss_mask=padded([masks[place] for place in order], left=left),
            reward=np.asarray([batch[place][2] for place in order]),
        )
        for micro, start in enumerate(range(0, len(order), cut)):
            chosen = order[start : start + cut]
            for part in [[place] for place in chosen] if one_by_one else [chosen]:
                ids = padded([tokens[place] for place in part], left=left)
                seen = padded([np.ones(len(tokens[place]), int) for place in part], left=left)
                recorder.record("batch_inputs", step=0, micro=micro, input_ids=ids, attention_mask=seen)
            total = sum(batch[place][2] * len(batch[place][1]) for place in chosen)
            recorder.record("loss", step=0, micro=micro, loss=loss(np.float32(total / 33)))
        facts = {"shape": [8], "dtype": f"torch.{np.dtype(dtype)}", "norm": 1.0, "mean": 0.0, "std": 0.0}
        gradient = np.linspace(-1, 1, 8, dtype=np.float32).astype(dtype)
        recorder.record("gradient", step=0, param_name="w", gradient=gradient, **facts)
    return rldbg.open(root)


@pytest.mark.parametrize(
    "shape",
    [
        {"left": True},
        {"cut": 2},
        {"order": [9, 5, 2, 7, 0, 1, 8, 6, 3, 4]},
        {"one_by_one": True},
        {"dtype": np.float64},
    ],
    ids=lambda shape: next(iter(shape)),
)
def test_a_clean_loop_is_equal_however_it_is_cut(tmp_path, shape):
    found = compare(write(tmp_path / "a", rows()), write(tmp_path / "b", rows(), **shape))
    assert found.verdict in ("equal", "equal within noise")


@pytest.mark.parametrize(
    "shape", [{"cut": 2}, {"order": [9, 5, 2, 7, 0, 1, 8, 6, 3, 4]}], ids=lambda shape: next(iter(shape))
)
def test_losses_cut_differently_that_differ_are_found(tmp_path, shape):
    b = write(tmp_path / "b", rows(), **shape, loss=lambda value: value * np.float32(1.01))
    found = compare(write(tmp_path / "a", rows()), b)
    assert found.first_difference.stage == "loss"


def test_what_a_loop_records_by_itself_needs_no_sample_ids(tmp_path):
    assert [finding.id for finding in write(tmp_path, rows()).verify()] == []


@pytest.mark.parametrize(("passes", "is_right"), [([[0, 1], [2, 3]] * 2, True), ([[0, 1], [2, 3], [0, 1]], False)])
def test_epochs_that_are_not_numbered_are_no_samples_trained_twice(tmp_path, passes, is_right):
    names, ones = [("g", n) for n in range(4)], np.ones((4, 3))
    with rldbg.Recorder(tmp_path) as recorder:
        recorder.record(
            "trajectory", step=0, samples=names, tokens=np.arange(12).reshape(4, 3), loss_mask=ones, reward=np.arange(4)
        )
        for micro, chosen in enumerate(passes):
            place = {"step": 0, "mini_batch": micro // 2, "micro": micro % 2, "samples": [names[n] for n in chosen]}
            recorder.record("forward_data", **place, log_probs=-ones[:2], response_mask=ones[:2])
    found = [finding.id for finding in check(rldbg.open(tmp_path)).findings]
    assert ("samples-trained-once" not in found) == is_right


def stepped(root, *, per_pass=1, rate=0.1):
    """Two steps of two passes, each followed by optimizer steps on the same gradient, as `record_loop` numbers them."""
    weights = np.linspace(-1, 1, 64, dtype=np.float32)
    facts = {"param_name": "w", "shape": [64], "dtype": "torch.float32", "norm": 1.0, "mean": 0.0, "std": 0.0}
    with rldbg.Recorder(root) as recorder:
        for step, number in itertools.product(range(2), range(2 * per_pass)):
            place = {"step": step, "mini_batch": number}
            if number % per_pass == 0:
                gradient = np.cos(np.arange(64) * (step + number // per_pass + 1)).astype(np.float32)
                recorder.record("loss", **place, loss=np.float32(step + number // per_pass))
            weights = weights - np.float32(rate) * gradient
            recorder.record("gradient", **place, gradient=gradient, **facts)
            recorder.record("param", **place, param=weights, **facts)
            recorder.record("training_metrics", **place, metrics={"learning_rate": 0.1})
    return rldbg.open(root)


def test_optimizer_steps_on_the_same_gradient_are_counted_and_placed(tmp_path):
    right, twice = stepped(tmp_path / "a"), stepped(tmp_path / "b", per_pass=2)
    found = compare(right, twice)
    assert found.first_difference.stage == "parameter"
    assert [item.explains for item in found.explanations] == [
        "the optimizer takes 1 step(s) per backward pass in A and 2 in B"
    ]
    # The same movement by another learning rate is not taken for it.
    near = compare(right, stepped(tmp_path / "c", rate=0.2))
    assert near.first_difference.stage == "parameter"
    assert "updates-per-pass" not in [item.id for item in near.explanations]


def test_a_rule_that_cannot_be_tried_is_logged_once_per_recording(tmp_path, caplog):
    def broken(_evidence):
        raise ValueError("shapes that no rule expects")

    sides = [Side(write(tmp_path / name, rows()), name.upper()) for name in "ab"]
    with caplog.at_level("WARNING"):
        assert [_fitting(Evidence(*sides, step), [broken]) for step in (0, 1)] == [None, None]
    assert [record.message for record in caplog.records if "could not be tried" in record.message] == [
        "a hypothesis could not be tried: "
        "test_a_rule_that_cannot_be_tried_is_logged_once_per_recording.<locals>.broken: shapes that no rule expects"
    ]


def terms(root, cut, *, weight=0.5, wrong=()):
    """Losses of four updates by term, each update cut into micro-batches; `wrong` ones have another policy loss."""
    rng = np.random.default_rng(0)
    with rldbg.Recorder(root) as recorder:
        for mini in range(4):
            policy, critic = rng.normal(size=4) / 4, rng.random(4) / 4
            if mini in wrong:
                policy = -3 * policy
            for micro, start in enumerate(range(0, 4, cut)):
                chosen = slice(start, start + cut)
                parts = {"pg_loss": float(policy[chosen].sum()), "value_loss": float(critic[chosen].sum())}
                recorder.record(
                    "loss",
                    step=0,
                    mini_batch=mini,
                    micro=micro,
                    samples=[(f"m{mini}", run) for run in range(4)[chosen]],
                    loss=parts["pg_loss"] + weight * parts["value_loss"],
                    **parts,
                )
    return rldbg.open(root)


def test_a_mini_batch_that_differs_does_not_decide_how_losses_add_up(tmp_path):
    result = compare(terms(tmp_path / "a", 4), terms(tmp_path / "b", 1, wrong=(2, 3)))
    assert result.first_difference.mini_batch == 2


def test_the_weight_of_a_critics_loss_is_told(tmp_path):
    clean = terms(tmp_path / "a", 4)
    assert compare(clean, terms(tmp_path / "same", 2)).verdict in ("equal", "equal within noise")
    result = compare(clean, terms(tmp_path / "b", 1, weight=1.0))
    assert [item.id for item in result.explanations] == ["value-coefficient"]
    assert result.first_difference.field == "loss"


def critic(root, cut, *, means=False, scale=1.0, gradient=True):
    """A critic's losses of two updates of five samples: shares of the mini-batch's, or means of their micro-batches."""
    rng = np.random.default_rng(0)
    with rldbg.Recorder(root) as recorder:
        for mini in range(2):
            losses, values = rng.random(5) + 0.5, rng.random((5, 3)).astype(np.float32)
            for micro, start in enumerate(range(0, 5, cut)):
                chosen = slice(start, start + cut)
                recorder.record(
                    "value_loss",
                    step=0,
                    mini_batch=mini,
                    micro=micro,
                    samples=[(f"m{mini}", run) for run in range(5)[chosen]],
                    loss=scale * float(losses[chosen].mean() if means else losses[chosen].sum() / 5),
                    values=values[chosen],
                    returns=values[chosen],
                    response_mask=np.ones_like(values[chosen]),
                )
            if gradient:
                recorder.record("gradient", step=0, mini_batch=mini, param_name="w", gradient=values)
    return rldbg.open(root)


@pytest.mark.parametrize("cut", [2, 3], ids=["cut alike", "cut differently"])
def test_a_critics_loss_may_be_a_share_on_one_side_and_a_mean_on_the_other(tmp_path, cut):
    shares = critic(tmp_path / "a", 2)
    assert compare(shares, critic(tmp_path / "b", cut, means=True)).verdict in ("equal", "equal within noise")
    wrong = compare(shares, critic(tmp_path / "c", cut, means=True, scale=1.1)).first_difference
    assert (wrong.kind, wrong.field, wrong.stage) == ("value_loss", "loss", "loss")


def test_without_gradients_nothing_tells_a_mean_from_another_loss(tmp_path):
    sides = [critic(tmp_path / name, 2, means=means, gradient=False) for name, means in (("a", False), ("b", True))]
    assert compare(*sides).first_difference.kind == "value_loss"


def shaped(root, noise, *, chosen=slice(None)):
    """Rewards with a KL in them, which rounding moves; or rules' rewards of which some are moved."""
    rewards = np.linspace(0, 1, 16)
    rewards[chosen] += noise * np.cos(np.arange(16))[chosen]
    with rldbg.Recorder(root) as recorder:
        tokens = [[1, 2, 3 + row] for row in range(16)]
        ids = [(f"g{row // 4}", row % 4) for row in range(16)]
        masks = [[0, 1, 1]] * 16
        recorder.record("trajectory", step=0, samples=ids, tokens=tokens, loss_mask=masks, reward=rewards.tolist())
    return rldbg.open(root)


def test_rewards_with_a_kl_in_them_may_be_off_by_its_rounding(tmp_path):
    clean = shaped(tmp_path / "a", 0.0)
    assert compare(clean, shaped(tmp_path / "noise", 2e-5)).verdict == "equal within noise"
    assert compare(clean, shaped(tmp_path / "large", 2e-3)).verdict == "different"
    assert compare(clean, shaped(tmp_path / "some", 2e-5, chosen=slice(0, 5))).verdict == "different"


def test_rewards_that_differ_by_a_few_amounts_follow_a_rule(tmp_path):
    """Within what a KL may round in bfloat16, but one amount per length: no KL has so few."""
    lengths, rewards = np.arange(16) % 4, np.linspace(0, 1, 16)
    for name, penalty in (("a", 0.0), ("b", 1e-3)):
        with rldbg.Recorder(tmp_path / name) as recorder:
            tokens = [[1, 2, 3 + row, *[5] * int(length)] for row, length in enumerate(lengths)]
            masks = [[0, 1, 1, *[1] * int(length)] for length in lengths]
            ids = [(f"g{row // 4}", row % 4) for row in range(16)]
            shown = rewards.astype(np.float32) - np.float32(penalty) * (1 + lengths.astype(np.float32))
            recorder.record("trajectory", step=0, samples=ids, tokens=tokens, loss_mask=masks, reward=shown)
    loose = Tolerances().after({}, always=2e-5)
    result = compare(rldbg.open(tmp_path / "a"), rldbg.open(tmp_path / "b"), tolerances=loose)
    assert result.verdict == "different" and result.first_difference.field == "reward"


def test_parameters_of_any_shape_are_compared(tmp_path):
    with rldbg.Recorder(tmp_path) as recorder:
        for step in range(2):
            facts = {"shape": [4, 2, 3], "dtype": "torch.float32", "norm": 1.0, "mean": 0.0, "std": 0.0}
            recorder.record("param", step=step, param_name="c", param=np.full((4, 2, 3), step, np.float32), **facts)
    assert not check(rldbg.open(tmp_path), only=["parameters-move"]).findings


def trained(
    root, *, place=lambda n: {"epoch": n // 2, "mini_batch": n % 2}, names="g", full=None, shift=0.0, means=False
):
    """Four updates of two micro-batches; `full` lays values out over whole padded sequences."""
    batch = rows()[:8]
    lengths = [len(response) for _, response, _ in batch]
    values = [-np.random.default_rng(n).random(size).astype(np.float32) - 0.1 for n, size in enumerate(lengths)]
    ids = [(names, n) for n in range(8)]

    def layout(chosen, parts):
        if full is None:
            return [part.tolist() for part in parts]
        before = [
            np.r_[np.zeros(len(batch[n][0]), parts[0].dtype), part] for n, part in zip(chosen, parts, strict=True)
        ]
        return padded(before, left=full == "left")

    with rldbg.Recorder(root) as recorder:
        recorder.record(
            "trajectory",
            step=0,
            samples=ids,
            tokens=[[*prompt, *response] for prompt, response, _ in batch],
            loss_mask=[[0] * len(prompt) + [1] * len(response) for prompt, response, _ in batch],
            logprobs=[[0.0] * len(prompt) + part.tolist() for (prompt, *_), part in zip(batch, values, strict=True)],
            reward=[reward for *_, reward in batch],
        )
        recorder.record("old_log_probs", step=0, samples=ids, old_log_probs=layout(range(8), values))
        for update in range(4):
            half = range(update % 2 * 4, update % 2 * 4 + 4)
            for micro, start in enumerate((0, 2)):
                chosen = list(half)[start : start + 2]
                moved = [values[n] - np.float32(0.1 * update + (shift if update else 0.0)) for n in chosen]
                fields = {
                    "log_probs": layout(chosen, moved),
                    "response_mask": layout(chosen, [np.ones(lengths[n], np.int64) for n in chosen]),
                }
                where = {"step": 0, "micro": micro, "samples": [ids[n] for n in chosen], **place(update)}
                recorder.record("forward_data", **where, **fields)
                recorder.record("loss", **where, loss=np.float32((2 if means else 1) * sum(map(np.sum, moved))))
            facts = {"param_name": "w", "shape": [8], "dtype": "torch.float32", "norm": 1.0, "mean": 0.0, "std": 0.0}
            recorder.record("gradient", step=0, **place(update), gradient=np.linspace(-1, 1, 8), **facts)
    return rldbg.open(root)


@pytest.mark.parametrize(
    "shape",
    [
        {"place": lambda n: {"mini_batch": n}},
        {"place": lambda n: {"mini_batch": n}, "names": "other"},
        {"full": "right"},
        {"full": "left"},
        {"full": "left", "names": "other"},
        {"means": True},
    ],
)
def test_updates_may_be_counted_and_values_laid_out_in_any_way(tmp_path, shape):
    a, b = trained(tmp_path / "a"), trained(tmp_path / "b", **shape)
    for one, other in ((a, b), (b, a)):
        found = compare(one, other)
        assert found.verdict in ("equal", "equal within noise"), found.first_difference
    assert "samples-trained-once" in check(b).passed


def test_an_update_that_one_side_lacks_is_found_however_updates_are_counted(tmp_path):
    found = compare(trained(tmp_path / "a"), trained(tmp_path / "b", place=lambda n: {"mini_batch": n + n // 3}))
    assert found.verdict == "different"


@pytest.mark.parametrize(("shift", "verdict"), [(0.003, "drift"), (0.05, "different")])
def test_without_parameters_updates_allow_a_share_of_what_they_move(tmp_path, shift, verdict):
    found = compare(trained(tmp_path / "a"), trained(tmp_path / "b", shift=shift), kinds=["forward_data"])
    assert found.verdict == verdict, found.first_difference


def test_samples_behind_each_other_in_one_row_are_the_samples(tmp_path):
    batch = rows()[:4]
    sequences = [np.r_[prompt, response] for prompt, response, _ in batch]
    for name, is_packed in (("a", False), ("b", True)):
        with rldbg.Recorder(tmp_path / name) as recorder:
            recorder.record(
                "trajectory",
                step=0,
                samples=[("g", n) for n in range(4)],
                tokens=[row.tolist() for row in sequences],
                loss_mask=[[0] * len(prompt) + [1] * len(response) for prompt, response, _ in batch],
                reward=np.arange(4.0),
            )
            if not is_packed:
                ids, seen = (padded(part, left=False) for part in (sequences, [np.ones_like(row) for row in sequences]))
                recorder.record("batch_inputs", step=0, micro=0, input_ids=ids, attention_mask=seen)
                continue
            for micro, parts in enumerate((sequences[:3], sequences[3:])):
                positions = np.concatenate([np.arange(len(part)) for part in parts])[None]
                ids = np.concatenate(parts)[None]
                recorder.record("batch_inputs", step=0, micro=micro, input_ids=ids, position_ids=positions)
    found = compare(rldbg.open(tmp_path / "a"), rldbg.open(tmp_path / "b"))
    assert found.verdict == "equal" and "unaligned" not in {finding.id for finding in found.findings}


def test_prompts_padded_by_one_without_an_attention_mask(tmp_path):
    tokens = np.array([[0, 2, 5, 7, 8], [2, 6, 5, 9, 4], [0, 2, 9, 3, 3]])
    mask = np.array([[0, 0, 0, 1, 1]] * 3)
    with rldbg.Recorder(tmp_path / "a") as recorder:
        fields = {"samples": [("g", n) for n in range(3)], "reward": np.arange(3.0)}
        recorder.record("trajectory", step=0, tokens=tokens, loss_mask=mask, **fields)
    with rldbg.Recorder(tmp_path / "b") as recorder:
        starts = [1, 0, 1]
        cut = [[row[start:].tolist() for row, start in zip(grid, starts, strict=True)] for grid in (tokens, mask)]
        recorder.record("trajectory", step=0, tokens=cut[0], loss_mask=cut[1], **fields)
    assert compare(rldbg.open(tmp_path / "a"), rldbg.open(tmp_path / "b")).verdict == "equal"


def test_a_model_that_is_called_for_each_row_has_its_inputs_once_per_call(tmp_path):
    with rldbg.Recorder(tmp_path) as recorder:
        for row in range(3):
            recorder.record("batch_inputs", step=0, micro=0, input_ids=np.full((1, 4), row))
    assert rldbg.open(tmp_path).verify() == []
