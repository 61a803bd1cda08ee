"""A comparison judged again where upstream differences may explain it.

What differs before any gradient or parameter does is a real difference, unless it is as small as what the pass itself
rounds. After that, gradients are judged by the size of the terms they sum and by the pass they follow from, parameters
by the optimizer's sensitivity to the recorded gradients, and all that a forward pass computes by the parameters it
started from. NaN or an infinity on one side is always a difference.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from rldbg.analysis.fields import FieldDifference, compare_tensors
from rldbg.analysis.noise.coarse_logits import logits_roundoff
from rldbg.analysis.noise.levels import NoiseLevel
from rldbg.analysis.noise.log_prob_sensitivity import MARGIN, first_pass_gaps, forward_gaps, log_prob_sensitivity
from rldbg.analysis.noise.movement import roundoffs_of_movement
from rldbg.analysis.noise.precision import computing_roundoff, parameter_norm
from rldbg.analysis.noise.tensors import (
    GRADIENT,
    PARAMETER,
    ParameterUpdate,
    TensorHistory,
    largest_finite,
    norms_of,
    step_sizes_of,
    tensor_histories,
    tensor_pair,
)
from rldbg.analysis.noise.unseen_gradients import Unstructured
from rldbg.analysis.resampling import NOTHING_RESAMPLED, Resampled
from rldbg.analysis.results import FieldResult, FirstDifference, first_of
from rldbg.analysis.side import Side
from rldbg.analysis.stages import Stage, stage_of
from rldbg.analysis.tolerances import Tolerances, Update, log_prob_error, roundoff_of
from rldbg.analysis.units import UnitResult, UnitWorker, units_of
from rldbg.analysis.whole import Block

# What the model computes, and so follows its parameters; gradients are judged tensor by tensor.
# Rewards and advantages do where a critic's values or a KL are in them; tolerances tell.
_FOLLOWS_PARAMETERS = frozenset(
    (
        *(Stage.TRAJECTORY, Stage.REWARD, Stage.ADVANTAGE, Stage.OLD_LOG_PROBS, Stage.FORWARD),
        *(Stage.RATIO, Stage.LOSS, Stage.METRICS),
    )
)
# Products of a coarse dtype are summed in float32: of the few hundred roundings that the tables count with, one in
# five is coarse.
_COARSE_ROUNDINGS = 0.2
# A gradient sums products that are rounded once: ten roundoffs of its largest element (measured: two).
_COARSE_PRODUCTS = 0.025
# The first pass shows the rounding of a few hundred tokens; others may be rounded worse.
_MARGIN = 4.0
# Share of tokens that may be farther apart than coarse passes, or perturbed parameters, usually leave them.
_RARE = 0.02
# No float32 pass rounds as badly as one in bfloat16.
_ROUNDED_AT_MOST = roundoff_of("bfloat16")


def judge_with_noise(
    a: Side,
    b: Side,
    steps: Sequence[int],
    kinds: Sequence[str] | None,
    tolerances: Tolerances,
    result: UnitResult,
    resampled: Resampled = NOTHING_RESAMPLED,
) -> list[NoiseLevel]:
    """Replaces what `result` says of fields that upstream differences may explain; the noise after each update."""
    first = first_of(result.fields.values())
    if first is None or not tolerances.propagates or not any(_updates(a, b)):
        return []
    histories = tensor_histories(a, b, steps)
    levels = _Levels()
    is_unseen = not any(history.gradients for history in histories)
    coarse = logits_roundoff(a, b, steps) if is_unseen else computing_roundoff(histories)
    if not coarse and not _may_be_noise(first, a, b) and not _may_be_rounding(first):
        return []
    tensors = {name: FieldResult(name, name, stage_of(name, name)) for name in (GRADIENT, PARAMETER)}
    step_sizes, norms = step_sizes_of(histories), norms_of(histories)
    gaps = forward_gaps(a, b, steps, resampled)
    # What passes round is read from gradients, what updates add from gradients and parameters.
    is_rough = is_unseen or not _has_parameters(a, b)
    rough = roundoffs_of_movement(a, b, gaps, _updates(a, b)) if is_rough else {}
    largest = {update: float(found.max(initial=0.0)) for update, found in gaps.items()}
    unseen = Unstructured(histories, step_sizes, largest) if is_unseen else None
    left = []
    for number, history in enumerate(histories):
        of_shape = None if unseen is None else unseen.allows(number, history, step_sizes)
        for item in history.updates(step_sizes, norms, of_shape):
            difference = _judge_update(item, tolerances)
            levels.see_parameter(item.update, difference, item.squares(), item.gap_square())
            left.append((item.update, item.block, difference))
    levels.sensitivity = log_prob_sensitivity(a, b, histories)
    levels.see_rounding(coarse, parameter_norm(histories), first_pass_gaps(a, b, resampled))
    shown = _shown(largest) if rough else {}
    roundoffs = levels.roundoffs()
    of_updates = {update: max(roundoffs.get(update, 0.0), rough.get(update, 0.0)) for update in {*roundoffs, *rough}}
    given = tolerances.after(of_updates, always=levels.rounding, shown=shown)
    if not rough and levels.sensitivity is None and _are_rare(gaps, given):
        levels.margin = MARGIN
        given = tolerances.after(levels.roundoffs(), always=levels.rounding)
    for update, block, difference in left:
        if update[0] in steps:
            is_lost = not difference.equal and given.at(*update).knows_nothing
            judged = _judge(block, PARAMETER, tolerances, np.asarray(np.inf)) if is_lost else difference
            tensors[PARAMETER].add(update[0], block.a.key, judged)
    for history in histories:
        for update, block, difference in _gradients(history, tolerances, given, largest, coarse, resampled):
            levels.see_gradient(update, difference)
            if update[0] in steps:
                tensors[GRADIENT].add(update[0], block.a.key, difference)
    for name, field in tensors.items():
        known = result.fields.get((name, name))
        if known is not None and known.measured.compared == field.measured.compared:
            result.fields[name, name] = field
    _judge_passes(a, b, steps, kinds, given, result, resampled)
    return levels.all()


def _has_parameters(a: Side, b: Side) -> bool:
    return bool(a.steps(PARAMETER) & b.steps(PARAMETER))


def _updates(a: Side, b: Side) -> Iterator[Update]:
    """Without parameters, each pass is taken to be followed by an update."""
    for kind in (GRADIENT, PARAMETER, *(() if _has_parameters(a, b) else ("forward_data", "loss"))):
        for step in a.steps(kind) & b.steps(kind):
            yield from ((step, *update) for update in a.updates(kind, step))


def _shown(largest: Mapping[Update, float]) -> dict[Update, float]:
    """The roundoff that would leave log probs as far apart as those of each pass, and of earlier ones of its step."""
    return {
        update: _MARGIN
        * max(gap for other, gap in largest.items() if other[0] == update[0] and other <= update)
        / log_prob_error(1.0)
        for update in largest
    }


def _are_rare(gaps: Mapping[Update, np.ndarray], given: Tolerances) -> bool:
    """Whether few tokens, after the first update, are farther apart than the parameters are thought to move them.

    Without two passes over the same tokens, the sensitivity of the most sensitive one is unknown.
    """
    beyond = [
        found > given.at(*update).of("forward_data", "log_probs", "float32", "float32").atol
        for update, found in gaps.items()
        if given.at(*update).drift
    ]
    return bool(beyond) and 0 < float(np.mean(np.concatenate(beyond))) <= _RARE


def _may_be_noise(first: FirstDifference, a: Side, b: Side) -> bool:
    """Before the first update no parameter differs: a difference then is real, unless it is in a sum or an update."""
    return first.stage in (Stage.GRADIENT, Stage.PARAMETER) or first.update > min(_updates(a, b))


def _may_be_rounding(first: FirstDifference) -> bool:
    """Very confident models amplify the rounding of their first pass."""
    a, b = first.place.a, first.place.b
    if first.stage not in _FOLLOWS_PARAMETERS or not isinstance(a, float) or not isinstance(b, float):
        return False
    return abs(a - b) <= _ROUNDED_AT_MOST * max(1.0, abs(a))


def _judge(block: Block, name: str, tolerances: Tolerances, allowance: np.ndarray) -> FieldDifference:
    tolerance = tolerances.of(name, name, block.a.dtype(name), block.b.dtype(name))
    return compare_tensors(block, name, tolerance, allowance)


def _judge_update(item: ParameterUpdate, tolerances: Tolerances) -> FieldDifference:
    found = _judge(item.block, PARAMETER, tolerances, item.allowance)
    if found.equal or item.cancelled is None or found.measured.beyond > item.cancelled.expected:
        return found
    decayed = _judge(item.block, PARAMETER, tolerances, item.cancelled.allowance)
    return decayed if decayed.equal else found


def _gradients(
    history: TensorHistory,
    alone: Tolerances,
    given: Tolerances,
    gaps: Mapping[Update, float],
    coarse: float,
    resampled: Resampled,
) -> list[tuple[Update, Block, FieldDifference]]:
    """Each gradient with what its parameters allow, in units of the terms that it sums.

    What a pass may round says little of its gradient: the gap of the log probs that it follows from says more, with a
    few roundings of its own. Before the first update nothing else differs, and its own size counts for these.
    """
    found = []
    sizes_of_terms = history.gradient_terms()
    for update, block in history.gradients.items():
        dtypes = (block.a.dtype(GRADIENT), block.b.dtype(GRADIENT))
        pair = tensor_pair(block, GRADIENT)
        sizes = np.maximum(*(np.abs(part) for part in pair))
        largest = terms = sizes_of_terms[update]
        allowed = given.at(*update)
        if resampled.follows(update[0]):
            found.append((update, block, _judge(block, GRADIENT, alone, np.asarray(np.inf))))
            continue
        if update in gaps:
            allowed = allowed.at_most(gaps[update] / log_prob_error(1.0) + coarse * _COARSE_PRODUCTS)
            terms = largest if allowed.drift else largest_finite(sizes)
        floor, whole = (each.of(GRADIENT, GRADIENT, *dtypes) for each in (alone, allowed))
        allowance = whole.atol - floor.atol + (whole.scale - floor.scale) * terms
        allowance += floor.scale * (largest - largest_finite(sizes))
        extra = allowance + (whole.rtol - floor.rtol) * np.nan_to_num(sizes, nan=0.0, posinf=0.0)
        found.append((update, block, compare_tensors(block, GRADIENT, floor, extra)))
    return found


def _judge_passes(
    a: Side,
    b: Side,
    steps: Sequence[int],
    kinds: Sequence[str] | None,
    given: Tolerances,
    result: UnitResult,
    resampled: Resampled,
) -> None:
    """Fields beyond tolerance that follow the parameters, with the tolerances that the parameters leave them."""
    suspects = {
        key for key, field in result.fields.items() if field.stage in _FOLLOWS_PARAMETERS and field.first is not None
    }
    if not suspects or not (given.widens or resampled.samples):
        return
    worker = UnitWorker(a, b, given, resampled)
    fresh = UnitResult()
    for unit in units_of(a, b, steps, kinds):
        if any(unit.kinds[0] == kind for kind, _ in suspects):
            fresh.merge(worker.run(unit))
    for key in suspects & fresh.fields.keys():
        field = fresh.fields[key]
        field.measured.allowed = max(0, result.fields[key].measured.beyond - field.measured.beyond)
        result.fields[key] = field


class _Levels:
    """What is seen of each update, over all tensors."""

    def __init__(self) -> None:
        self._gradient: dict[Update, float] = defaultdict(float)
        self._parameter: dict[Update, float] = defaultdict(float)
        self._allowed: dict[Update, int] = defaultdict(int)
        self._squares: dict[Update, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
        self._gap_squares: dict[Update, float] = defaultdict(float)
        self.sensitivity: float | None = None
        # On the relative perturbation of parameters where no sensitivity was measured.
        self.margin = 1.0
        # The equivalent unit roundoff of a pass.
        self.rounding = 0.0

    def see_parameter(
        self, update: Update, difference: FieldDifference, squares: tuple[float, float], gap_square: float
    ) -> None:
        self._gap_squares[update] += gap_square
        self._parameter[update] = max(self._parameter[update], difference.measured.max_abs)
        self._allowed[update] += difference.measured.allowed
        gap, size = self._squares[update]
        self._squares[update] = (gap + squares[0], size + squares[1])

    def see_gradient(self, update: Update, difference: FieldDifference) -> None:
        self._gradient[update] = max(self._gradient[update], difference.measured.max_abs)

    def see_rounding(self, coarse: float, norm: float, shown: np.ndarray) -> None:
        """What each pass rounds: both sides compute with parameters of this norm, in a coarse dtype or in float32.

        A bound, and the gaps that the first pass shows where both sides have the same parameters: the smaller counts.
        A coarse dtype hides most differences of kernels and shows a few as large ones: the first pass may not have had
        its share of them, and where they are not rare they are something else.
        """
        one, usual = log_prob_error(1.0), coarse * _COARSE_ROUNDINGS
        if self.sensitivity is not None:
            self.rounding = self.sensitivity * (coarse or roundoff_of("float32")) * norm / one
        else:
            self.rounding = usual
        if shown.size:
            is_rare = not coarse or np.mean(shown > log_prob_error(usual)) <= _RARE
            self.rounding = min(self.rounding, max(_MARGIN * float(shown.max()) / one if is_rare else 0.0, usual))

    def roundoffs(self) -> dict[Update, float]:
        """The unit roundoff that would move log probs as far as the parameters after each update do.

        Where the recordings tell how sensitive log probs are, by the distance of the parameters; else by the relative
        perturbation of all of them together.
        """
        if self.sensitivity is not None:
            one = log_prob_error(1.0)
            return {update: self.sensitivity * square**0.5 / one for update, square in self._gap_squares.items()}
        return {
            update: self.margin * (gap / size) ** 0.5 if size > 0 else 0.0
            for update, (gap, size) in self._squares.items()
        }

    def all(self) -> list[NoiseLevel]:
        roundoffs = self.roundoffs()
        return [
            NoiseLevel(
                update,
                self._gradient.get(update, 0.0),
                self._parameter.get(update, 0.0),
                self._allowed.get(update, 0),
                roundoffs.get(update, 0.0),
            )
            for update in sorted({*self._gradient, *self._parameter})
        ]
