"""Whether differences of log probs are shaped like noise: a test per structure, with a stated rate of false alarms.

Rounding has no favourite: it is as often up as down, in every position, turn, rank and reward. A bug far smaller than
the noise shows by having one. All tests are of ranks and signs, so they hold for any distribution of the noise. What is
independent is a prompt: samples of a group share contexts, and the same context is rounded the same way each time, so
tests count groups. Their p-values are multiplied by the number of tests (Bonferroni): a clean comparison has
any finding with a probability of at most FALSE_ALARMS.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from rldbg.analysis.samples import StepSamples, pair_samples
from rldbg.analysis.side import Side
from rldbg.analysis.tokens import SampleTokens, read_tokens

FALSE_ALARMS = 1e-3
_QUANTITIES = ("rollout_log_probs", "old_log_probs", "log_probs")
_BEYOND = (1e-3, 1e-2, 1e-1)
_FEWEST_GROUPS = 6
_TOKEN_CLASSES = 16


class _Row(NamedTuple):
    """The differences of one sample's trained tokens, B minus A."""

    sample: SampleTokens
    rank: int
    positions: np.ndarray
    gap: np.ndarray


@dataclass(frozen=True, slots=True)
class Structure:
    """One shape that noise does not have; `chance` is how often clean noise would show it, over all tests."""

    quantity: str
    shape: str
    effect: float
    chance: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class NoiseStatistics:
    """How large the difference of a quantity is, token by token, and how many tests found no shape in it."""

    quantity: str
    tokens: int
    mean: float
    median_abs: float
    p99_abs: float
    largest: float
    beyond: dict[str, float]
    tests: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def structures(a: Side, b: Side, steps: Sequence[int]) -> tuple[list[Structure], list[NoiseStatistics]]:
    """The shapes found in the differences of log probs over some steps, and what the differences are like."""
    found: list[Structure] = []
    statistics: list[NoiseStatistics] = []
    for quantity in _QUANTITIES:
        rows = [row for step in steps for row in _rows(a, b, step, quantity)]
        gaps = np.concatenate([row.gap for row in rows]) if rows else np.empty(0)
        if gaps.size == 0 or not gaps.any() or not np.isfinite(gaps).all():
            continue
        tests = list(_tests(rows))
        statistics.append(_statistics(quantity, gaps, len(tests)))
        for shape, effect, chance in tests:
            corrected = min(1.0, chance * len(tests))
            if corrected <= FALSE_ALARMS / len(_QUANTITIES):
                found.append(Structure(quantity, shape, effect, corrected))
    return found, statistics


def _rows(a: Side, b: Side, step: int, quantity: str) -> Iterator[_Row]:
    """Of the first pass over each sample, before parameters may have drifted apart within the step."""
    known = [read_tokens(side, step, None if quantity != "log_probs" else (0, 0)) for side in (a, b)]
    pairs = pair_samples(known[0], known[1], StepSamples(a, step), StepSamples(b, step)).to_b
    for one, other in pairs.items():
        left, right = known[0][one], known[1][other]
        values = left.trained(quantity), right.trained(quantity)
        if values[0] is None or values[1] is None or not np.array_equal(left.tokens, right.tokens):
            continue
        if len(values[0][0]) == len(values[1][0]) and len(values[0][0]):
            gap = values[1][0].astype(np.float64) - values[0][0]
            yield _Row(left, left.quantities[quantity].source.rank, values[0][1], gap)


def _statistics(quantity: str, gaps: np.ndarray, tests: int) -> NoiseStatistics:
    size = np.abs(gaps)
    beyond = {f"{bound:g}": float((size > bound).mean()) for bound in _BEYOND}
    middle, high = (float(value) for value in np.quantile(size, (0.5, 0.99)))
    return NoiseStatistics(quantity, len(gaps), float(gaps.mean()), middle, high, float(size.max()), beyond, tests)


