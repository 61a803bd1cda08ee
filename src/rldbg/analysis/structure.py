"""Whether differences of log probs are shaped like noise: a test per structure, with a stated rate of false alarms.

Rounding is unbiased: it is as often up as down, in every position, turn, rank and reward. A bug far smaller than the
noise shows by its bias. All tests are of ranks and signs, so they hold for any distribution of the noise. What is
independent is a prompt: samples of a group share contexts, and the same context is rounded the same way each time, so
tests count groups. Their p-values are multiplied by the number of tests (Bonferroni): a clean comparison has any
finding with a probability of at most FALSE_ALARMS.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from rldbg.analysis.noise.tensors import GRADIENT, PARAMETER
from rldbg.analysis.samples import StepSamples, pair_samples
from rldbg.analysis.side import Side
from rldbg.analysis.tokens import SampleTokens, read_tokens
from rldbg.recording import RecordKey

FALSE_ALARMS = 1e-3
_QUANTITIES = ("rollout_log_probs", "old_log_probs", "log_probs")
# Tested layer by layer (layer_structure).
TENSOR_KINDS = (GRADIENT, PARAMETER)
# A shape's name, its effect and its p-value.
Test = tuple[str, float, float]
_BEYOND = (1e-3, 1e-2, 1e-1)
# Fewer independent values show nothing.
FEWEST = 6
_CLASSES = 16


class _Row(NamedTuple):
    """The differences of one sample's trained tokens, B minus A."""

    sample: SampleTokens
    source: RecordKey
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
    """How large the difference of a quantity is, token by token, and how many tests of its shape were made.

    `mean`, which is k1, and `k3` estimate the KL divergence of B from A; `by_step` is the median |difference| of each
    step.
    """

    quantity: str
    tokens: int
    mean: float
    k3: float
    median_abs: float
    p99_abs: float
    largest: float
    beyond: dict[str, float]
    by_step: dict[int, float]
    tests: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def structures(a: Side, b: Side, steps: Sequence[int]) -> tuple[list[Structure], list[NoiseStatistics]]:
    """The shapes found in the differences of log probs over some steps, and what the differences are like."""
    found: list[Structure] = []
    statistics: list[NoiseStatistics] = []
    for quantity in _QUANTITIES:
        by_step = {step: some for step in steps if (some := list(_rows(a, b, step, quantity)))}
        rows = [row for some in by_step.values() for row in some]
        gaps = _gaps(rows)
        if gaps.size == 0 or not gaps.any() or not np.isfinite(gaps).all():
            continue
        tests = list(_tests(rows))
        growth = {step: float(np.median(np.abs(_gaps(some)))) for step, some in by_step.items()}
        statistics.append(_statistics(quantity, gaps, growth, len(tests)))
        found += rare_ones(quantity, tests)
    return found, statistics


def rare_ones(quantity: str, tests: Sequence[Test]) -> list[Structure]:
    """The shapes of one quantity that noise shows too rarely, over all tests of all quantities."""
    corrected = [(shape, effect, min(1.0, chance * len(tests))) for shape, effect, chance in tests]
    limit = FALSE_ALARMS / (len(_QUANTITIES) + len(TENSOR_KINDS))
    return [Structure(quantity, *item) for item in corrected if item[2] <= limit]


def _rows(a: Side, b: Side, step: int, quantity: str) -> Iterator[_Row]:
    """Rows of the first pass over each sample, before parameters may have drifted apart within the step."""
    known = [read_tokens(side, step, None if quantity != "log_probs" else (0, 0)) for side in (a, b)]
    pairs = pair_samples(known[0], known[1], StepSamples(a, step), StepSamples(b, step)).to_b
    for one, other in pairs.items():
        left, right = known[0][one], known[1][other]
        values = left.trained(quantity), right.trained(quantity)
        if values[0] is None or values[1] is None or not np.array_equal(left.tokens, right.tokens):
            continue
        if len(values[0][0]) == len(values[1][0]) and len(values[0][0]):
            gap = values[1][0].astype(np.float64) - values[0][0]
            yield _Row(left, left.quantities[quantity].source, values[0][1], gap)


def _gaps(rows: Sequence[_Row]) -> np.ndarray:
    return np.concatenate([row.gap for row in rows]) if rows else np.empty(0)


def _statistics(quantity: str, gaps: np.ndarray, by_step: dict[int, float], tests: int) -> NoiseStatistics:
    size, mean = np.abs(gaps), float(gaps.mean())
    beyond = {f"{bound:g}": float((size > bound).mean()) for bound in _BEYOND}
    middle, high = (float(value) for value in np.quantile(size, (0.5, 0.99)))
    with np.errstate(over="ignore"):
        k3 = float((np.expm1(-gaps) + gaps).mean())
    return NoiseStatistics(quantity, len(gaps), mean, k3, middle, high, float(size.max()), beyond, by_step, tests)


