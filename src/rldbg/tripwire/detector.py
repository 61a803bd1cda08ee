"""Whether a value is unusual after those before it. Pure arithmetic on a short history; no clock, no files.

The usual value is the median of the last few; the noise is the median change from step to step, so that a trend alone
is never unusual. Both ignore single outliers.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from rldbg.tripwire.rules import WatchRule

_WINDOW = 24
_LEVEL_OF = 5
# The median absolute difference of two normal values with standard deviation 1.
_NORMAL = 0.954
_STEEP_STEPS = 2
# Noise below this share of the value is rounding.
_ROUNDING = 1e-3


class Unusual(NamedTuple):
    """A value that a rule caught, what it usually is, and how many times the usual noise lies between."""

    value: float
    usual: float
    sigmas: float


class Detector:
    """One rule over the values of one measure, in the order of the steps."""

    def __init__(self, rule: WatchRule) -> None:
        self.rule = rule
        self._history: deque[float] = deque(maxlen=_WINDOW)
        self._in_a_row = 0
        self._steep_in_a_row = 0
        self._quiet = 0
        self._best = -math.inf

    @property
    def usual(self) -> float:
        return median(list(self._history)[-_LEVEL_OF:]) if self._history else math.nan

    def look(self, value: float) -> Unusual | None:
        """After a value is caught, the rule is silent until as many steps as it needs for its history were usual: what
        lasts is caught once."""
        if not math.isfinite(value):
            is_its_own = self.rule.moves == "not-finite"
            caught = is_its_own and self._quiet == 0
            self._quiet = self.rule.history if is_its_own else max(self._quiet - 1, 0)
            return Unusual(value, self.usual, math.inf) if caught else None
        unusual = self._declined(value) if self.rule.moves == "declines" else self._judged(value)
        self._history.append(value)
        lasts = self._lasts(unusual)
        if self._quiet:
            self._quiet = self._quiet - 1 if unusual is None else self.rule.history
            return None
        if not lasts:
            return None
        self._quiet = self.rule.history
        return unusual

    def _lasts(self, unusual: Unusual | None) -> bool:
        rule, sigmas = self.rule, unusual.sigmas if unusual is not None else 0.0
        self._in_a_row = self._in_a_row + 1 if unusual is not None else 0
        self._steep_in_a_row = self._steep_in_a_row + 1 if rule.steep_sigmas and sigmas >= rule.steep_sigmas else 0
        return unusual is not None and (self._in_a_row >= rule.in_a_row or self._steep_in_a_row >= _STEEP_STEPS)

    def _declined(self, value: float) -> Unusual | None:
        """Whether a value is far below the best few of the run: a fall over several steps, of which none is unusual by
        itself; `in_a_row` tells it from noise."""
        enough = len(self._history) >= self.rule.history
        level = median([*list(self._history)[1 - _LEVEL_OF :], value])
        best = self._best = max(self._best, level) if enough else self._best
        noise = max(self._noise(), _ROUNDING * abs(best))
        far = best - value
        if not enough or far < self.rule.least or far < self.rule.sigmas * noise or value >= best / self.rule.factor:
            return None
        return Unusual(value, best, far / noise)

    def _noise(self) -> float:
        """A measure that has only certain values, as the mean of a few rewards that are 0 or 1, is noisy by one step of
        them, also where it happened to stay the same for a while."""
        return max(_usual_change(self._history), _smallest_step(list(self._history)))

    def _judged(self, value: float) -> Unusual | None:
        rule = self.rule
        if rule.moves == "not-finite" or len(self._history) < rule.history:
            return None
        usual = self.usual
        noise = max(self._noise(), _ROUNDING * abs(usual))
        far = value - usual if rule.moves == "up" else usual - value if rule.moves == "down" else abs(value - usual)
        sigmas = far / noise if noise else math.inf
        if far < rule.least or far <= 0 or sigmas < rule.sigmas or not _is_beyond(rule, value, usual):
            return None
        if rule.log_sigmas and self._is_usual_as_ratio(value):
            return None
        return Unusual(value, usual, sigmas)

    def _is_usual_as_ratio(self, value: float) -> bool:
        """Whether the usual change as a ratio explains a value: gradient norms and divergences have heavy tails."""
        logs = [math.log(each) for each in self._history if each > 0]
        if len(logs) < self.rule.history or value <= 0:
            return False
        far = abs(math.log(value) - median(logs[-_LEVEL_OF:]))
        return far < self.rule.log_sigmas * _usual_change(logs)


def _usual_change(values: Iterable[float]) -> float:
    """The standard deviation, from the median change from step to step."""
    changes = [abs(after - before) for before, after in pairwise(values)]
    return median(changes) / _NORMAL if changes else 0.0


def _smallest_step(values: Sequence[float]) -> float:
    """Between values that were seen more than once, if most were: those of a continuous measure hardly ever are."""
    repeated = {value: times for value, times in Counter(values).items() if times > 1}
    if 2 * sum(repeated.values()) <= len(values):
        return 0.0
    return min((after - before for before, after in pairwise(sorted(repeated))), default=0.0)


def _is_beyond(rule: WatchRule, value: float, usual: float) -> bool:
    """Whether the value is far off as a ratio; for measures around 0 the size counts."""
    if rule.moves == "up":
        return value > rule.factor * abs(usual)
    if rule.moves == "down":
        return value < usual / rule.factor
    return abs(value) > rule.factor * abs(usual)
