"""Which optimizer a side uses: candidates are replayed on its recorded gradients to match its recorded parameters.

The gradients of every optimizer step from the first one on are needed, and the parameters after two of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from rldbg.analysis.explain.evidence import Evidence, Explanation, Recomputed
from rldbg.analysis.explain.passes import SideStep

_CLIPS: tuple[float | None, ...] = (None, 10.0, 5.0, 2.0, 1.0, 0.5, 0.3, 0.2, 0.1)
_SMALL_CLIPS = (0.05, 0.02, 0.01, 0.001)
_BETAS = ((0.9, 0.95), (0.9, 0.98), (0.9, 0.99), (0.9, 0.999), (0.8, 0.95), (0.8, 0.999), (0.95, 0.95), (0.0, 0.999))
_SECOND_BETAS = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
_EPSILONS = (1e-8, 1e-6, 1e-5, 1e-4)
_ADAM, _LARGEST = "AdamW", "AdamW that divides by its largest moments (AMSGrad)"
_KINDS: tuple[tuple[str, tuple[float, float], tuple[float, ...]], ...] = (
    *((_ADAM, betas, _EPSILONS) for betas in _BETAS),
    ("plain gradient descent", (0.0, 0.0), (0.0,)),
    ("gradient descent with momentum 0.9", (0.9, 0.0), (0.0,)),
)
_UNCORRECTED = (
    *((_ADAM, betas, _EPSILONS) for betas in _BETAS),
    *((_ADAM, (0.0, beta), _EPSILONS) for beta in (0.9, 0.99)),
)
# Tried when no usual optimizer fits.
_RARE = (
    *((_ADAM, betas, (1e-8,)) for betas in itertools.product((0.0, 0.5, 0.8, 0.9, 0.95, 0.99, 0.999), _SECOND_BETAS)),
    *((_LARGEST, betas, _EPSILONS) for betas in _BETAS),
)
_COUPLED = (0.1, 0.05, 0.02, 0.01, 0.005, 0.001)
_REFINEMENTS = 5
_STEPS = 8
_ELEMENTS = 3000
_FIT = 2e-3
_ROUNDINGS, _MOST_ROUNDING = 1.5, 0.3
# A fit that is so many times as bad as the other side's, on gradients and parameters of the same precision, is none.
_WORSE, _AS_GOOD_AS_ANY = 30.0, 1e-4


class OptimizerRule(NamedTuple):
    """What turns gradients into a direction.

    `restarts` when its moments are reset at every step of the run; `coupled` is the weight decay that is added to
    gradients, as Adam does and AdamW does not.
    """

    kind: str
    clip: float | None
    betas: tuple[float, float]
    epsilon: float
    restarts: bool = False
    coupled: float = 0.0
    # What is clipped: the norm of the gradient, or its largest element.
    clips: str = "norm"
    # Whether Adam's moments are corrected for their start at 0.
    corrects: bool = True


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

    @property
    def noise(self) -> float:
        return max(_FIT, _ROUNDINGS * self.rounding)

    @property
    def fits(self) -> bool:
        return self.residual <= self.noise and self.rounding < _MOST_ROUNDING


@dataclass(frozen=True, slots=True)
class _History:
    """Gradients, their norms and parameters after each optimizer step, over a fixed choice of elements."""

    gradients: np.ndarray  # [steps, elements]
    norms: np.ndarray  # [steps]
    largest: np.ndarray  # [steps], elements of the whole gradient
    tensor_norms: np.ndarray  # [steps, elements], of the tensor that an element belongs to
    parameters: np.ndarray  # [steps, elements]
    # Places of the first optimizer step of each step of the run after the first one.
    step_starts: frozenset[int]


def _history(side: SideStep, only: str | None = None) -> _History | None:
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
        parameters.append(np.concatenate([parameter[name].ravel() for name in names])[::stride])
    if len({len(row) for row in gradients}) != 1:
        return None
    starts = frozenset(place for place in range(1, len(places)) if places[place][0] != places[place - 1][0])
    history = _History(
        *(np.stack(gradients), np.asarray(norms), np.asarray(largest), np.stack(of_tensors)),
        *(np.stack(parameters), starts),
    )
    moving = (history.parameters[1:] != history.parameters[:-1]).any(0)
    if not moving.any() or not np.isfinite(history.gradients).all():
        return None
    return _of_elements(history, moving)


def _of_elements(history: _History, chosen: np.ndarray) -> _History:
    gradients, sizes, parameters = (
        values[:, chosen] for values in (history.gradients, history.tensor_norms, history.parameters)
    )
    return replace(history, gradients=gradients, tensor_norms=sizes, parameters=parameters)


def identify(side: SideStep) -> list[Optimizer]:
    """The optimizers that fit equally well, the simpler ones first; empty when nothing fits."""
    history = _history(side)
    return [] if history is None else _identified(history)


def _identified(history: _History) -> list[Optimizer]:
    found = _fitting(history, _CLIPS, _KINDS)
    if not found or min(item.residual for item in found) > _AS_GOOD_AS_ANY:
        plain = _fitting(history, _CLIPS, _UNCORRECTED, corrects=False)
        found = min((found, plain), key=lambda fits: min((item.residual for item in fits), default=np.inf))
    if not found and history.step_starts:
        found = _fitting(history, _CLIPS, _KINDS, restarts=True)
    if not found:
        found = [item for decay in _COUPLED for item in _fitting(history, _CLIPS, _KINDS[:4], coupled=decay)]
    found = found or _fitting(history, _CLIPS, _RARE) or _fitting(history, _clips_between(history), _KINDS[:4])
    return found or _by_largest_element(history) or _by_tensor_norm(history)


def _by_tensor_norm(history: _History) -> list[Optimizer]:
    """Gradients of which each tensor is clipped by itself: what is left is no longer clipped as a whole."""
    for clip in (*_CLIPS[1:], *_SMALL_CLIPS):
        assert clip is not None
        shorter = np.minimum(1.0, clip / (history.tensor_norms + 1e-6))
        found = _fitting(replace(history, gradients=history.gradients * shorter), (None,), _KINDS[:4])
        if found and (shorter < 1).any():
            return [replace(item, rule=item.rule._replace(clip=clip, clips="tensors' norms")) for item in found]
    return []


def _by_largest_element(history: _History) -> list[Optimizer]:
    """Gradients scaled so that no element is above a bound."""
    of_elements = replace(history, norms=history.largest)
    clips = [*_CLIPS[1:], *_SMALL_CLIPS, *_clips_between(of_elements)]
    return [
        replace(item, rule=item.rule._replace(clips="largest element"))
        for item in _fitting(of_elements, clips, _KINDS[:4])
    ]


def _clips_between(history: _History) -> list[float | None]:
    """Norms that would clip some of the gradients, close enough to each other for one to fit, refined by halving."""
    low, high = float(history.norms.min()), float(history.norms.max())
    best = high
    for _ in range(_REFINEMENTS):
        tried = np.geomspace(max(low, 1e-12), high, 12)
        errors = [
            min(
                _try(
                    history,
                    _moments(history, OptimizerRule(_ADAM, float(clip), betas, 0.0)),
                    OptimizerRule(_ADAM, clip, betas, 1e-8),
                ).residual
                for _, betas, _ in _KINDS[:4]
            )
            for clip in tried
        ]
        place = int(np.argmin(errors))
        best, low, high = float(tried[place]), float(tried[max(place - 1, 0)]), float(tried[min(place + 1, 11)])
    return [best]


def _fitting(
    history: _History,
    clips: Sequence[float | None],
    kinds: Sequence[tuple[str, tuple[float, float], tuple[float, ...]]],
    *,
    restarts: bool = False,
    coupled: float = 0.0,
    corrects: bool = True,
) -> list[Optimizer]:
    tried = []
    for clip, (kind, betas, epsilons) in itertools.product(clips, kinds):
        if clip is None or history.norms.max() > clip:
            part = _certain(history, clip, coupled) if coupled else history
            rule = OptimizerRule(kind, clip, betas, 0.0, restarts, coupled, corrects=corrects)
            moments = _moments(part, rule)
            tried += [_try(part, moments, rule._replace(epsilon=epsilon)) for epsilon in epsilons]
    limit = min((2 * item.residual for item in tried), default=0.0)
    return [item for item in tried if item.fits and item.residual <= limit]


def _moments(history: _History, rule: OptimizerRule) -> list[tuple[np.ndarray, np.ndarray]]:
    """After each step the direction it takes, and what Adam divides it by, before epsilon."""
    beta1, beta2 = rule.betas
    is_adam = rule.kind in (_ADAM, _LARGEST)
    mean, square = np.zeros(history.gradients.shape[1]), np.zeros(history.gradients.shape[1])
    largest_square = np.zeros_like(square)
    found, age = [], 0
    for place, (gradient, norm) in enumerate(zip(history.gradients, history.norms, strict=True)):
        if rule.restarts and place in history.step_starts:
            mean, square, age = np.zeros_like(mean), np.zeros_like(square), 0
        age += 1
        clipped = gradient if rule.clip is None else gradient * min(1.0, rule.clip / (norm + 1e-6))
        if rule.coupled:
            clipped = clipped + rule.coupled * (
                history.parameters[place - 1] if place else _start(history, clipped, rule)
            )
        mean = beta1 * mean + (1 - beta1 if is_adam else 1.0) * clipped
        square = beta2 * square + (1 - beta2) * clipped**2
        largest_square = np.maximum(largest_square, square) if rule.kind == _LARGEST else square
        if is_adam:
            starts = (1 - beta1**age, 1 - beta2**age) if rule.corrects else (1.0, 1.0)
            found.append((mean / starts[0], np.sqrt(largest_square / starts[1])))
        else:
            found.append((mean, np.ones_like(mean)))
    return found


def _certain(history: _History, clip: float | None, coupled: float) -> _History:
    """The elements whose first step has a sign that its own size cannot change: their start is known."""
    after, rate = history.parameters[0], _rate(history)
    shorter = 1.0 if clip is None else min(1.0, clip / (float(history.norms[0]) + 1e-6))
    sure = np.abs(history.gradients[0] * shorter + coupled * after) > 2 * coupled * rate
    return _of_elements(history, sure)


def _rate(history: _History) -> float:
    """About the learning rate: nearly all elements of Adam's early steps move by it."""
    moved = np.abs(history.parameters[1] - history.parameters[0])
    return float(np.quantile(moved, 0.95)) if moved.size else 0.0


