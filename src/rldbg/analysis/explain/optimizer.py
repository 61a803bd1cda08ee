"""Which optimizer a side has: AdamW repeated from its recorded gradients, until it gives its recorded parameters.

The gradients of every optimizer step from the first one on are needed, and the parameters after two of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rldbg.analysis.explain.evidence import Evidence, Explanation
from rldbg.analysis.explain.passes import SideStep

_CLIPS: tuple[float | None, ...] = (None, 10.0, 5.0, 2.0, 1.0, 0.5, 0.3, 0.2, 0.1)
_BETAS = ((0.9, 0.95), (0.9, 0.98), (0.9, 0.99), (0.9, 0.999), (0.8, 0.95), (0.8, 0.999), (0.95, 0.95), (0.0, 0.999))
_EPSILONS = (1e-8, 1e-6, 1e-5, 1e-4)
_KINDS = (
    *(("AdamW", betas, epsilon) for betas, epsilon in itertools.product(_BETAS, _EPSILONS)),
    ("plain gradient descent", (0.0, 0.0), 0.0),
    ("gradient descent with momentum 0.9", (0.9, 0.0), 0.0),
)
_STEPS = 5
_ELEMENTS = 6000
_FIT = 2e-3


@dataclass(frozen=True, slots=True)
class Optimizer:
    """What turns gradients into steps; `rates` are the learning rates of its steps from the second one on."""

    kind: str
    clip: float | None
    betas: tuple[float, float]
    epsilon: float
    rates: tuple[float, ...]
    decay: float
    residual: float


@dataclass(frozen=True, slots=True)
class _History:
    """Gradients, their norms and parameters after each optimizer step, over a fixed choice of elements."""

    gradients: np.ndarray  # [steps, elements]
    norms: np.ndarray  # [steps]
    parameters: np.ndarray  # [steps, elements]


def _history(side: SideStep) -> _History | None:
    places = side.updates("param")[:_STEPS]
    if len(places) < 2 or side.updates("gradient")[: len(places)] != places or places[0][0] != 0:
        return None
    gradients, norms, parameters = [], [], []
    for place in places:
        gradient, parameter = side.tensors_of("gradient", place), side.tensors_of("param", place)
        names = sorted(name for name in gradient if name in parameter)
        flat = np.concatenate([gradient[name].ravel() for name in names])
        stride = max(len(flat) // _ELEMENTS, 1)
        norms.append(float(np.linalg.norm(np.concatenate([value.ravel() for value in gradient.values()]))))
        gradients.append(flat[::stride])
        parameters.append(np.concatenate([parameter[name].ravel() for name in names])[::stride])
    if len({len(row) for row in gradients}) != 1:
        return None
    history = _History(np.stack(gradients), np.asarray(norms), np.stack(parameters))
    moving = (history.parameters[1:] != history.parameters[:-1]).any(0)
    if not moving.any() or not np.isfinite(history.gradients).all():
        return None
    return _History(history.gradients[:, moving], history.norms, history.parameters[:, moving])


def identify(side: SideStep) -> Optimizer | None:
    """The optimizer that fits best, if it fits; of two that fit alike the plainer one."""
    history = _history(side)
    return None if history is None else _best(history)


def _best(history: _History) -> Optimizer | None:
    found: Optimizer | None = None
    for clip in _CLIPS:
        if clip is not None and history.norms.max() <= clip:
            continue
        for kind, betas, epsilon in _KINDS:
            tried = _try(history, kind, clip, betas, epsilon)
            if found is None or tried.residual < 0.5 * found.residual:
                found = tried
    return found if found is not None and found.residual <= _FIT else None


def _try(history: _History, kind: str, clip: float | None, betas: tuple[float, float], epsilon: float) -> Optimizer:
    """Repeats the optimizer's moments; learning rate and decay are fitted to each step's movement."""
    beta1, beta2 = betas
    mean, square = np.zeros(history.gradients.shape[1]), np.zeros(history.gradients.shape[1])
    rates, decays, worst = [], [], 0.0
    for step, (gradient, norm) in enumerate(zip(history.gradients, history.norms, strict=True), 1):
        clipped = gradient if clip is None else gradient * min(1.0, clip / (norm + 1e-6))
        mean = beta1 * mean + (1 - beta1 if kind == "AdamW" else 1.0) * clipped
        square = beta2 * square + (1 - beta2) * clipped**2
        if step == 1:
            continue
        direction = mean
        if kind == "AdamW":
            direction = mean / (1 - beta1**step) / (np.sqrt(square / (1 - beta2**step)) + epsilon)
        before, moved = history.parameters[step - 2], history.parameters[step - 1] - history.parameters[step - 2]
        columns = -np.stack([direction, before], 1)
        weights = np.linalg.lstsq(columns, moved, rcond=None)[0]
        left = float(np.linalg.norm(moved - columns @ weights) / max(float(np.linalg.norm(moved)), 1e-30))
        worst = max(worst, left)
        rates.append(float(weights[0]))
        decays.append(float(weights[1] / weights[0]) if weights[0] else 0.0)
    decay = float(np.median(decays))
    return Optimizer(kind, clip, betas, epsilon, tuple(rates), 0.0 if abs(decay) < 2e-3 else decay, worst)


def optimizers(evidence: Evidence) -> Iterator[Explanation]:
    """The two sides' optimizers differ in one of their numbers."""
    a, b = identify(evidence.a), identify(evidence.b)
    if a is None or b is None:
        return
    residual = max(a.residual, b.residual)
    for name, text, one, other in _differences(a, b):
        facts = {"a": one, "b": other}
        yield Explanation(name, f"{text} {_show(one)} in A and {_show(other)} in B", residual, _FIT, facts)


def _differences(a: Optimizer, b: Optimizer) -> Iterator[tuple[str, str, object, object]]:
    if a.kind != b.kind:
        yield "optimizer-kind", "the optimizer is", a.kind, b.kind
        return
    ratios = [two / one for one, two in zip(a.rates, b.rates, strict=False) if one]
    if ratios and max(abs(ratio - 1) for ratio in ratios) > 0.02:
        first = next(place for place, ratio in enumerate(ratios) if abs(ratio - 1) > 0.02)
        yield "learning-rate", "the learning rate is", a.rates[first], b.rates[first]
    if abs(a.decay - b.decay) > 5e-3:
        yield "weight-decay", "the weight decay is", a.decay, b.decay
    if a.clip != b.clip:
        yield "gradient-clip", "gradients are clipped to a norm of", a.clip, b.clip
    if a.betas != b.betas:
        yield "optimizer-betas", "AdamW's betas are", a.betas, b.betas
    if a.epsilon != b.epsilon:
        yield "optimizer-epsilon", "AdamW's epsilon is", a.epsilon, b.epsilon


def _show(value: object) -> str:
    if value is None:
        return "nothing (not at all)"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


HYPOTHESES = {"parameter": (optimizers,)}
