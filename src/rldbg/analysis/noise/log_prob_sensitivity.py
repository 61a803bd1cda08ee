"""How far log probs move when parameters do, measured on the training itself.

The log probs of a sample are recorded from several states of the parameters: before the step, and in each epoch. The
change by its own updates bounds what a perturbation of the parameters may do: with S the largest |change of a log prob|
per distance that the parameters moved, parameters at a distance d may change a log prob by S * d. Updates follow the
directions in which log probs change most, so S is large for a random perturbation; MARGIN covers the small number of
measurements.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from rldbg.analysis.flat_arrays import give_back
from rldbg.analysis.noise.tensors import PARAMETER, TensorHistory
from rldbg.analysis.resampling import Resampled
from rldbg.analysis.samples import StepSamples, pair_samples
from rldbg.analysis.side import Side
from rldbg.analysis.tolerances import Update
from rldbg.core import SampleId

MARGIN = 16.0

# A way between two recorded states of the parameters, by the updates that left them.
_Way = tuple[Update, Update]


def log_prob_sensitivity(a: Side, b: Side, histories: Sequence[TensorHistory]) -> float | None:
    """Change of a log prob per distance of the parameters, the smaller of both sides'; None if it cannot be known."""
    states = sorted({update for history in histories for update in history.parameters})
    found = [_of_side(side, number, states, histories) for number, side in enumerate((a, b))]
    return None if None in found else MARGIN * min(value for value in found if value is not None)


def first_pass_gaps(a: Side, b: Side, resampled: Resampled) -> np.ndarray:
    """How far the log probs of each trained token are apart before the first update."""
    first = min(a.steps("forward_data") | a.steps("old_log_probs"), default=0)
    found = [np.empty(0)]
    for read in (_old_log_probs, _first_forward):
        one, other = (read(side, first) for side in (a, b))
        for sample, partner in _partners(a, b, first, one, other).items():
            if sample not in resampled.samples.get(first, ()):
                found.append(_gaps(one[sample], other[partner]))
    return np.concatenate(found)


def forward_gaps(a: Side, b: Side, steps: Sequence[int], resampled: Resampled) -> dict[Update, np.ndarray]:
    """The differences of the trained tokens' log probs in the pass of each update."""
    found: dict[Update, list[np.ndarray]] = defaultdict(list)
    for step in steps:
        rows = [_trained(side, step) for side in (a, b)]
        names = [[sample for sample, *_ in side] for side in rows]
        partners = _partners(a, b, step, *names)
        for (sample, *update), row in rows[0].items():
            other = rows[1].get((partners.get(sample, sample), update[0], update[1]))
            if other is not None and sample not in resampled.samples.get(step, ()):
                found[step, update[0], update[1]].append(_gaps(row, other))
    return {update: np.concatenate(gaps) for update, gaps in found.items()}


def _partners(
    a: Side, b: Side, step: int, of_a: Iterable[SampleId], of_b: Iterable[SampleId]
) -> Mapping[SampleId, SampleId]:
    """Which samples of B are those of A, whatever either side calls them."""
    return pair_samples(of_a, of_b, StepSamples(a, step), StepSamples(b, step)).to_b


def _trained(side: Side, step: int) -> dict[tuple[SampleId, int, int], np.ndarray]:
    """The log probs of each sample in each update of a step; 0 for tokens that are not trained."""
    found = {}
    for record in side.records("forward_data", step):
        if {"log_probs", "response_mask"} <= record.fields.keys():
            rows = zip(record.samples, record.rows("log_probs"), record.rows("response_mask"), strict=False)
            for sample, row, mask in rows:
                found[sample, record.key.epoch, record.key.mini_batch] = np.where(np.asarray(mask) != 0, row, 0.0)
    return found