def _start(history: _History, gradient: np.ndarray, rule: OptimizerRule) -> np.ndarray:
    """The parameters before the first recorded update, which Adam moves by its rate against the gradient's sign."""
    after = history.parameters[0]
    start: np.ndarray = after + _rate(history) * np.sign(gradient + rule.coupled * after)
    return start


def _try(history: _History, moments: list[tuple[np.ndarray, np.ndarray]], rule: OptimizerRule) -> Optimizer:
    """Learning rate and decay are fitted to each step's movement."""
    rates, decays, worst, rounding = [], [], 0.0, 0.0
    for place in range(1, len(moments)):
        mean, size = moments[place]
        direction = mean / (size + rule.epsilon)
        before, moved = history.parameters[place - 1], history.parameters[place] - history.parameters[place - 1]
        rate, shrink = _two_factors(-direction, -before, moved)
        left = moved + rate * direction + shrink * before
        whole = max(float(moved @ moved), 1e-60)
        worst = max(worst, float(np.sqrt(left @ left / whole)))
        gaps = np.spacing(np.abs(before).astype(np.float32)).astype(np.float64)
        if moved.any():
            rounding = max(rounding, float(np.sqrt(gaps @ gaps / 12 / whole)))
        rates.append(rate)
        decays.append(shrink / rate if rate else 0.0)
    decay = float(np.median(decays))
    return Optimizer(rule, tuple(rates), 0.0 if abs(decay) < 2e-3 else decay, worst, rounding)


