"""Other people's loops: two independent implementations agree within noise, and a bug in one of them is found."""

import pytest

import rldbg
from rldbg.analysis import compare
from standalone_loops import dense_loop, rows_loop, turns_loop

# The stage in which each bug first shows in what the loops record, its cause, and the words that name it.
BUGS = {
    "temperature": ("old_log_probs", "temperature", "1.1 times A's temperature"),
    "sequence-mean": ("loss", "aggregation", "in A and the mean over sequences of their token means"),
    "clip-high": ("loss", "clip", "at most 1.02 in A and at least 0.98 and at most 1.03 in B"),
    "mask-shifted": ("forward", "mask-lost", "does not train on tokens"),
    "no-std": ("loss", "advantage-normalisation", "deviation in A and rewards normalised by group mean only in B"),
    "learning-rate": ("parameter", "learning-rate", "0.003 in A and 0.0033 in B"),
    "no-clip": ("parameter", "gradient-clip", "a norm of 0.1 in A and none (not clipped) in B"),
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The dense loop, once per seed."""
    folder = tmp_path_factory.mktemp("loops")

    def record(seed):
        place = folder / f"dense-{seed}"
        if not place.exists():
            dense_loop.main([str(place), "--seed", str(seed)])
        return place

    return record


def rows(place, recorded, *, seed=0, bug=""):
    rows_loop.main([str(place), "--rollouts", str(recorded(seed)), "--seed", str(seed), "--bug", bug])
    return compare(rldbg.open(recorded(seed)), rldbg.open(place), shift=1)


@pytest.mark.parametrize("seed", range(4))
def test_two_right_implementations_agree_within_noise(tmp_path, recorded, seed):
    result = rows(tmp_path / "rows", recorded, seed=seed)
    assert result.verdict in ("equal within noise", "drift"), result.first_difference


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_in_one_of_them_is_placed_and_named(tmp_path, recorded, bug):
    stage, cause, words = BUGS[bug]
    result = rows(tmp_path / "rows", recorded, bug=bug)
    assert result.verdict == "different"
    assert (result.first_difference.stage, result.first_difference.step) == (stage, 1)
    assert result.explanations[0].id == cause and words in result.explanations[0].explains, result.explanations


@pytest.fixture(scope="module")
def turns(tmp_path_factory):
    place = tmp_path_factory.mktemp("turns") / "clean"
    turns_loop.main(place)
    return rldbg.open(place)


def test_a_loop_of_turns_cut_into_other_micro_batches_is_no_difference_without_denominators(tmp_path, turns):
    turns_loop.main(tmp_path / "other", micro=12)
    result = compare(turns, rldbg.open(tmp_path / "other"))
    assert result.verdict in ("equal within noise", "drift"), result.first_difference


# The rest is compared in the soak.
_SOME = (
    "first-token-greedy",
    "engine-misses-biases",
    "baseline-weighted-by-length",
    "kl-of-every-token",
    "last-turn-twice",
)
_MORE = tuple(bug for bug in turns_loop.BUGS if bug not in _SOME)


@pytest.mark.parametrize("bug", [*_SOME, *(pytest.param(bug, marks=pytest.mark.soak) for bug in _MORE)])
def test_a_bug_in_a_loop_of_turns_is_placed_and_named_or_left_open(tmp_path, turns, bug):
    stage, cause = turns_loop.BUGS[bug]
    turns_loop.main(tmp_path / "bug", bug=bug)
    result = compare(turns, rldbg.open(tmp_path / "bug"))
    assert result.verdict == "different" and result.first_difference.stage == stage
    assert [item.id for item in result.explanations][:1] == ([] if cause is None else [cause]), result.explanations
