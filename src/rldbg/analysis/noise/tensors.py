"""Gradients and parameters of both sides, tensor by tensor over all optimizer steps: what each update may add.

Only one tensor is in memory at a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rldbg.analysis.flat_arrays import give_back
from rldbg.analysis.noise.sensitivity import OptimizerSensitivity
from rldbg.analysis.side import Side
from rldbg.analysis.tolerances import Update
from rldbg.analysis.whole import Block, pair_tensors

GRADIENT, PARAMETER = "gradient", "param"
_USUAL = 8.0
# An element whose gradient and decay cancel to so many times the usual error of a gradient differs visibly.
_VISIBLE = 8.0


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What is allowed where Adam's decay is part of the gradient (L2): two whole steps wherever it may cancel it.

    Gradients that are off by a share e of their size are, with the decay added, near zero in few elements: as many as
    `expected` differ visibly.
    """

    allowance: np.ndarray
    expected: float


@dataclass(frozen=True, slots=True)
class ParameterUpdate:
    """A parameter after one optimizer step.

    `allowance` is how much each element may differ given its recorded gradients, `weight` how much the tensor
    counts for the loss: the root mean square of its gradients, 1 where none was recorded. An element whose gradient
    vanishes in the sum over tokens still affects single tokens, so elements of a tensor count alike.
    """

    update: Update
    block: Block
    allowance: np.ndarray
    weight: float
    cancelled: Cancelled | None = None

    def squares(self) -> tuple[float, float]:
        """The squared norms of the weighted difference and the weighted parameter; their ratio is a relative
        perturbation."""
        a, b = tensor_pair(self.block, PARAMETER)
        with np.errstate(all="ignore"):
            gap, size = np.square(self.weight * (a - b)), np.square(self.weight * a)
        kept = np.isfinite(gap) & np.isfinite(size)
        return float(gap[kept].sum()), float(size[kept].sum())

    def gap_square(self) -> float:
        """The squared distance of the two sides."""
        a, b = tensor_pair(self.block, PARAMETER)
        with np.errstate(all="ignore"):
            gap = np.square(a - b)
        return float(gap[np.isfinite(gap)].sum())


@dataclass(slots=True)
class TensorHistory:
    """One tensor of one pair of ranks: its gradients and parameters by update."""

    gradients: dict[Update, Block] = field(default_factory=dict)
    parameters: dict[Update, Block] = field(default_factory=dict)

    def gradient_terms(self) -> dict[Update, float]:
        """How large the terms are that the gradient of each update sums: as its largest element, or that of others.

        Terms do not shrink when they cancel, so the largest element of any update is nearest to them; but one update
        whose gradient explodes says nothing of the others: no more than _USUAL times their median counts.
        """
        sizes = {}
        for update, block in self.gradients.items():
            sizes[update] = max(largest_finite(part) for part in tensor_pair(block, GRADIENT))
            give_back([record.fields[GRADIENT] for record in (block.a, block.b)])
        known = list(sizes.values())
        usual = min(max(known), _USUAL * float(np.median(known))) if known else 0.0
        return {update: max(size, usual) for update, size in sizes.items()}

    def updates(
        self,
        step_sizes: Mapping[Update, float],
        norms: Mapping[Update, np.ndarray],
        unseen: Iterator[float] | None = None,
    ) -> Iterator[ParameterUpdate]:
        """Every recorded state of the parameter in order, each with what all updates so far allow.

        Whether gradients are clipped to a norm is not recorded: what no clipping allows, and what clipping always does.
        `unseen` is what each update allows where no gradient of any tensor was recorded.
        """
        sensitivity, clipped = OptimizerSensitivity(), OptimizerSensitivity()
        allowance: np.ndarray | None = None
        opposed: np.ndarray | None = None
        way = 0.0
        for update in sorted({*self.gradients, *self.parameters}):
            with np.errstate(all="ignore"):
                if update in self.gradients:
                    block = self.gradients[update]
                    pair, gap, norm = tensor_pair(block, GRADIENT), _norm_gap(norms[update]), norms[update].max()
                    sensitivity.see(*pair, gap)
                    clipped.see(pair[0] / (norm or 1.0), pair[1] / (norm or 1.0), gap)
                    opposed = _opposed(opposed, pair[0], self.parameters.get(update))
                    give_back([record.fields[GRADIENT] for record in (block.a, block.b)])
                if update not in self.parameters:
                    continue
                way += 2 * step_sizes[update]
                block = self.parameters[update]
                added = _larger(sensitivity.relative(), clipped.relative())
                shape = block.a.fields[PARAMETER].shape
                allowance = np.zeros(shape) if allowance is None else allowance
                if unseen is not None:
                    allowance = np.full(shape, next(unseen))
                elif added is not None and added.shape == shape:
                    allowance = allowance + np.nan_to_num(added, nan=0.0) * step_sizes[update]
            cancelled = None
            if opposed is not None and opposed.shape == shape:
                expected = _VISIBLE * opposed.size * sensitivity.error
                cancelled = Cancelled(np.where(opposed, way, allowance), expected + 3 * expected**0.5)
            yield ParameterUpdate(update, block, allowance, sensitivity.weight, cancelled)
            give_back([record.fields[PARAMETER] for record in (block.a, block.b)])

    def movements(self) -> Iterator[tuple[Update, tuple[float, float]]]:
        """How far the element that moves most goes in each update, on either side."""
        before: tuple[np.ndarray, np.ndarray] | None = None
        for update in sorted(self.parameters):
            now = tensor_pair(self.parameters[update], PARAMETER)
            if before is not None:
                with np.errstate(all="ignore"):
                    yield update, (largest_finite(now[0] - before[0]), largest_finite(now[1] - before[1]))
            before = now