def _two_factors(x: np.ndarray, y: np.ndarray, target: np.ndarray) -> tuple[float, float]:
    """The factors of x and y that bring their sum closest to the target; y's is 0 when y is a multiple of x."""
    xx, xy, yy = float(x @ x), float(x @ y), float(y @ y)
    xt, yt = float(x @ target), float(y @ target)
    determinant = xx * yy - xy * xy
    if determinant <= 1e-12 * xx * yy:
        return (xt / xx if xx else 0.0), 0.0
    return (xt * yy - yt * xy) / determinant, (yt * xx - xt * xy) / determinant


def optimizers(evidence: Evidence) -> Iterator[Explanation]:
    """The two sides' optimizers differ in one of their numbers."""
    # A clip and an epsilon ten times as large are one optimizer where all gradients are clipped: of those that fit
    # equally well, take the two that have most in common.
    in_a, in_b = identify(evidence.a), identify(evidence.b)
    if bool(in_a) != bool(in_b):
        yield from _by_tensor(evidence, in_a or in_b, "B" if in_a else "A")
        return
    pairs = [(a, b, list(_differences(a, b))) for a in in_a for b in in_b]
    if not pairs:
        return
    a, b, differences = min(pairs, key=lambda pair: len(pair[2]))
    if not differences and (kinds := [_largest_moments(side) for _, side in evidence.sides]) in _ONE_OF_THEM:
        words = [_LARGEST if kind else _ADAM for kind in kinds]
        said = f"the optimizer is {words[0]} in A and {words[1]} in B"
        facts = {"a": words[0], "b": words[1]}
        yield Explanation("optimizer-kind", said, max(a.residual, b.residual), _FIT, facts, together="optimizer")
        return
    if not differences:
        # Of few elements, some tensors' own settings do not show in a fit of all.
        found = [*_by_tensor(evidence, [a], "B"), *_by_tensor(evidence, [b], "A")]
        yield from found if len({item.parameters["side"] for item in found}) == 1 else ()
        return
    residual, made = max(a.residual, b.residual), _applied(evidence.b, a, b)
    alike = max(_AS_GOOD_AS_ANY, _WORSE * min(a.residual, b.residual), _ROUNDINGS * max(a.rounding, b.rounding))
    noise = min(alike, max(a.noise, b.noise))
    for name, text, one, other in differences:
        known = {"a": one, "b": other}
        said = f"{text} {_show(one)} in A and {_show(other)} in B"
        yield Explanation(name, said, residual, noise, known, together="optimizer", recomputed=made)


