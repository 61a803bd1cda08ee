"""Parameters whose gradients were not recorded: differences by rounding have no structure, those by a different rule
do. Without gradients it is unknown which elements had one near zero, and whether passes were computed in bfloat16. So
the size of a difference says little: rounding may move any element by two whole steps. Its shape says more. Where a
gradient's error is divided by its size, few elements differ much and most hardly (a ratio of two random numbers has a
heavy tail); another learning rate or decay moves every element by a multiple of its own movement or value, other betas
move all of them by similar amounts, and a tensor that an optimizer leaves out does not move at all. docs/tolerances.md
says more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rldbg.analysis.noise.tensors import PARAMETER, TensorHistory, tensor_pair
from rldbg.analysis.tolerances import Update, roundoff_of

# Of 16 elements that differ at random, two regressors explain nine tenths with a chance of one in ten million.
_FEWEST_OF_A_TENSOR, _EXPLAINED = 16, 0.9
# Errors of one token may make a gradient's error follow the gradient, by at most what products in bfloat16 round. What
# follows a movement this closely is not rounding, however small it is.
_ROUNDED, _EXACTLY = 10 * roundoff_of("bfloat16"), 0.999
# The 99 % quantile of |x / y| is 63 times its median (measured on clean pairs: 10 or more).
_FEWEST_OF_ALL, _TAIL = 256, 5.0
# Half of all elements go more than this share of the way of most: Adam (measured: 0.35 to 1), not SGD (0.07 to 0.16).
_NORMALISED = 0.25
# Rounding moves half of all elements by this share of a step only where log probs are further apart than that.
_MOST, _FAR_APART = 0.25, 0.05
# Differences of a few roundings of the values themselves are multiples of anything.
_ROUNDINGS = 4 * roundoff_of("float32")
# Of each tensor as many elements tell how they are distributed.
_ELEMENTS = 4096
# Two whole steps of one update, as a share of the weights' root mean square.
_SHARE_OF_WEIGHTS = 0.1
# A single outlier must not decide how the others are distributed.
_OUTLIER = 8.0


@dataclass(frozen=True, slots=True)
class _Movement:
    """One tensor in one update: what the sides' movements differ by, A's movement, and the values it started from."""

    gap: np.ndarray
    way: np.ndarray
    value: np.ndarray
    # Whether one side left it bit for bit as it was and the other did not.
    is_left_out: bool

    @property
    def moved(self) -> np.ndarray:
        moved: np.ndarray = (self.gap != 0) | (self.way != 0)
        return moved


class Unstructured:
    """Until which update the differences of each tensor look like rounding."""

    def __init__(
        self,
        histories: Sequence[TensorHistory],
        step_sizes: Mapping[Update, float],
        log_prob_gaps: Mapping[Update, float],
    ) -> None:
        self._ends: dict[int, Update] = {}
        self._updates = sorted(step_sizes)
        # With one recorded state the size of a step is unknown, but no update replaces the weights altogether.
        self._start = (
            _SHARE_OF_WEIGHTS * _size_of_weights(histories, self._updates[0]) if len(self._updates) == 1 else 0.0
        )
        for number, update in enumerate(self._updates):
            # Nothing is known of how the first update moved them: the second speaks for it.
            since = self._updates[0] if number == 1 else update
            sizes, ways, values = [], [], []
            for place, history in enumerate(histories):
                item = _movement(history, self._updates, number)
                if item is not None:
                    sizes.append(_some(np.abs(item.gap[item.moved])))
                    ways.append(_some(np.abs(item.way[item.moved])))
                    values.append(_some(np.abs(item.value)))
                    if item.is_left_out or _follows_a_rule(item):
                        self._ends.setdefault(place, since)
            step = step_sizes[update] if number else 0.0
            gaps, typical = _joined(sizes), float(np.median(_joined(values))) if values else 0.0
            if _differ_alike(gaps, _joined(ways), typical) or _differ_much(
                gaps, typical, step, log_prob_gaps.get(update)
            ):
                for place in range(len(histories)):
                    self._ends.setdefault(place, since)

    def allows(self, number: int, history: TensorHistory, step_sizes: Mapping[Update, float]) -> Iterator[float]:
        """How much an element of this tensor may differ after each of its updates: two whole steps of each so far."""
        way = self._start
        for update in sorted(history.parameters):
            way += 2 * step_sizes[update]
            yield way if number not in self._ends or update < self._ends[number] else 0.0


def _size_of_weights(histories: Sequence[TensorHistory], update: Update) -> float:
    """The root mean square of A's parameters."""
    known = [
        _some(tensor_pair(item.parameters[update], PARAMETER)[0]) for item in histories if update in item.parameters
    ]
    values = _joined(known)
    values = values[np.isfinite(values)]
    return float(np.sqrt(np.mean(np.square(values)))) if values.size else 0.0