def _opposed(before: np.ndarray | None, gradient: np.ndarray, block: Block | None) -> np.ndarray | None:
    """Where a gradient has had the opposite sign of its parameter, so that decay may cancel it."""
    if block is None or block.a.fields[PARAMETER].shape != gradient.shape:
        return before
    found: np.ndarray = gradient * block.a.array(PARAMETER) < 0
    return found if before is None else before | found


def step_sizes_of(histories: Sequence[TensorHistory]) -> dict[Update, float]:
    """What a whole step of the optimizer is in each update: the largest movement of any element of any tensor.

    The side that moves less decides, so that a side whose steps are too large gains no allowance. Tensors whose
    gradients are all rounding move by chance, so no tensor is judged by its own movement. Parameters are recorded after
    an update only: the first one is taken to move as far as the furthest of the others, or as elements do that turned.
    """
    moves: dict[Update, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    updates: set[Update] = set()
    for history in histories:
        updates |= history.parameters.keys()
        for update, (a, b) in history.movements():
            moves[update] = (max(moves[update][0], a), max(moves[update][1], b))
    sizes = {update: min(sides) for update, sides in moves.items()}
    furthest = max([*sizes.values(), _first_step(histories)])
    return {update: sizes.get(update, furthest) for update in updates}


def _first_step(histories: Iterable[TensorHistory]) -> float:
    """Half of what elements are apart whose first gradients have opposite signs: both went a whole step, or less where
    a gradient is as small as Adam's eps. So nearly the largest, which a fault in one of them does not move, and a
    hundredth; 0 where there is none."""
    found = []
    for history in histories:
        first = min(history.parameters, default=None)
        if first is not None and first in history.gradients and first == min(history.gradients):
            one, other = tensor_pair(history.gradients[first], GRADIENT)
            a, b = tensor_pair(history.parameters[first], PARAMETER)
            if one.shape == a.shape:
                found.append((np.abs(a - b) / 2)[one * other < 0])
    apart = np.concatenate(found) if found else np.empty(0)
    apart = apart[np.isfinite(apart)]
    return 1.01 * float(np.quantile(apart, 0.99)) if apart.size else 0.0


def norms_of(histories: Iterable[TensorHistory]) -> dict[Update, np.ndarray]:
    """The norms of the whole gradients of both sides in each update."""
    squares: dict[Update, np.ndarray] = defaultdict(lambda: np.zeros(2))
    for history in histories:
        for update, block in history.gradients.items():
            for number, part in enumerate(tensor_pair(block, GRADIENT)):
                squares[update][number] += np.square(part[np.isfinite(part)]).sum()
            give_back([record.fields[GRADIENT] for record in (block.a, block.b)])
    return {update: np.sqrt(both) for update, both in squares.items()}


def _norm_gap(norms: np.ndarray) -> float:
    """By how much two norms differ, relative to the larger one."""
    return float(np.ptp(norms) / norms.max()) if norms.max() > 0 else 0.0


def _larger(one: np.ndarray | None, other: np.ndarray | None) -> np.ndarray | None:
    return one if one is None or other is None else np.fmax(one, other)


def tensor_histories(a: Side, b: Side, steps: Sequence[int]) -> list[TensorHistory]:
    """All tensors that both sides recorded, up to the last of these steps."""
    found: dict[tuple[str, int, int], TensorHistory] = defaultdict(TensorHistory)
    for kind in (GRADIENT, PARAMETER):
        for step in sorted(a.steps(kind) & b.steps(kind)):
            if step > max(steps):
                break
            for block in pair_tensors(kind, step, list(a.records(kind, step)), list(b.records(kind, step))).blocks:
                if _is_comparable(block, kind):
                    key = block.a.key
                    name = str(block.a.fields.get("param_name", key.micro))
                    history = found[name, key.rank, block.b.key.rank]
                    of_kind = history.gradients if kind == GRADIENT else history.parameters
                    of_kind[step, key.epoch, key.mini_batch] = block
    return list(found.values())


def tensor_pair(block: Block, kind: str) -> tuple[np.ndarray, np.ndarray]:
    first, second = (record.array(kind).astype(np.float64) for record in (block.a, block.b))
    return first, second


def largest_finite(values: np.ndarray) -> float:
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0))


def _is_comparable(block: Block, kind: str) -> bool:
    shapes = [record.fields[kind].shape if kind in record.fields else None for record in (block.a, block.b)]
    return shapes[0] is not None and shapes[0] == shapes[1]