def _applied(side: SideStep, a: Optimizer, b: Optimizer) -> Recomputed | None:
    """How far B's gradients move its parameters by A's optimizer and by its own, beside how far they moved."""
    history = _history(side)
    if history is None:
        return None
    by_a, by_b = _movements(history, a), _movements(history, b)
    count = min(len(by_a), len(by_b), len(history.parameters) - 1)
    moved = np.diff(history.parameters, axis=0)
    parts = [np.concatenate(part[:count]) for part in (by_a, moved, by_b)]
    return Recomputed(parts[0], parts[1], parts[2], ("B's steps by A's optimizer", "B's steps"))


def _movements(history: _History, optimizer: Optimizer) -> list[np.ndarray]:
    """What an optimizer adds to the parameters in each step from the second one on."""
    rule = optimizer.rule
    if rule.clips == "largest element":
        history = replace(history, norms=history.largest)
    moments = _moments(history, rule)[1:]
    return [
        -rate * (mean / (size + rule.epsilon) + optimizer.decay * before)
        for rate, (mean, size), before in zip(optimizer.rates, moments, history.parameters, strict=False)
    ]


_ONE_OF_THEM = ([True, False], [False, True])
_CLEARLY = 0.3


def _largest_moments(side: SideStep) -> bool | None:
    """Whether AMSGrad fits far better than AdamW, or far worse; None where neither does.

    They differ in elements whose gradients become smaller only, too little for one to be refuted by itself.
    """
    history = _history(side)
    assert history is not None
    fits = [
        min((item.residual for item in _fitting(history, _CLIPS, kinds)), default=np.inf)
        for kinds in (_KINDS[: len(_BETAS)], [(_LARGEST, betas, _EPSILONS) for betas in _BETAS])
    ]
    if fits[1] <= _CLEARLY * fits[0]:
        return True
    return False if fits[0] <= _CLEARLY * fits[1] else None


def _by_tensor(evidence: Evidence, known: list[Optimizer], label: str) -> Iterator[Explanation]:
    """The other side's optimizer with a learning rate or a weight decay of its own for some tensors."""
    side, right = (evidence.b, known[0]) if label == "B" else (evidence.a, known[0])
    rate = float(np.median(right.rates))
    fits: dict[str, Optimizer] = {}
    for name in side.tensors_of("param", side.updates("param")[0]):
        history = _history(side, name)
        if history is not None:
            fits[name] = _try(history, _moments(history, right.rule), right.rule)
    if len(fits) < 2 or max(item.residual for item in fits.values()) > _FIT:
        return
    rates = {name: float(np.median(item.rates)) for name, item in fits.items()}
    decays = {name: item.decay for name, item in fits.items() if abs(rates[name] - rate) <= 0.02 * rate}
    residual = max(item.residual for item in fits.values())
    for id, what, values, usual, apart in (
        ("learning-rate", "learning rate", rates, rate, 0.02 * rate),
        ("weight-decay", "weight decay", decays, right.decay, 5e-3),
    ):
        odd = {name: value for name, value in values.items() if abs(value - usual) > apart}
        if 0 < len(odd) < len(values) and np.ptp(list(odd.values())) <= max(apart, 0.02 * abs(usual)):
            names = ", ".join(sorted(odd)[:4]) + (f" and {len(odd) - 4} more" if len(odd) > 4 else "")
            text = f"{label}'s {what} is {np.median(list(odd.values())):.4g} for {names}, and {usual:.4g} for the rest"
            facts = {"side": label, "names": sorted(odd), "rest": usual}
            yield Explanation(id, text, residual, _FIT, facts, together="optimizer")


