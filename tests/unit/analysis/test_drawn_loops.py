"""Pairs of loops drawn at random: two right implementations of one algorithm agree, and a fault in one is found."""

import pytest

import rldbg
from rldbg.analysis import check, compare
from standalone_loops.drawn_loop import Loop, draw

# What a small model that learns from few samples truly does.
_TRUE_OF_TINY_RUNS = {"groups-informative", "responses-vary", "parameters-move"}
# The stage in which each fault first shows, and the ids that name it.
FAULTS = {
    # Of one turn, the same is said by the first token that is left out.
    "mask-one-late": ("trajectory", {"mask-shifted", "mask-off-at-start"}),
    "no-std": ("advantage", {"advantage-normalisation"}),
    "temperature": ("old_log_probs", {"temperature"}),
    "rate": ("parameter", {"learning-rate"}),
}
SOAKED = [pytest.param(seed, marks=pytest.mark.soak) for seed in range(4, 36)]


def pair(folder, seed, fault="", **changes):
    algorithm, one, other = draw(seed)
    vars(algorithm).update(changes)
    Loop(algorithm, one, folder / "a").train()
    Loop(algorithm, other, folder / "b", fault).train()
    a, b = rldbg.open(folder / "a"), rldbg.open(folder / "b")
    return compare(a, b, shift=one.first_step - other.first_step), a, b


@pytest.mark.parametrize("seed", [*range(4), *SOAKED])
def test_two_right_implementations_agree(tmp_path, seed):
    found, *sides = pair(tmp_path, seed)
    assert found.verdict in ("equal", "equal within noise", "drift"), found.first_difference
    for side in sides:
        failed = {finding.id for finding in check(side).findings if finding.severity.name != "INFO"}
        assert failed <= _TRUE_OF_TINY_RUNS


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 8))])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_one_is_placed_and_never_named_wrongly(tmp_path, fault, seed):
    stage, causes = FAULTS[fault]
    found, *_ = pair(tmp_path, seed, fault, advantage="std", binary=False)
    assert found.verdict == "different" and found.first_difference.stage == stage
    assert {item.id for item in found.explanations} <= causes
