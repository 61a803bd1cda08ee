"""Passes over the same tokens with the same weights: the engine's, the one before the step, and the first of the step.

On each side their log probs differ by what passes round, and by no more on one side than on the other. A side on which
they differ several times as much has a fault, whatever the noise between the sides is; so has one on which all tokens
of many contexts are off in one direction. Which of the passes is at fault, the others tell: two that agree, or, where
both sides have the same weights, the one that is far from the other side's.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from rldbg.analysis.explain.evidence import Evidence
from rldbg.analysis.explain.passes import SideStep
from rldbg.analysis.noise.coarse_logits import logits_roundoff
from rldbg.analysis.stages import Stage
from rldbg.analysis.tolerances import log_prob_error, roundoff_of

# How many times as far apart, and by how much at least, in the mean over tokens.
_TIMES, APART_AT_LEAST = 4.0, 1e-4
# Kernels for different shapes of a batch round some logits differently, or none: that one in eight is off by a unit
# roundoff is not a fault of the side where they do.
_COARSE_SHARE = 0.125
# The reference stays where it was while the policy moves: its distance from it, on two sides that train alike.
_MOVED_TIMES = 8.0
_FEWEST_ONE_SIGNED = 30
_FEWEST_HOLES = 4


class Certain(NamedTuple):
    """Where a difference is that noise does not explain."""

    stage: Stage
    kind: str
    field: str
    step: int
    update: tuple[int, int] = (0, 0)
    # What each side shows.
    a: object = "by one rule"
    b: object = "by another"


_PASSES = {
    "rollout_log_probs": (Stage.TRAJECTORY, "trajectory", "logprobs"),
    "old_log_probs": (Stage.OLD_LOG_PROBS, "old_log_probs", "old_log_probs"),
    "log_probs": (Stage.FORWARD, "forward_data", "log_probs"),
}
_Gaps = Mapping[tuple[str, str], np.ndarray]


def odd_passes(evidence: Evidence) -> Iterator[Certain]:
    """Passes of one side that differ as those of the other do not."""
    yield from _reference_follows(evidence)
    names = list(_PASSES)
    if _is_replayed(evidence):
        names.remove("rollout_log_probs")
    holes = [_holes(side, names) for side in evidence.both]
    for name in names:
        counts = [found.get(name, 0) for found in holes]
        if max(counts) >= _FEWEST_HOLES and not min(counts):
            said = [f"0 at {count} tokens where another pass with the same weights is not" for count in counts]
            yield Certain(*_PASSES[name], evidence.step, a=said[0], b=said[1])
            return
    sides = [_within(side, names) for side in evidence.both]
    between = _between(evidence, names)
    noise = float(np.median(list(between.values()))) if between and _is_first(evidence) else 0.0
    coarse = logits_roundoff(evidence.a.side, evidence.b.side, [evidence.step])
    least = max(APART_AT_LEAST, _COARSE_SHARE * coarse)
    for mine, other in (sides, sides[::-1]):
        odd = [pair for pair in mine if pair in other and _is_odd(mine[pair], other[pair], noise, least)]
        if odd:
            stage, kind, field = _PASSES[_at_fault(mine, odd, between)]
            yield Certain(stage, kind, field, evidence.step, a=_said(sides[0][odd[0]]), b=_said(sides[1][odd[0]]))
            return


def _said(gaps: np.ndarray) -> str:
    return f"passes with the same weights differ by {np.abs(gaps).mean():.2g} on average"


def _is_odd(mine: np.ndarray, other: np.ndarray, noise: float, least: float) -> bool:
    if not (mine.size and other.size and np.isfinite(mine).all() and np.isfinite(other).all()):
        return False
    size = float(np.abs(mine).mean())
    if size <= least:
        return False
    if size > _TIMES * (float(np.abs(other).mean()) + noise):
        return True
    return _is_one_signed(mine) and not _is_one_signed(other) and size > _TIMES * float(np.abs(other).mean())


def _is_one_signed(gaps: np.ndarray) -> bool:
    """Whether many different gaps all have one sign: rounding is as often up as down."""
    told = np.unique(gaps[np.abs(gaps) > APART_AT_LEAST / 10])
    return len(told) >= _FEWEST_ONE_SIGNED and bool((told > 0).all() or (told < 0).all())


def _at_fault(mine: _Gaps, odd: list[tuple[str, str]], between: Mapping[str, float]) -> str:
    """The first pass that is far from the other side's; else the one that the others disagree with."""
    names = [name for name in _PASSES if any(name in pair for pair in mine)]
    far = [
        name for name in names if name in between and between[name] > _TIMES * min(between.values()) + APART_AT_LEAST
    ]
    if far and len(between) > 1:
        return far[0]
    sizes = {pair: float(np.abs(gaps).mean()) for pair, gaps in mine.items()}
    worst = max(sizes.values())
    for name in names:
        rest = [size for pair, size in sizes.items() if name not in pair]
        if rest and max(rest) <= worst / _TIMES:
            return name
    return odd[0][0]


