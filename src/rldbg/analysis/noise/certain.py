"""Differences that no rounding makes, however far two runs have drifted apart.

Each side's own numbers tell by which rule its advantages follow from its rewards, its ratios from its log probs, its
losses from its tokens. Noise moves the numbers on both sides of a rule alike: two sides that follow different rules
differ, whatever the noise is. So do a side whose engine holds other weights than were sent, one whose gradients or
parameters have fewer bits, and one whose update changes nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from rldbg.analysis.explain.evidence import Evidence, Explanation, Hypothesis, tried
from rldbg.analysis.explain.passes import SideStep
from rldbg.analysis.fields import Place
from rldbg.analysis.measured import Measured
from rldbg.analysis.noise.precision import computing_roundoff
from rldbg.analysis.noise.same_weights import APART_AT_LEAST, Certain, odd_passes
from rldbg.analysis.noise.tensors import tensor_histories
from rldbg.analysis.results import FieldResult, FirstDifference, first_of
from rldbg.analysis.samples import common_prefix
from rldbg.analysis.side import Side
from rldbg.analysis.stages import Stage
from rldbg.analysis.units import UnitResult

NOTE = "shown by each side's own numbers, which noise affects equally"
# Elements are coarse if they all fit into the bits of float16; fewer elements than these may do so by chance.
_FEWEST_ELEMENTS, _COARSE_BITS = 64, 11


def judge_by_rules(a: Side, b: Side, steps: Sequence[int], result: UnitResult) -> None:
    """Marks fields as different that noise was thought to explain, where rules say otherwise."""
    for step in steps:
        first = first_of(result.fields.values())
        if first is not None and first.step < step:
            return
        evidence = Evidence(a, b, step)
        for item in _differences(a, b, step, evidence):
            _mark(result, item, evidence)


# The quantity of tokens that a field holds.
_OF_TOKENS = {"logprobs": "rollout_log_probs", "old_log_probs": "old_log_probs", "log_probs": "log_probs"}


def _mark(result: UnitResult, item: Certain, evidence: Evidence) -> None:
    known = [field.first for field in result.fields.values() if field.stage is item.stage and field.first is not None]
    if any(first.update <= (item.step, *item.update) for first in known):
        return  # an element of the stage says so, and where
    field = result.fields.setdefault(
        (item.kind, item.field), FieldResult(item.kind, item.field, item.stage, Measured())
    )
    place = _first_token(evidence, item) or Place(0, 0, None, None, None, None, item.a, item.b)
    where = FirstDifference(item.stage, item.kind, item.field, item.step, place, *item.update)
    if field.first is None or where.update < field.first.update:
        field.first = where
        field.worst = field.worst or where
        field.measured.beyond += 1
        field.measured.compared = max(field.measured.compared, 1)
        field.notes.add(NOTE)


def _first_token(evidence: Evidence, item: Certain) -> Place | None:
    """The first token at which the two sides are apart, of those before which both have the same."""
    name = _OF_TOKENS.get(item.field)
    for row, (one, other) in enumerate(evidence.samples if name else ()):
        assert name is not None
        a, b = one.trained(name), other.trained(name)
        if a is None or b is None:
            continue
        same = common_prefix(one.tokens, other.tokens)
        count = min(np.searchsorted(a[1], same), np.searchsorted(b[1], same))
        apart = np.flatnonzero(np.abs(a[0][:count] - b[0][:count]) > APART_AT_LEAST)
        if apart.size:
            at, key = int(apart[0]), one.quantities[name].source
            token = int(a[1][at]) - (0 if item.field == "logprobs" else one.prompt_length)
            values = float(a[0][at]), float(b[0][at])
            return Place(key.rank, key.micro, row, str(one.sample), token, None, *values)
    return None


def _differences(a: Side, b: Side, step: int, evidence: Evidence) -> Iterator[Certain]:
    from rldbg.analysis.explain import advantages, losses, other_passes, ratios

    yield from _held_weights(a, b, step)
    yield from odd_passes(evidence)
    yield from _of_rules(evidence, (advantages.normalisation,), Stage.ADVANTAGE, "is_loss_debug", "advantages")
    yield from _of_rules(
        evidence, (other_passes.ratio_always_one,), Stage.OLD_LOG_PROBS, "old_log_probs", "old_log_probs"
    )
    yield from _of_rules(evidence, (ratios.form,), Stage.RATIO, "is_loss_debug", "prob_ratio")
    yield from _of_rules(evidence, losses.RULES, Stage.LOSS, "loss", "loss")
    yield from _of_tensors(evidence)


def _held_weights(a: Side, b: Side, step: int) -> Iterator[Certain]:
    """An engine that holds other weights than it was sent, on one side only."""
    known = [side.weight_faults for side in (a, b)]
    odd = [bool(faults.get(step)) for faults in known if faults is not None]
    if len(odd) == 2 and odd[0] != odd[1]:
        said = ["other weights than were sent" if item else "those that were sent" for item in odd]
        yield Certain(Stage.TRAJECTORY, "weights", "held", step, a=said[0], b=said[1])


def _of_rules(
    evidence: Evidence, rules: Sequence[Hypothesis], stage: Stage, kind: str, field: str
) -> Iterator[Certain]:
    """The first optimizer step up to which the passes of both sides tell that their rules differ."""
    said = _fitting(evidence, rules)
    if said is None:
        return
    updates = sorted({item.update for _, side in evidence.sides for item in side.micros})
    for update in updates if stage is not Stage.ADVANTAGE else updates[:1]:
        if update == updates[-1] or _fitting(evidence.until(update), rules) is not None:
            words = {side: str(said.parameters[side]) for side in "ab" if side in said.parameters}
            yield Certain(stage, kind, field, evidence.step, update, **words)
            return


def _fitting(evidence: Evidence, rules: Sequence[Hypothesis]) -> Explanation | None:
    return next((item for rule in rules for item in tried(rule, evidence) if item.fits), None)


def _of_tensors(evidence: Evidence) -> Iterator[Certain]:
    """Fewer bits on one side, or an update that changes nothing there."""
    for kind, stage in (("gradient", Stage.GRADIENT), ("param", Stage.PARAMETER)):
        places = [[place for place in side.updates(kind) if place[0] == evidence.step] for side in evidence.both]
        for place in sorted(set(places[0]) & set(places[1])):
            coarse = [_is_coarse(side, kind, place) for side in evidence.both]
            # Where both compute coarsely, some kernels round their sums once more.
            if None not in coarse and coarse[0] != coarse[1] and not _both_compute_coarsely(evidence):
                a, b = ("at most 11 bits" if item else "more bits" for item in coarse)
                yield Certain(stage, kind, kind, *place, a=a, b=b)
                break
    moved = [_moved(side) for side in evidence.both]
    for place in sorted(moved[0].keys() & moved[1].keys()):
        if moved[0][place] != moved[1][place]:
            a, b = ("changed" if item[place] else "unchanged" for item in moved)
            yield Certain(Stage.PARAMETER, "param", "param", *place, a=a, b=b)
            return


def _both_compute_coarsely(evidence: Evidence) -> bool:
    a, b = (side.side for side in evidence.both)
    return computing_roundoff(tensor_histories(a, b, [evidence.step])) > 0


def _is_coarse(side: SideStep, kind: str, place: tuple[int, tuple[int, int]]) -> bool | None:
    """Whether all elements fit into eleven bits; None where there are too few that are not 0."""
    from rldbg.analysis.explain.evidence import round_to

    tensors = side.tensors_of(kind, place)
    values = np.concatenate([value.ravel() for value in tensors.values()]) if tensors else np.empty(0)
    values = values[values != 0]
    if len(values) < _FEWEST_ELEMENTS or not np.isfinite(values).all():
        return None
    return bool(np.array_equal(values, round_to(values, _COARSE_BITS)))


def _moved(side: SideStep) -> dict[tuple[int, tuple[int, int]], bool]:
    """Whether each update of the step changed any parameter."""
    places = side.updates("param")
    found = {}
    for before, after in itertools.pairwise(places):
        if after[0] == side.step:
            earlier, later = side.tensors_of("param", before), side.tensors_of("param", after)
            found[after] = any(
                not np.array_equal(value, earlier[name]) for name, value in later.items() if name in earlier
            )
    return found