def _old_log_probs(side: Side, step: int) -> dict[SampleId, np.ndarray]:
    found: dict[SampleId, np.ndarray] = {}
    for record in side.records("old_log_probs", step):
        if "old_log_probs" in record.fields:
            rows = zip(record.samples, record.rows("old_log_probs"), strict=False)
            found.update((sample, np.asarray(row, np.float64)) for sample, row in rows)
    return found


def _first_forward(side: Side, step: int) -> dict[SampleId, np.ndarray]:
    rows = _trained(side, step).items()
    return {sample: row for (sample, epoch, mini_batch), row in rows if not (epoch or mini_batch)}


def _gaps(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    length = min(len(one), len(other))
    with np.errstate(all="ignore"):
        gaps = np.abs(one[:length] - other[:length])
    return np.asarray(gaps[np.isfinite(gaps)])


def _of_side(side: Side, number: int, states: list[Update], histories: Sequence[TensorHistory]) -> float | None:
    changes = _changes(side, states)
    lengths = _lengths(number, list(changes), histories)
    ratios = [change / lengths[way] for way, change in changes.items() if lengths[way] > 0]
    return max(ratios, default=None)


def _changes(side: Side, states: list[Update]) -> dict[_Way, float]:
    """The largest change of a trained token's log prob on each way."""
    changes: dict[_Way, float] = {}
    for step in sorted({update[0] for update in states}):
        if {(step, *update) for update in side.updates("forward_data", step)} - set(states):
            continue  # passes whose parameters were not recorded
        seen: dict[SampleId, list[tuple[Update, np.ndarray]]] = defaultdict(list)
        for sample, state, log_probs, mask in _passes(side, step, states):
            for earlier, known in seen[sample]:
                length = min(len(known), len(log_probs))
                moved = np.abs(log_probs[:length] - known[:length])[mask[:length]]
                moved = moved[np.isfinite(moved)]
                if earlier < state and moved.size:
                    way = (earlier, state)
                    changes[way] = max(changes.get(way, 0.0), float(moved.max()))
            seen[sample].append((state, log_probs))
    return changes


def _passes(side: Side, step: int, states: list[Update]) -> Iterator[tuple[SampleId, Update, np.ndarray, np.ndarray]]:
    """Each sample's log probs with the state of the parameters that gave them, in the order of states."""
    for record in side.records("old_log_probs", step):
        state = _state_before((step, 0, 0), states)
        if state is not None and "old_log_probs" in record.fields:
            for sample, row in zip(record.samples, record.rows("old_log_probs"), strict=False):
                yield sample, state, np.asarray(row, np.float64), np.ones(len(row), bool)
    for record in sorted(side.records("forward_data", step), key=lambda item: (item.key.epoch, item.key.mini_batch)):
        state = _state_before((step, record.key.epoch, record.key.mini_batch), states)
        if state is not None and {"log_probs", "response_mask"} <= record.fields.keys():
            rows = zip(record.samples, record.rows("log_probs"), record.rows("response_mask"), strict=False)
            for sample, row, mask in rows:
                yield sample, state, np.asarray(row, np.float64), np.asarray(mask) != 0


def _state_before(update: Update, states: list[Update]) -> Update | None:
    """The parameters that an update starts from; None before the first recorded ones."""
    place = bisect_left(states, update)
    return states[place - 1] if place else None


def _lengths(number: int, ways: list[_Way], histories: Sequence[TensorHistory]) -> dict[_Way, float]:
    """The Euclidean length of each way of one side (0 for A, 1 for B), over all tensors."""
    squares = dict.fromkeys(ways, 0.0)
    for history in histories:
        for way in ways:
            if way[0] in history.parameters and way[1] in history.parameters:
                ends = [(block.a, block.b)[number] for block in (history.parameters[update] for update in way)]
                with np.errstate(all="ignore"):
                    gap = np.square(ends[0].array(PARAMETER).astype(np.float64) - ends[1].array(PARAMETER))
                squares[way] += float(gap[np.isfinite(gap)].sum())
                give_back([record.fields[PARAMETER] for record in ends])
    return {way: square**0.5 for way, square in squares.items()}