def _within(side: SideStep, names: list[str]) -> dict[tuple[str, str], np.ndarray]:
    """The gaps between the passes of one side before the first update of the step."""
    found = {}
    for pair in itertools.combinations(names, 2):
        rows = [values for sample in side.samples_at((0, 0)).values() if (values := sample.trained(*pair))]
        if rows:
            found[pair] = np.concatenate([one.astype(np.float64) - other for one, other, _ in rows])
    return found


def _holes(side: SideStep, names: list[str]) -> dict[str, int]:
    """At how many tokens each pass says exactly 0 where another is farther from it than passes differ elsewhere.

    A log prob of 0 says that no other token has a chance above roundoff. Rounding that moves other log probs by a
    thousandth changes these chances by a thousandth: it does not take them away.
    """
    found: dict[str, int] = defaultdict(int)
    for pair in itertools.permutations(names, 2):
        rows = [values for sample in side.samples_at((0, 0)).values() if (values := sample.trained(*pair))]
        if rows:
            one, other = (np.concatenate([row[place] for row in rows]).astype(np.float64) for place in (0, 1))
            both = (one != 0) & (other != 0)
            usual = float(np.abs(one - other)[both].max(initial=0.0))
            holes = (one == 0) & (np.abs(other) > max(_TIMES * usual, log_prob_error(roundoff_of("float32"))))
            found[pair[0]] = max(found[pair[0]], int(np.count_nonzero(holes)))
    return found


def _between(evidence: Evidence, names: list[str]) -> dict[str, float]:
    """How far each pass is from the other side's in the mean: what passes round, and after the first step what the
    weights have drifted apart, which all passes show alike."""
    view = Evidence(evidence.a.side, evidence.b.side, evidence.step)
    found = {name: view.tokens(name) for name in names}
    return {name: float(np.abs(pair[0] - pair[1]).mean()) for name, pair in found.items() if pair and pair[0].size}


def _is_first(evidence: Evidence) -> bool:
    """Whether both sides still have the same weights."""
    return evidence.step == min(evidence.a.side.steps() & evidence.b.side.steps())


def _is_replayed(evidence: Evidence) -> bool:
    """Whether one side has the other's rollout: after the first step it is not that of its own weights."""
    if _is_first(evidence):
        return False
    found = evidence.tokens("rollout_log_probs")
    return found is None or np.array_equal(*found)


def _reference_follows(evidence: Evidence) -> Iterator[Certain]:
    """The distance of the policy from the reference: far smaller on one side."""
    sizes = []
    for side in evidence.both:
        found = [values for item in side.samples.values() if (values := item.trained("ref_log_probs", "old_log_probs"))]
        gaps = np.concatenate([one.astype(np.float64) - other for one, other, _ in found]) if found else np.empty(0)
        if not gaps.size or not np.isfinite(gaps).all():
            return
        sizes.append(float(np.abs(gaps).mean()))
    if max(sizes) > _MOVED_TIMES * min(sizes) + 10 * APART_AT_LEAST and evidence.step > min(evidence.a.side.steps()):
        a, b = (f"{size:.2g} from the policy" for size in sizes)
        yield Certain(Stage.FORWARD, "forward_data", "ref_log_probs", evidence.step, a=a, b=b)
