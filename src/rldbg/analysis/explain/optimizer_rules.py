"""What an optimizer makes of gradients: a direction, and what it is divided by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

ADAM, AMSGRAD = "AdamW", "AMSGrad (AdamW with the maximum of its second moments)"
NADAM, RADAM, LION = "NAdam", "RAdam", "Lion"
NESTEROV, DAMPENED = "SGD with Nesterov", "SGD with dampened"
ADAPTIVE = frozenset({ADAM, AMSGRAD, NADAM, RADAM, LION})
# RAdam takes plain steps until its second moment is a mean of so many gradients.
_FEWEST_FOR_VARIANCE = 5.0


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
    # Further places, of all updates, before which moments are reset.
    resets: tuple[int, ...] = ()
    # Whether only matrices shrink, not biases and the weights of norms, as many people configure it.
    shrinks_matrices_only: bool = False


@dataclass(frozen=True, slots=True)
class History:
    """Gradients, their norms and parameters after each optimizer step, over a fixed choice of elements."""

    gradients: np.ndarray  # [steps, elements]
    norms: np.ndarray  # [steps]
    largest: np.ndarray  # [steps], elements of the whole gradient
    tensor_norms: np.ndarray  # [steps, elements], of the tensor that an element belongs to
    parameters: np.ndarray  # [steps, elements]
    # Places of the first optimizer step of each step of the run after the first one.
    step_starts: frozenset[int]
    # About the learning rate.
    rate: float
    # [elements], whether an element's tensor has more than one dimension.
    in_matrix: np.ndarray
    # Whether weight decay is sought in matrices only, whatever a rule says.
    seeks_in_matrices: bool = False

    def shrinking(self, place: int, rule: OptimizerRule) -> np.ndarray:
        """The parameters after a step, 0 where weight decay leaves them alone."""
        before: np.ndarray = self.parameters[place]
        return np.where(self.in_matrix, before, 0.0) if self.seeks_in_matrices or rule.shrinks_matrices_only else before


def moments_of(history: History, rule: OptimizerRule) -> list[tuple[np.ndarray, np.ndarray]]:
    """After each step the direction it takes, and what Adam divides it by, before epsilon."""
    made = _Moments(rule, history.gradients.shape[1])
    found = []
    for place, (gradient, norm) in enumerate(zip(history.gradients, history.norms, strict=True)):
        if (rule.restarts and place in history.step_starts) or place in rule.resets:
            made = _Moments(rule, history.gradients.shape[1])
        clipped = gradient if rule.clip is None else gradient * min(1.0, rule.clip / (norm + 1e-6))
        if rule.coupled:
            clipped = clipped + rule.coupled * (
                history.parameters[place - 1] if place else _start(history, clipped, rule)
            )
        found.append(made.after(clipped))
    return found


class _Moments:
    """The running means of an optimizer."""

    def __init__(self, rule: OptimizerRule, elements: int) -> None:
        self._rule, self._age = rule, 0
        self._mean, self._square, self._most = (np.zeros(elements) for _ in range(3))
        self._product = 1.0

    def after(self, gradient: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rule, (beta1, beta2) = self._rule, self._rule.betas
        self._age += 1
        one = np.ones_like(gradient)
        if rule.kind not in ADAPTIVE:
            fresh = 1.0 if self._age == 1 or not rule.kind.startswith(DAMPENED) else 0.5
            self._mean = beta1 * self._mean + fresh * gradient
            return (gradient + beta1 * self._mean if rule.kind.startswith(NESTEROV) else self._mean), one
        if rule.kind == LION:
            direction = np.sign(beta1 * self._mean + (1 - beta1) * gradient)
            self._mean = beta2 * self._mean + (1 - beta2) * gradient
            return direction, one
        self._mean = beta1 * self._mean + (1 - beta1) * gradient
        self._square = beta2 * self._square + (1 - beta2) * gradient**2
        self._most = np.maximum(self._most, self._square) if rule.kind == AMSGRAD else self._square
        starts = (1 - beta1**self._age, 1 - beta2**self._age) if rule.corrects else (1.0, 1.0)
        size = np.sqrt(self._most / starts[1])
        if rule.kind == NADAM:
            return self._ahead(gradient, beta1), size
        if rule.kind == RADAM and self._length(beta2) <= _FEWEST_FOR_VARIANCE:
            return self._mean / starts[0], one
        return self._mean / starts[0], size

    def _ahead(self, gradient: np.ndarray, beta: float) -> np.ndarray:
        """NAdam's look ahead, with the schedule of its momentum that is in use."""
        now, then = (beta * (1 - 0.5 * 0.96 ** (0.004 * age)) for age in (self._age, self._age + 1))
        self._product *= now
        made: np.ndarray = (1 - now) / (1 - self._product) * gradient + then / (1 - self._product * then) * self._mean
        return made

    def _length(self, beta: float) -> float:
        """RAdam: of how many gradients the second moment is a mean."""
        whole = 2 / (1 - beta) - 1
        return whole - 2 * self._age * beta**self._age / (1 - beta**self._age)


def rate_of(parameters: np.ndarray) -> float:
    """About the learning rate: nearly all elements of Adam's early steps move by it."""
    moved = np.abs(parameters[1] - parameters[0])
    return float(np.quantile(moved, 0.95)) if moved.size else 0.0


def _start(history: History, gradient: np.ndarray, rule: OptimizerRule) -> np.ndarray:
    """The parameters before the first recorded update, which Adam moves by its rate against the gradient's sign."""
    after = history.parameters[0]
    start: np.ndarray = after + history.rate * np.sign(gradient + rule.coupled * after)
    return start
