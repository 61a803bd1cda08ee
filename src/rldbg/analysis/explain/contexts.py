"""Tokens sampled in the same context: what two log probs of the same model must have in common there.

In one context, log p of temperature T is z / T - log Z(T): the difference between two tokens' log probs is exactly
proportional to 1 / T, and a filter that renormalises (top-k, top-p) adds the same number to all of them. Samples of a
group share contexts, so the two can be distinguished without knowing a single logit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from rldbg.analysis.explain.evidence import Evidence, Explanation, Recomputed, SamplePair, fit_factor, largest
from rldbg.analysis.explain.passes import SideStep
from rldbg.analysis.tokens import SampleTokens

# Two roundings of log probs of magnitude ~10 in single precision, with a margin.
NOISE = 2e-4
_FEWEST = 4
# Sixteen roundings to bfloat16 of a number of the size of 1.
_ROUNDED = 16 * 2.0**-8
_FEWEST_SCATTERED = 16
_FEWEST_REPEATED = 3
# No temperature is ten times another, and noise is no signal.
_MOST, _SIGNAL = 10.0, 10.0

Draws = dict[bytes, dict[int, tuple[float, float]]]
_Gaps = dict[tuple[bytes, int], list[float]]


@dataclass(frozen=True, slots=True)
class TemperatureFit:
    """`factor` times the differences of the second log probs gives those of the first, up to `residual`."""

    factor: float
    residual: float
    pairs: int
    first: np.ndarray = field(default_factory=lambda: np.empty(0), compare=False, repr=False)
    second: np.ndarray = field(default_factory=lambda: np.empty(0), compare=False, repr=False)

    def recomputed(self, second: str, first: str) -> Recomputed:
        """The second's differences times the factor beside the first's, under these names."""
        return Recomputed(self.second, self.first, self.factor * self.second, (second, first))

    @property
    def fits(self) -> bool:
        noise = NOISE * max(1.0, self.factor)
        # Log probs that are the same for all tokens of a context follow from no temperature.
        are_told_apart = largest(self.first) > _SIGNAL * noise and largest(self.second) > _SIGNAL * noise
        is_plausible = 1 / _MOST <= self.factor <= _MOST
        return self.pairs >= _FEWEST and self.residual <= noise and is_plausible and are_told_apart


def within(samples: Iterable[SampleTokens], first: str, second: str) -> Draws:
    """Two quantities of one side's own tokens, by context and token."""
    found: Draws = defaultdict(dict)
    for sample in samples:
        values = sample.trained(first, second)
        if values is not None:
            for one, other, position in zip(*values, strict=True):
                if not _drawn(sample, position):
                    continue
                found[context_of(sample, position)][int(sample.tokens[position])] = (float(one), float(other))
    return found


def between(pairs: Iterable[SamplePair], quantity: str) -> Draws:
    """One quantity of both sides where both sampled the same token in the same context, in any sample."""
    sides: tuple[dict[bytes, dict[int, float]], ...] = (defaultdict(dict), defaultdict(dict))
    for pair in pairs:
        for sample, table in zip(pair, sides, strict=True):
            values = sample.trained(quantity)
            if values is not None:
                for value, position in zip(*values, strict=True):
                    table[context_of(sample, position)][int(sample.tokens[position])] = float(value)
    return {
        context: {
            token: (value, sides[1][context][token]) for token, value in drawn.items() if token in sides[1][context]
        }
        for context, drawn in sides[0].items()
        if context in sides[1]
    }


def _drawn(sample: SampleTokens, position: int) -> bool:
    """Whether the policy sampled the token; environment tokens have no version."""
    versions = sample.quantities.get("policy_versions")
    return versions is None or int(versions.values[position - versions.start]) >= 0


def context_of(sample: SampleTokens, position: int) -> bytes:
    return np.asarray(sample.tokens[:position], dtype="<i8").tobytes()


def fit_temperature(draws: Draws) -> TemperatureFit:
    """The inverse temperature of the first quantity in units of the second's."""
    first, second = [], []
    for drawn in draws.values():
        values = np.asarray(list(drawn.values()))
        if len(values) > 1:
            first.append(values[1:, 0] - values[0, 0])
            second.append(values[1:, 1] - values[0, 1])
    if not first:
        return TemperatureFit(1.0, float("inf"), 0)
    one, other = np.concatenate(first), np.concatenate(second)
    factor = fit_factor(other, one)
    return TemperatureFit(factor, largest(one - factor * other), len(one), one, other)


def softmax_of_probabilities(draws: Draws) -> tuple[np.ndarray, np.ndarray]:
    """Differences between tokens of a context in the second quantity, before and after subtracting those of the
    first one's probabilities: probabilities that were normalised as if they were logits leave nothing."""
    before, after = [], []
    for drawn in draws.values():
        values = np.asarray(list(drawn.values()))
        if len(values) > 1:
            before.append(values[1:, 1] - values[0, 1] - (values[1:, 0] - values[0, 0]))
            after.append(values[1:, 1] - values[0, 1] - (np.exp(values[1:, 0]) - np.exp(values[0, 0])))
    return (np.concatenate(before), np.concatenate(after)) if before else (np.empty(0), np.empty(0))


def offsets(draws: Draws, *, skip_zeros: bool = False) -> Iterator[np.ndarray]:
    """First minus second quantity, context by context."""
    for drawn in draws.values():
        values = np.asarray([pair for pair in drawn.values() if pair[0] != 0 or not skip_zeros])
        if len(values):
            yield values[:, 0] - values[:, 1]


def scatter(evidence: Evidence) -> Iterator[Explanation]:
    """On one side only, old log probs and those of the first training pass scatter around each other without bias.

    Rounding does the same whenever the same token follows the same context; noise does not. Without tokens that occur
    twice nothing is reported.
    """
    found = [_between_passes(side) for _, side in evidence.sides]
    gaps = [np.asarray([gap for same in one.values() for gap in same]) for one in found]
    for (label, _), table, mine, other in zip(evidence.sides, found, gaps, reversed(gaps), strict=True):
        if min(len(mine), len(other)) < _FEWEST_SCATTERED or largest(other) > NOISE or largest(mine) <= NOISE:
            continue
        # Rounding and noise reach all tokens.
        if np.mean(mine != 0) < 0.5:
            continue
        spread = float(mine.std())
        repeated = [max(same) - min(same) for same in table.values() if len(same) > 1]
        if abs(float(mine.mean())) > 4 * spread / np.sqrt(len(mine)) or len(repeated) < _FEWEST_REPEATED:
            continue
        text = f"{label}'s old log probs and its first training pass scatter around each other by {spread:.2g}, "
        facts = {"side": label, "scatter": spread}
        if max(repeated) <= NOISE and largest(mine) <= _ROUNDED:
            text += "the same way wherever a token follows the same context: lower precision in one of the two"
            yield Explanation("precision", text, largest(mine), _ROUNDED, facts, 0.7)
        elif max(repeated) > NOISE:
            text += "differently each time a token follows the same context: noise in one of the two, such as dropout"
            yield Explanation("noise", text, parameters=facts, share=0.55)


def _between_passes(side: SideStep) -> _Gaps:
    """Old minus new log prob in the first optimizer step, when nothing has been learned yet, by context and token."""
    gaps: _Gaps = defaultdict(list)
    for sample in side.samples_at((0, 0)).values():
        values = sample.trained("old_log_probs", "log_probs")
        for old, new, position in zip(*values, strict=True) if values else ():
            gaps[context_of(sample, position), int(sample.tokens[position])].append(float(old) - float(new))
    return gaps
