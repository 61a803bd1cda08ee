"""Which optimizer a side uses: candidates are replayed on its recorded gradients to match its recorded parameters.

The gradients of every optimizer step from the first one on are needed, and the parameters after two of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rldbg.analysis.explain.optimizer_rules import (
    ADAM,
    ADAPTIVE,
    AMSGRAD,
    DAMPENED,
    LION,
    NADAM,
    NESTEROV,
    RADAM,
    History,
    OptimizerRule,
    moments_of,
    rate_of,
)
from rldbg.analysis.explain.passes import SideStep

CLIPS: tuple[float | None, ...] = (None, 10.0, 5.0, 2.0, 1.0, 0.5, 0.3, 0.2, 0.1)
_SMALL_CLIPS = (0.05, 0.02, 0.01, 0.001)
BETAS = ((0.9, 0.95), (0.9, 0.98), (0.9, 0.99), (0.9, 0.999), (0.8, 0.95), (0.8, 0.999), (0.95, 0.95), (0.0, 0.999))
_SECOND_BETAS = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
EPSILONS = (1e-8, 1e-6, 1e-5, 1e-4)
KINDS: tuple[tuple[str, tuple[float, float], tuple[float, ...]], ...] = (
    *((ADAM, betas, EPSILONS) for betas in BETAS),
    ("SGD", (0.0, 0.0), (0.0,)),
    ("SGD with momentum 0.9", (0.9, 0.0), (0.0,)),
)
_UNCORRECTED = (
    *((ADAM, betas, EPSILONS) for betas in BETAS),
    *((ADAM, (0.0, beta), EPSILONS) for beta in (0.9, 0.99)),
)
# Tried when no usual optimizer fits.
_RARE = (
    *((ADAM, betas, (1e-8,)) for betas in itertools.product((0.0, 0.5, 0.8, 0.9, 0.95, 0.99, 0.999), _SECOND_BETAS)),
    *((AMSGRAD, betas, EPSILONS) for betas in BETAS),
    *((kind, betas, EPSILONS) for kind in (NADAM, RADAM) for betas in BETAS[:4]),
    *((LION, betas, (0.0,)) for betas in ((0.9, 0.99), (0.95, 0.98))),
    *((f"{NESTEROV} momentum {beta:g}", (beta, 0.0), (0.0,)) for beta in (0.5, 0.8, 0.9, 0.95, 0.99)),
    *((f"{DAMPENED} momentum {beta:g}", (beta, 0.0), (0.0,)) for beta in (0.9,)),
    *((f"SGD with momentum {beta:g}", (beta, 0.0), (0.0,)) for beta in (0.5, 0.8, 0.95, 0.99)),
)
_COUPLED = (0.1, 0.05, 0.02, 0.01, 0.005, 0.001)
_REFINEMENTS = 5
_STEPS = 8
_ELEMENTS, _FEW_ELEMENTS = 3000, 200
# Sums over elements are rounded.
_SURELY = 1.001
FIT, AS_GOOD_AS_ANY = 2e-3, 1e-4
ROUNDINGS, _MOST_ROUNDING = 1.5, 0.3


@dataclass(frozen=True, slots=True)
class Optimizer:
    """A rule with what was fitted to it; `rates` are the learning rates of its steps from the second one on.

    `rounding` is what storing parameters in single precision leaves of a movement: much of one that is small.
    """

    rule: OptimizerRule
    rates: tuple[float, ...]
    decay: float
    residual: float
    rounding: float = 0.0
    # The largest that a clip of this kind was seen to leave, or would have cut: a higher clip may be there, unseen.
    largest_norm: float = np.inf
    smallest_norm: float = 0.0

    @property
    def noise(self) -> float:
        return max(FIT, ROUNDINGS * self.rounding)

    @property
    def fits(self) -> bool:
        return self.residual <= self.noise and self.rounding < _MOST_ROUNDING


def with_rate_of(other: Optimizer, optimizer: Optimizer) -> Optimizer | None:
    """The same optimizer with the other's learning rate, where only the product of clip and rate is known: gradient
    descent whose gradients are all clipped; None elsewhere."""
    rule, rates = optimizer.rule, [float(np.median(item.rates)) for item in (other, optimizer)]
    if rule.clip is None or rule.clips != "norm" or rule.kind in ADAPTIVE or not min(rates) > 0:
        return None
    times = rates[0] / rates[1]
    # A higher clip would leave some gradients as they are.
    if rule.clip / times > optimizer.smallest_norm or optimizer.smallest_norm < rule.clip:
        return None
    made = tuple(rate * times for rate in optimizer.rates)
    return replace(optimizer, rule=rule._replace(clip=rule.clip / times), rates=made, decay=optimizer.decay / times)


def history_of(side: SideStep, only: str | None = None) -> History | None:
    """Of all tensors, or of one; norms are those of the whole gradient.

    Later steps than the one at which the sides part count as well: of two updates many optimizers make the same.
    """
    until = len(side.updates("param"))
    side = SideStep(side.side, max(side.side.steps("param"), default=side.step))
    places = side.updates("param")[: min(max(_STEPS, until), 2 * _STEPS)]
    if len(places) < 2 or side.updates("gradient")[: len(places)] != places:
        return None
    gradients, norms, largest, parameters, of_tensors = [], [], [], [], []
    for place in places:
        gradient, parameter = side.tensors_of("gradient", place), side.tensors_of("param", place)
        names = sorted(name for name in gradient if name in parameter and only in (None, name))
        if not names:
            return None
        flat = np.concatenate([gradient[name].ravel() for name in names])
        stride = max(len(flat) // _ELEMENTS, 1)
        norms.append(float(np.linalg.norm(np.concatenate([value.ravel() for value in gradient.values()]))))
        largest.append(max(float(np.abs(value).max(initial=0.0)) for value in gradient.values()))
        gradients.append(flat[::stride])
        sizes = [np.full(gradient[name].size, np.linalg.norm(gradient[name])) for name in names]
        of_tensors.append(np.concatenate(sizes)[::stride])
        in_matrix = np.concatenate([np.full(gradient[name].size, gradient[name].ndim > 1) for name in names])
        parameters.append(np.concatenate([parameter[name].ravel() for name in names])[::stride])
    if len({len(row) for row in gradients}) != 1:
        return None
    starts = frozenset(place for place in range(1, len(places)) if places[place][0] != places[place - 1][0])
    after = np.stack(parameters)
    moving = (after[1:] != after[:-1]).any(0)
    if not moving.any() or not np.isfinite(gradients).all():
        return None
    history = History(
        *(np.stack(gradients), np.asarray(norms), np.asarray(largest), np.stack(of_tensors)),
        *(after, starts, rate_of(after[:, moving]), in_matrix[::stride]),
    )
    return _of_elements(history, moving)


def _of_elements(history: History, chosen: np.ndarray) -> History:
    gradients, sizes, parameters = (
        values[:, chosen] for values in (history.gradients, history.tensor_norms, history.parameters)
    )
    in_matrix = history.in_matrix[chosen]
    return replace(history, gradients=gradients, tensor_norms=sizes, parameters=parameters, in_matrix=in_matrix)


def _some(history: History) -> History:
    chosen = np.zeros(history.gradients.shape[1], bool)
    chosen[:: max(history.gradients.shape[1] // _FEW_ELEMENTS, 1)] = True
    return _of_elements(history, chosen)


def identify(side: SideStep) -> list[Optimizer]:
    """The optimizers that fit equally well, the simpler ones first; empty when nothing fits."""
    history = history_of(side)
    return [] if history is None else identified(history)


def identified(history: History) -> list[Optimizer]:
    views = [history]
    if len(np.unique(history.in_matrix)) > 1:
        views.append(replace(history, seeks_in_matrices=True))
    for found, view in ((fits(view), view) for fits in (_usual, _unusual) for view in views):
        if found:
            is_some = view.seeks_in_matrices
            return [replace(item, rule=item.rule._replace(shrinks_matrices_only=is_some)) for item in found]
    return []


def _usual(history: History) -> list[Optimizer]:
    found = fitting(history, CLIPS, KINDS)
    # A learning rate of each step's own hides a correction, but for epsilon, which it leaves more of than rounding.
    if not found or all(item.residual > 2 * item.rounding for item in found):
        plain = fitting(history, CLIPS, _UNCORRECTED, corrects=False)
        best = [min((item.residual for item in fits), default=np.inf) for fits in (found, plain)]
        found = plain if best[1] < best[0] / 2 else found
    return found


def _unusual(history: History) -> list[Optimizer]:
    found = fitting(history, CLIPS, KINDS, restarts=True) if history.step_starts else []
    if not found:
        found = [item for decay in _COUPLED for item in fitting(history, CLIPS, KINDS[:4], coupled=decay)]
    found = found or fitting(history, CLIPS, _RARE) or fitting(history, _clips_between(history), KINDS[:4])
    return found or _by_largest_element(history) or _by_tensor_norm(history) or _by_element(history)


def _by_element(history: History) -> list[Optimizer]:
    """Gradients of which each element is clipped by itself."""
    for clip in (*CLIPS[1:], *_SMALL_CLIPS):
        assert clip is not None
        cut = history.gradients.clip(-clip, clip)
        if not np.array_equal(cut, history.gradients):
            found = fitting(replace(history, gradients=cut), (None,), KINDS[:4])
            if found:
                return [replace(item, rule=item.rule._replace(clip=clip, clips=ELEMENTS)) for item in found]
    return []


ELEMENTS = "elements"


def _by_tensor_norm(history: History) -> list[Optimizer]:
    """Gradients of which each tensor is clipped by itself: what is left is no longer clipped as a whole."""
    for clip in (*CLIPS[1:], *_SMALL_CLIPS):
        assert clip is not None
        shorter = np.minimum(1.0, clip / (history.tensor_norms + 1e-6))
        found = fitting(replace(history, gradients=history.gradients * shorter), (None,), KINDS[:4])
        if found and (shorter < 1).any():
            return [replace(item, rule=item.rule._replace(clip=clip, clips="tensors' norms")) for item in found]
    return []


def _by_largest_element(history: History) -> list[Optimizer]:
    """Gradients scaled so that no element is above a bound."""
    of_elements = replace(history, norms=history.largest)
    clips = [*CLIPS[1:], *_SMALL_CLIPS, *_clips_between(of_elements)]
    return [
        replace(item, rule=item.rule._replace(clips="largest element"))
        for item in fitting(of_elements, clips, KINDS[:4])
    ]


def _clips_between(history: History) -> list[float | None]:
    """Norms that would clip some of the gradients, close enough to each other for one to fit, refined by halving."""
    history = _some(history)
    low, high = float(history.norms.min()), float(history.norms.max())
    best = high
    for _ in range(_REFINEMENTS):
        tried = np.geomspace(max(low, 1e-12), high, 12)
        errors = [
            min(
                fit_of(
                    history,
                    moments_of(history, OptimizerRule(ADAM, float(clip), betas, 0.0)),
                    OptimizerRule(ADAM, clip, betas, 1e-8),
                ).residual
                for _, betas, _ in KINDS[:4]
            )
            for clip in tried
        ]
        place = int(np.argmin(errors))
        best, low, high = float(tried[place]), float(tried[max(place - 1, 0)]), float(tried[min(place + 1, 11)])
    return [best]


def fitting(
    history: History,
    clips: Sequence[float | None],
    kinds: Sequence[tuple[str, tuple[float, float], tuple[float, ...]]],
    *,
    restarts: bool = False,
    coupled: float = 0.0,
    corrects: bool = True,
) -> list[Optimizer]:
    tried = []
    few = _Few(history)
    for clip, (kind, betas, epsilons) in itertools.product(clips, kinds):
        if clip is None or history.norms.max() > clip:
            rule = OptimizerRule(kind, clip, betas, 0.0, restarts, coupled, corrects=corrects)
            part = _certain(history, clip, coupled) if coupled else history
            left = (_Few(part) if coupled else few).not_refuted(rule, epsilons)
            if left:
                moments = moments_of(part, rule)
                tried += [fit_of(part, moments, rule._replace(epsilon=epsilon)) for epsilon in left]
    limit = min((2 * item.residual for item in tried), default=0.0)
    return [item for item in tried if item.fits and item.residual <= limit]


class _Few:
    """A part of all elements, on which most candidates are refuted at a fraction of the work.

    A candidate that fits leaves at most its noise of each step's movement over all elements, so at most that much over
    some of them, where its factors may be chosen more freely: none that fits is refuted.
    """

    def __init__(self, history: History) -> None:
        self._part = _some(history)
        moved = np.diff(history.parameters, axis=0)
        spacing = np.spacing(np.abs(history.parameters[:-1]).astype(np.float32)).astype(np.float64)
        whole = np.maximum(np.square(moved).sum(1), 1e-60)
        rounding = np.sqrt(np.square(spacing).sum(1) / 12 / whole)[moved.any(1)].max(initial=0.0)
        self._allowed = max(FIT, ROUNDINGS * float(rounding)) ** 2 * whole

    def not_refuted(self, rule: OptimizerRule, epsilons: Sequence[float]) -> list[float]:
        moments = moments_of(self._part, rule)
        return [epsilon for epsilon in epsilons if self._may_fit(moments, rule, epsilon)]

    def _may_fit(self, moments: list[tuple[np.ndarray, np.ndarray]], rule: OptimizerRule, epsilon: float) -> bool:
        parameters = self._part.parameters
        for place in range(1, len(moments)):
            direction = moments[place][0] / (moments[place][1] + epsilon)
            before = self._part.shrinking(place - 1, rule)
            left = _left(direction, before, parameters[place] - parameters[place - 1])[0]
            if not float(left @ left) <= _SURELY * self._allowed[place - 1]:
                return False
        return True


def _certain(history: History, clip: float | None, coupled: float) -> History:
    """The elements whose first step has a sign that its own size cannot change: their start is known."""
    after, rate = history.parameters[0], history.rate
    shorter = 1.0 if clip is None else min(1.0, clip / (float(history.norms[0]) + 1e-6))
    sure = np.abs(history.gradients[0] * shorter + coupled * after) > 2 * coupled * rate
    return _of_elements(history, sure)


def fit_of(history: History, moments: list[tuple[np.ndarray, np.ndarray]], rule: OptimizerRule) -> Optimizer:
    """Learning rate and decay are fitted to each step's movement."""
    rates, decays, worst, rounding = [], [], 0.0, 0.0
    for place in range(1, len(moments)):
        mean, size = moments[place]
        direction = mean / (size + rule.epsilon)
        before, moved = history.parameters[place - 1], history.parameters[place] - history.parameters[place - 1]
        left, rate, shrink = _left(direction, history.shrinking(place - 1, rule), moved)
        whole = max(float(moved @ moved), 1e-60)
        worst = max(worst, float(np.sqrt(left @ left / whole)))
        gaps = np.spacing(np.abs(before).astype(np.float32)).astype(np.float64)
        if moved.any():
            rounding = max(rounding, float(np.sqrt(gaps @ gaps / 12 / whole)))
        rates.append(rate)
        decays.append(shrink / rate if rate else 0.0)
    decay = float(np.median(decays))
    decay = 0.0 if abs(decay) < 2e-3 else decay
    return Optimizer(rule, tuple(rates), decay, worst, rounding, float(history.norms.max()), float(history.norms.min()))


def _left(direction: np.ndarray, before: np.ndarray, moved: np.ndarray) -> tuple[np.ndarray, float, float]:
    """What the best learning rate and shrinking leave of a movement, and those two."""
    rate, shrink = _two_factors(-direction, -before, moved)
    return moved + rate * direction + shrink * before, rate, shrink


def _two_factors(x: np.ndarray, y: np.ndarray, target: np.ndarray) -> tuple[float, float]:
    """The factors of x and y that bring their sum closest to the target; y's is 0 when y is a multiple of x."""
    xx, xy, yy = float(x @ x), float(x @ y), float(y @ y)
    xt, yt = float(x @ target), float(y @ target)
    determinant = xx * yy - xy * xy
    if determinant <= 1e-12 * xx * yy:
        return (xt / xx if xx else 0.0), 0.0
    return (xt * yy - yt * xy) / determinant, (yt * xx - xt * xy) / determinant