def _differences(a: Optimizer, b: Optimizer) -> Iterator[tuple[str, str, object, object]]:
    one, other = a.rule, b.rule
    kinds = [_kind(rule) for rule in (one, other)]
    if kinds[0] != kinds[1]:
        yield "optimizer-kind", "the optimizer is", kinds[0], kinds[1]
        return
    if one.restarts != other.restarts:
        words = {False: "kept from step to step", True: "reset every step"}
        yield "optimizer-reset", "the optimizer's moments are", words[one.restarts], words[other.restarts]
    if one.corrects != other.corrects:
        words = {True: "right", False: "left out"}
        text = "Adam's correction for the start of its moments is"
        yield "optimizer-bias-correction", text, words[one.corrects], words[other.corrects]
    ratios = [two / one for one, two in zip(a.rates, b.rates, strict=False) if one]
    count = _other_count(ratios, one.betas) if one.kind == _ADAM and one.betas == other.betas else None
    if count is not None:
        yield "optimizer-bias-correction", "Adam's correction for the start of its moments is", count[0], count[1]
    elif ratios and max(abs(ratio - 1) for ratio in ratios) > 0.02:
        first = next(place for place, ratio in enumerate(ratios) if abs(ratio - 1) > 0.02)
        yield "learning-rate", "the learning rate is", a.rates[first], b.rates[first]
    if one.coupled != other.coupled:
        yield "weight-decay", "the weight decay is", _decay_text(one), _decay_text(other)
    elif abs(a.decay - b.decay) > 5e-3:
        yield "weight-decay", "the weight decay is", a.decay, b.decay
    if one.clips != other.clips:
        in_a, in_b = (f"by their {rule.clips} to {_show(rule.clip)}" for rule in (one, other))
        yield "gradient-clip", "gradients are clipped", in_a, in_b
    elif one.clip != other.clip:
        yield "gradient-clip", "gradients are clipped to a norm of", one.clip, other.clip
    if one.betas != other.betas:
        yield "optimizer-betas", "AdamW's betas are", one.betas, other.betas
    if one.epsilon != other.epsilon:
        yield "optimizer-epsilon", "AdamW's epsilon is", one.epsilon, other.epsilon


def _kind(rule: OptimizerRule) -> str:
    """What an optimizer is called: Adam without a first moment and without corrections for the start is RMSprop."""
    return f"RMSprop (smoothing {rule.betas[1]:g})" if not rule.corrects and rule.betas[0] == 0 else rule.kind


def _decay_text(rule: OptimizerRule) -> str:
    return f"{rule.coupled:g}, added to the gradient" if rule.coupled else "not in the gradient"


def _other_count(ratios: list[float], betas: tuple[float, float]) -> tuple[str, str] | None:
    """How A and B count steps, where that alone explains the ratios of their learning rates from the second step on.

    At step t Adam multiplies its rate by sqrt(1 - beta2^t) / (1 - beta1^t).
    """

    def factor(count: float) -> float:
        return float(np.sqrt(1 - betas[1] ** count) / (1 - betas[0] ** count))

    counts = {
        "left out": [1.0] * len(ratios),
        "by twice the step count": [factor(2 * t) for t in range(2, len(ratios) + 2)],
        "by a count that is one ahead": [factor(t + 1) for t in range(2, len(ratios) + 2)],
        "by a count that stays at 1": [factor(1)] * len(ratios),
    }
    right = np.asarray([factor(t) for t in range(2, len(ratios) + 2)])
    for text, made in counts.items():
        expected = np.asarray(made) / right
        for found, words in ((np.asarray(ratios), ("right", text)), (1 / np.asarray(ratios), (text, "right"))):
            if len(ratios) >= 3 and np.ptp(expected) > 0.05 and np.abs(found / expected - 1).max() <= 0.01:
                return words
    return None


def _show(value: object) -> str:
    if value is None:
        return "none (not clipped)"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


HYPOTHESES = {"parameter": (optimizers,)}
