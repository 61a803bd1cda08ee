"""Other people's loops: two independent implementations agree within noise, and a bug in one of them is found."""

import pytest

import rldbg
from rldbg.analysis import compare
from standalone_loops import dense_loop, rows_loop

# The stage in which each bug first shows in what the loops record, and the words that name it where they can.
BUGS = {
    "temperature": ("old_log_probs", "1.1 times A's temperature"),
    "sequence-mean": ("loss", ""),
    "clip-high": ("loss", ""),
    "mask-shifted": ("forward", "does not train on tokens"),
    "no-std": ("loss", ""),
    "learning-rate": ("parameter", ""),
    "no-clip": ("parameter", ""),
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
def test_a_bug_in_one_of_them_is_placed(tmp_path, recorded, bug):
    stage, words = BUGS[bug]
    result = rows(tmp_path / "rows", recorded, bug=bug)
    assert result.verdict == "different"
    assert (result.first_difference.stage, result.first_difference.step) == (stage, 1)
    if words:
        assert any(words in str(item.to_dict()) for item in result.explanations), result.explanations