def _tests(rows: list[_Row]) -> Iterator[Test]:
    """Each test's name, effect and p-value. A number per group says how the group leans."""
    leanings: list[tuple[str, Callable[[_Row], float | None]]] = [
        ("bias", _mean),
        ("grows with the position", _slope),
        ("differs after the first turn", _later_turns),
    ]
    for name, lean in leanings:
        values = _by_group(rows, lean)
        if len(values) >= FEWEST:
            yield name, float(np.median(values)), signed_rank(values)
    numbers = _by_group(rows, _mean)
    lengths = _by_group(rows, lambda row: float(len(row.gap)))
    if len(numbers) >= FEWEST and np.ptp(lengths) > 0:
        correlation, chance = _rank_correlation(lengths, numbers)
        yield "grows with the length", correlation, chance
    values = _contrast(rows, lambda row, members: (row.sample.reward or 0.0) > _mean_reward(members))
    if len(values) >= FEWEST:
        yield "depends on the reward", float(np.median(values)), signed_rank(values)
    yield from _classes(rows, "rank", lambda row: row.source.rank)
    yield from _classes(rows, "micro-batch", lambda row: row.source.micro)
    yield from _classes(rows, "sample of each group", lambda row: row.sample.sample.run_id)
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


def _mean_reward(members: list[_Row]) -> float:
    return float(np.mean([row.sample.reward or 0.0 for row in members]))


def _classes(rows: list[_Row], name: str, of: Callable[[_Row], int]) -> Iterator[Test]:
    """Each rank, micro-batch or sample number against all others: within groups, or where it has whole groups, between
    them."""
    values = sorted({of(row) for row in rows})
    for value in values[:_CLASSES] if len(values) > 1 else ():

        def is_own(row: _Row, _: object, value: int = value) -> bool:
            return of(row) == value

        shape = f"is different in {name} {value}"
        within = _contrast(rows, is_own)
        if len(within) >= FEWEST:
            yield shape, float(np.median(within)), signed_rank(within)
            continue
        sides = [_by_group([row for row in rows if is_own(row, ()) is own], _mean) for own in (True, False)]
        if min(len(side) for side in sides) >= FEWEST // 2 and not len(within):
            yield shape, float(np.median(sides[0]) - np.median(sides[1])), _rank_sum(*sides)


def _mean(row: _Row) -> float:
    return float(row.gap.mean())


def _contrast(rows: list[_Row], rule: Callable[[_Row, list[_Row]], bool]) -> np.ndarray:
    groups: dict[str, list[_Row]] = defaultdict(list)
    for row in rows:
        groups[row.sample.sample.group_id].append(row)
    found = []
    for members in groups.values():
        sides = [[_mean(row) for row in members if rule(row, members) is side] for side in (True, False)]
        if sides[0] and sides[1]:
            found.append(float(np.mean(sides[0]) - np.mean(sides[1])))
    return np.asarray(found)


def _token_classes(rows: list[_Row]) -> Iterator[Test]:
    """The most frequent tokens, each against all others of its group."""
    every = np.concatenate([row.sample.tokens[row.positions] for row in rows])
    names, counts = np.unique(every, return_counts=True)
    for token in names[np.argsort(-counts)][:_CLASSES].tolist():

        def lean(row: _Row, token: int = token) -> float | None:
            own = row.sample.tokens[row.positions] == token
            return float(row.gap[own].mean() - row.gap[~own].mean()) if own.any() and not own.all() else None

        values = _by_group(rows, lean)
        if len(values) >= FEWEST:
            yield f"is different at token {token}", float(np.median(values)), signed_rank(values)


def signed_rank(values: np.ndarray) -> float:
    """Two-sided p-value of Wilcoxon's signed-rank test: symmetric around 0? By its normal approximation, for few
    values the exact chance that all have one sign is the smallest possible."""
    told = values[values != 0]
    if len(told) < FEWEST:
        return 1.0
    ranks = np.argsort(np.argsort(np.abs(told))) + 1.0
    count = len(told)
    total = float(ranks[told > 0].sum())
    spread = math.sqrt(count * (count + 1) * (2 * count + 1) / 24)
    score = max(abs(total - count * (count + 1) / 4) - 0.5, 0.0) / spread
    return max(math.erfc(score / math.sqrt(2)), 2.0 ** (1 - count))


def _rank_sum(x: np.ndarray, y: np.ndarray) -> float:
    """Two-sided p-value of the rank-sum test: is x as often above y as below? By its normal approximation; no chance
    is below that of the most extreme order."""
    ranks = np.argsort(np.argsort(np.concatenate([x, y]))) + 1.0
    count, whole = len(x), len(x) + len(y)
    off = abs(float(ranks[:count].sum()) - count * (whole + 1) / 2)
    spread = math.sqrt(count * len(y) * (whole + 1) / 12)
    return max(math.erfc(max(off - 0.5, 0.0) / spread / math.sqrt(2)), min(1.0, 2 / math.comb(whole, count)))


def _rank_correlation(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Spearman's correlation and its two-sided p-value, by the normal approximation."""
    first, second = (np.argsort(np.argsort(values)).astype(np.float64) for values in (x, y))
    correlation = float(np.corrcoef(first, second)[0, 1])
    return correlation, math.erfc(abs(correlation) * math.sqrt(len(x) - 1) / math.sqrt(2))
