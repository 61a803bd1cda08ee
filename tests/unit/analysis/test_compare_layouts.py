"""Another rank count, micro-batch size, order or sharding is no difference; what differs under it is still found."""

import copy
from pathlib import Path

import numpy as np
import pytest

import rldbg
from layout_recordings import SAMPLES, step_values, write
from rldbg.analysis import compare
from rldbg.recording.formats.pt_writer import dump_pt

VALUES = step_values()


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write(tmp_path_factory.mktemp("base") / "a", VALUES)


@pytest.mark.parametrize(
    "layout",
    [
        {"micro": 3},
        {"micro": 12},
        {"ranks": 2, "micro": 3},
        {"ranks": 3, "micro": 1},
        {"order": list(reversed(range(SAMPLES))), "pad": 3},
        {"ranks": 2, "shards": 2},
    ],
    ids=str,
)
def test_layout_is_no_difference(base, tmp_path, layout):
    other = write(tmp_path / "b", VALUES, **layout)
    for pair in ((base, other), (other, base)):
        result = compare(*pair)
        assert result.verdict in ("equal", "equal within noise"), result.first_difference
        assert {"trajectory", "reward", "forward", "loss", "parameter", "metrics"} <= {
            row["stage"] for row in result.stages()
        }


def spoilt(**changes):
    values = copy.deepcopy(VALUES)
    for name, (index, value) in changes.items():
        values[name][index] = value
    return values


def test_a_loss_is_found_across_micro_batch_sizes(base, tmp_path):
    other = write(tmp_path / "b", spoilt(losses=(7, 5.0)), ranks=2, micro=3)
    first = compare(base, other).first_difference
    assert (first.stage.value, first.kind, first.field) == ("loss", "loss", "loss")


def test_a_token_is_found_at_its_place_across_layouts(base, tmp_path):
    log_probs = VALUES["log_probs"][9].copy()
    log_probs[1] -= 0.01
    other = write(tmp_path / "b", spoilt(log_probs=(9, log_probs)), ranks=3, micro=2, pad=1)
    for pair in ((base, other), (other, base)):
        first = compare(*pair).first_difference.to_dict()
        assert (first["field"], first["sample"], first["token"]) == ("log_probs", "g2/1", 1)


def test_a_dropped_micro_batch_is_a_difference_of_the_forward_stage(base, tmp_path):
    other = write(tmp_path / "b", VALUES, order=list(range(8)))
    rows = compare(base, other).stages()
    assert {row["stage"] for row in rows if row["verdict"] == "different"} >= {"trajectory", "forward"}
    first = compare(base, other, kinds=["forward_data"]).first_difference.to_dict()
    assert (first["stage"], first["field"], first["sample"]) == ("forward", "presence", "g2/0")
    assert (first["a"], first["b"]) == ("present", "absent")


def test_every_replica_is_compared_with_the_one_the_other_side_has(base, tmp_path):
    write(tmp_path / "b", VALUES, ranks=2)
    drifted = VALUES["parameter"] + np.float32(0.5)
    with rldbg.Recorder(tmp_path / "c", identity=rldbg.Identity(rank=0)) as recorder:
        recorder.record("param", step=0, param_name="w", param=VALUES["parameter"], shape=[8, 6], dtype="float32")
    with rldbg.Recorder(tmp_path / "c", identity=rldbg.Identity(rank=1)) as recorder:
        recorder.record("param", step=0, param_name="w", param=drifted, shape=[8, 6], dtype="float32")
    result = compare(base, rldbg.open(tmp_path / "c"))
    assert result.first_difference.stage.value == "parameter"


def sglang_dump(root, whole, pieces, dims, axis):
    """One file per rank, as sglang's dumper names and fills them."""
    root.mkdir()
    for rank, piece in enumerate(pieces):
        meta = {"dims": dims, "megatron_parallel_info": {f"{axis}_rank": rank, f"{axis}_size": len(pieces)}}
        name = f"step=0___rank={rank}___dump_index=1___name=hidden___recompute_status=disabled.pt"
        dump_pt({"value": piece, "meta": meta}, root / name)
    return rldbg.open(root)


def zigzag(whole, ranks):
    parts = np.split(whole, 2 * ranks, axis=1)
    return [np.concatenate([parts[rank], parts[2 * ranks - 1 - rank]], axis=1) for rank in range(ranks)]