def _some(values: np.ndarray) -> np.ndarray:
    """Enough elements of a tensor to know how they are distributed."""
    flat = values.ravel()
    return flat[:: max(1, flat.size // _ELEMENTS)]


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.empty(0)


def _movement(history: TensorHistory, updates: Sequence[Update], number: int) -> _Movement | None:
    """None where a state is missing. Before the first recorded state both sides are taken to be the same."""
    if updates[number] not in history.parameters:
        return None
    now = tensor_pair(history.parameters[updates[number]], PARAMETER)
    if number == 0:
        return _Movement(now[0] - now[1], np.zeros_like(now[0]), now[0], is_left_out=False)
    if updates[number - 1] not in history.parameters:
        return None
    before = tensor_pair(history.parameters[updates[number - 1]], PARAMETER)
    ways = [later - earlier for later, earlier in zip(now, before, strict=True)]
    return _Movement(ways[0] - ways[1], ways[0], before[0], is_left_out=ways[0].any() != ways[1].any())


def _follows_a_rule(item: _Movement) -> bool:
    """Whether a tensor's elements differ by multiples of their movement and of their value."""
    gap, way, value = (part[item.moved] for part in (item.gap, item.way, item.value))
    typical = float(np.median(np.abs(gap))) if gap.size >= _FEWEST_OF_A_TENSOR else 0.0
    if not typical > 0 or typical <= _ROUNDINGS * float(np.median(np.abs(value))):
        return False
    gap = np.clip(gap, -_OUTLIER * typical, _OUTLIER * typical)
    inputs = np.stack([way, value], axis=1)
    factors = np.linalg.lstsq(inputs, gap, rcond=None)[0]
    explained = 1 - np.square(gap - inputs @ factors).sum() / np.square(gap).sum()
    is_large = np.square(gap).sum() > np.square(_ROUNDED * way).sum()
    return bool(explained >= _EXACTLY or (explained >= _EXPLAINED and is_large))


def _differ_alike(gaps: np.ndarray, ways: np.ndarray, value: float) -> bool:
    """Whether elements that an optimizer moves alike, whatever their gradients, differ alike."""
    if gaps.size < _FEWEST_OF_ALL or not np.isfinite(gaps).all():
        return False
    half, most = np.quantile(gaps, (0.5, 0.99))
    # SGD passes on the error of a gradient as it is.
    is_normalised = np.median(ways) > _NORMALISED * np.quantile(ways, 0.99)
    return bool(is_normalised and half > _ROUNDINGS * value and most < _TAIL * half)


def _differ_much(gaps: np.ndarray, value: float, step: float, log_prob_gap: float | None) -> bool:
    """Whether most elements differ by much of a step although passes agree."""
    if gaps.size < _FEWEST_OF_ALL or not np.isfinite(gaps).all() or log_prob_gap is None or not step > 0:
        return False
    half = float(np.median(gaps))
    return half > _ROUNDINGS * value and half > _MOST * step and log_prob_gap < _FAR_APART