def _tests(rows: list[_Row]) -> Iterator[tuple[str, float, float]]:
    """Each test's name, effect and p-value. A number per group says how the group leans."""
    leanings: list[tuple[str, Callable[[_Row], float | None]]] = [
        ("bias", lambda row: float(row.gap.mean())),
        ("grows with the position", _slope),
        ("differs after the first turn", _later_turns),
    ]
    for name, lean in leanings:
        values = _by_group(rows, lean)
        if len(values) >= _FEWEST_GROUPS:
            yield name, float(np.median(values)), _signed_rank(values)
    numbers = _by_group(rows, lambda row: float(row.gap.mean()))
    lengths = _by_group(rows, lambda row: float(len(row.gap)))
    if len(numbers) >= _FEWEST_GROUPS and np.ptp(lengths) > 0:
        correlation, chance = _rank_correlation(lengths, numbers)
        yield "grows with the length", correlation, chance
    for name, contrast in (("reward", _by_reward), ("rank", _by_rank)):
        values = contrast(rows)
        if len(values) >= _FEWEST_GROUPS:
            yield f"depends on the {name}", float(np.median(values)), _signed_rank(values)
    yield from _token_classes(rows)


def _by_group(rows: list[_Row], lean: Callable[[_Row], float | None]) -> np.ndarray:
    groups: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        value = lean(row)
        if value is not None:
            groups[row.sample.sample.group_id].append(value)
    return np.asarray([float(np.mean(values)) for values in groups.values()])


def _slope(row: _Row) -> float | None:
    if len(row.gap) < 3:
        return None
    place = row.positions - row.positions.mean()
    return float(place @ row.gap / (place @ place))


def _later_turns(row: _Row) -> float | None:
    from rldbg.analysis.explain.subsets import turn_of

    later = turn_of(row.sample.loss_mask)[row.positions] > 1
    return float(row.gap[later].mean() - row.gap[~later].mean()) if later.any() and not later.all() else None


def _by_reward(rows: list[_Row]) -> np.ndarray:
    """In each group the samples above its mean reward against those below."""
    return _contrast(rows, lambda row, members: (row.sample.reward or 0.0) > _mean_reward(members))


def _mean_reward(members: list[_Row]) -> float:
    return float(np.mean([row.sample.reward or 0.0 for row in members]))


def _by_rank(rows: list[_Row]) -> np.ndarray:
    lowest = min(row.rank for row in rows)
    return _contrast(rows, lambda row, _: row.rank > lowest)


def _contrast(rows: list[_Row], rule: Callable[[_Row, list[_Row]], bool]) -> np.ndarray:
    groups: dict[str, list[_Row]] = defaultdict(list)
    for row in rows:
        groups[row.sample.sample.group_id].append(row)
    found = []
    for members in groups.values():
        sides = [[float(row.gap.mean()) for row in members if rule(row, members) is side] for side in (True, False)]
        if sides[0] and sides[1]:
            found.append(float(np.mean(sides[0]) - np.mean(sides[1])))
    return np.asarray(found)


def _token_classes(rows: list[_Row]) -> Iterator[tuple[str, float, float]]:
    """The most frequent tokens, each against all others of its group."""
    every = np.concatenate([row.sample.tokens[row.positions] for row in rows])
    names, counts = np.unique(every, return_counts=True)
    for token in names[np.argsort(-counts)][:_TOKEN_CLASSES].tolist():

        def lean(row: _Row, token: int = token) -> float | None:
            own = row.sample.tokens[row.positions] == token
            return float(row.gap[own].mean() - row.gap[~own].mean()) if own.any() and not own.all() else None

        values = _by_group(rows, lean)
        if len(values) >= _FEWEST_GROUPS:
            yield f"is different at token {token}", float(np.median(values)), _signed_rank(values)


def _signed_rank(values: np.ndarray) -> float:
    """Two-sided p-value of Wilcoxon's signed-rank test: symmetric around 0? By its normal approximation, for few
    values the exact chance that all have one sign is the smallest possible."""
    told = values[values != 0]
    if len(told) < _FEWEST_GROUPS:
        return 1.0
    ranks = np.argsort(np.argsort(np.abs(told))) + 1.0
    count = len(told)
    total = float(ranks[told > 0].sum())
    spread = math.sqrt(count * (count + 1) * (2 * count + 1) / 24)
    score = max(abs(total - count * (count + 1) / 4) - 0.5, 0.0) / spread
    return max(math.erfc(score / math.sqrt(2)), 2.0 ** (1 - count))


def _rank_correlation(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Spearman's correlation and its two-sided p-value, by the normal approximation."""
    first, second = (np.argsort(np.argsort(values)).astype(np.float64) for values in (x, y))
    correlation = float(np.corrcoef(first, second)[0, 1])
    return correlation, math.erfc(abs(correlation) * math.sqrt(len(x) - 1) / math.sqrt(2))