@pytest.mark.parametrize(
    ("dims", "axis", "cut"),
    [
        ("b s h[tp]", "tp", lambda whole: np.split(whole, 2, axis=2)),
        ("b s[cp:zigzag] h", "cp", lambda whole: zigzag(whole, 2)),
        ("b s[cp] h", "cp", lambda whole: np.split(whole, 4, axis=1)),
        ("b s h[tp:partial]", "tp", lambda whole: [whole * 0.25, whole * 0.75]),
        ("b s h", "tp", lambda whole: [whole, whole.copy()]),
    ],
)
def test_declared_shards_are_assembled(tmp_path, dims, axis, cut):
    whole = np.random.default_rng(0).standard_normal((2, 8, 6)).astype(np.float32)
    one = sglang_dump(tmp_path / "one", whole, [whole], dims, axis)
    many = sglang_dump(tmp_path / "many", whole, cut(whole), dims, axis)
    assert compare(one, many).verdict == compare(many, one).verdict == "equal"
    wrong = whole.copy()
    wrong[1, 5, 3] += 0.01
    first = compare(one, sglang_dump(tmp_path / "wrong", wrong, cut(wrong), dims, axis)).first_difference
    assert first.place.index == (1, 5, 3)


def test_missing_shards_are_never_a_pass(tmp_path):
    whole = np.zeros((2, 8, 6), np.float32)
    one = sglang_dump(tmp_path / "one", whole, [whole], "b s h[tp]", "tp")
    sglang_dump(tmp_path / "many", whole, np.split(whole, 3, axis=2), "b s h[tp]", "tp")
    next(Path(tmp_path / "many").glob("*rank=1*")).unlink()
    assert compare(one, rldbg.open(tmp_path / "many")).verdict == "different"


@pytest.mark.parametrize(("changed", "verdict"), [(False, "equal"), (True, "different")])
def test_the_end_of_a_row_that_is_not_trained_on_is_found_without_a_mask(tmp_path, changed, verdict):
    ids = np.asarray([[7, 8, 9, 0, 0], [7, 8, 9, 4, 5]])
    narrow = np.asarray([[7, 8, 6 if changed else 9]])

    def recorded(name, micros):
        with rldbg.Recorder(tmp_path / name) as recorder:
            for micro, (tokens, sample) in enumerate(micros):
                mask = np.zeros((len(tokens), tokens.shape[1] - 2), np.int64)
                fields = {"input_ids": tokens, "response_mask": mask, "log_probs": mask.astype(np.float32)}
                recorder.record("forward_data", step=0, micro=micro, samples=sample, **fields)
        return rldbg.open(tmp_path / name)

    wide = recorded("a", [(ids, [("g", 0), ("g", 1)])])
    other = recorded("b", [(narrow, [("g", 0)]), (ids[1:], [("g", 1)])])
    assert compare(wide, other).verdict == verdict


def test_a_mask_that_ends_early_is_placed_at_the_mask_in_any_split(tmp_path):
    samples = [("g", 0), ("g", 1)]
    mask = np.asarray([[1, 1, 0, 1], [1, 1, 1, 1]])
    early = np.asarray([[1, 1, 0, 0], [1, 1, 1, 1]])

    def recorded(name, micros):
        with rldbg.Recorder(tmp_path / name) as recorder:
            for micro, (rows, valid) in enumerate(micros):
                width = int(valid.any(0).nonzero()[0].max()) + 1
                values = np.arange(8, dtype=np.float32).reshape(2, 4)[rows, :width]
                fields = {"log_probs": -values, "old_log_probs": -values, "advantages": values}
                fields |= {"effective_valid": valid[:, :width]}
                recorder.record("is_loss_debug", step=0, micro=micro, samples=samples[rows], **fields)
        return rldbg.open(tmp_path / name)

    both, first, second = slice(0, 2), slice(0, 1), slice(1, 2)
    result = compare(recorded("a", [(both, mask)]), recorded("b", [(first, early[:1]), (second, early[1:])]))
    assert (result.first_difference.stage, result.first_difference.field) == ("forward", "effective_valid")


def losses_of_ranks(folder, ranks, wrong=0.0):
    """Losses without denominators, each of its rank's mean: data parallelism averages them over ranks."""
    samples, values = [(f"g{n // 2}", n % 2) for n in range(8)], np.linspace(0.3, 1.1, 8)
    values[3] += wrong
    for rank in range(ranks):
        with rldbg.Recorder(folder, identity=rldbg.Identity(role="policy", rank=rank)) as recorder:
            mine = range(rank, 8, ranks)
            for micro in range(2):
                part = mine[micro * len(mine) // 2 : (micro + 1) * len(mine) // 2]
                loss = float(values[part].sum() * ranks / 8)
                recorder.record("loss", step=0, micro=micro, samples=[samples[n] for n in part], loss=loss)
    return rldbg.open(folder)


def test_losses_that_are_averaged_over_ranks_do_not_depend_on_their_number(tmp_path):
    one = losses_of_ranks(tmp_path / "one", 1)
    for ranks in (2, 4):
        assert compare(one, losses_of_ranks(tmp_path / str(ranks), ranks)).verdict in ("equal", "equal within noise")
    assert compare(one, losses_of_ranks(tmp_path / "wrong", 2, wrong=0.01)).verdict == "different"


@pytest.mark.parametrize(("reward", "verdict"), [(0.5, "equal"), (0.6, "different")])
def test_a_metric_that_an_option_adds_is_no_difference(tmp_path, reward, verdict):
    for side, metrics in (("a", {"reward": 0.5}), ("b", {"kl": 0.0, "reward": reward})):
        with rldbg.Recorder(tmp_path / side) as recorder:
            recorder.record("training_metrics", step=0, metrics=metrics)
    assert compare(rldbg.open(tmp_path / "a"), rldbg.open(tmp_path / "b")).verdict == verdict


def answers_of_two_turns(root, *, left=False, changed=None, mask_bug=False):
    """Log probs of responses alone, with a tool's text between two answers, padded at one end."""
    rng = np.random.default_rng(0)
    names = [("g0", number) for number in range(6)]
    sizes = [(2 + n % 3, 1 + n % 2, 2 + n // 2) for n in range(6)]
    masks = [np.repeat([0, 1, 0, 1], [3, *size]) for size in sizes]
    log_probs = [-rng.random(sum(size)).astype(np.float32) for size in sizes]
    if changed is not None:
        log_probs[changed[0]][changed[1]] -= 0.3
    width = max(map(len, log_probs))

    def padded(rows):
        return np.stack([np.pad(row, (width - len(row), 0) if left else (0, width - len(row))) for row in rows])

    trained = [mask[3:] for mask in masks]
    if mask_bug:
        trained = [np.where(np.arange(len(row)) == 0, 0, row) for row in trained]
    with rldbg.Recorder(root) as recorder:
        tokens = [np.random.default_rng(n).integers(5, 90, len(mask)) for n, mask in enumerate(masks)]
        recorder.record("trajectory", step=0, samples=names, tokens=tokens, loss_mask=masks, reward=np.ones(6))
        fields = {"log_probs": padded(log_probs), "response_mask": padded(trained)}
        recorder.record("forward_data", step=0, micro=0, samples=names, **fields)
    return rldbg.open(root)


def test_responses_that_end_in_one_column_are_those_that_begin_in_one(tmp_path):
    right = answers_of_two_turns(tmp_path / "right")
    assert compare(right, answers_of_two_turns(tmp_path / "left", left=True)).verdict == "equal"
    other = answers_of_two_turns(tmp_path / "other", left=True, changed=(4, 1))
    first = compare(right, other).first_difference.to_dict()
    assert (first["field"], first["sample"], first["token"]) == ("log_probs", "g0/4", 1)


def test_a_mask_that_lacks_first_tokens_is_not_taken_for_another_layout(tmp_path):
    right = answers_of_two_turns(tmp_path / "right")
    for number, left in enumerate((False, True)):
        wrong = answers_of_two_turns(tmp_path / f"wrong{number}", left=left, mask_bug=True)
        first = compare(right, wrong).first_difference
        assert (first.kind, first.field) == ("forward_data", "response_mask")


def losses_of_unknown_samples(root, losses):
    with rldbg.Recorder(root) as recorder:
        for micro, loss in enumerate(losses):
            recorder.record("loss", step=0, micro=micro, loss=loss)
    return rldbg.open(root)


@pytest.mark.parametrize(
    ("losses", "is_equal"),
    [
        ([0.3, 0.1, 0.7], True),
        ([0.3, 0.1, 0.8], False),  # another sum
        ([0.1, 0.3, 0.7001], False),
    ],
    ids=str,
)
def test_losses_of_unknown_samples_are_added_up_where_their_sums_agree(tmp_path, losses, is_equal):
    one, other = (
        losses_of_unknown_samples(tmp_path / name, found) for name, found in (("a", [0.1, 0.3, 0.7]), ("b", losses))
    )
    assert (compare(one, other).verdict != "different") == is_equal
