"""compare: two recordings, stage by stage, down to the first step, rank, sample and token that differs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rldbg.analysis.explain import Explanation, explain
from rldbg.analysis.fields import FieldDifference, Place, compare_field, shared_fields
from rldbg.analysis.measure import Measured
from rldbg.analysis.pairing import Block, Pairing, kinds_to_pair, pair_kind
from rldbg.analysis.samples import StepSamples
from rldbg.analysis.side import Side
from rldbg.analysis.stages import Stage, stage_of
from rldbg.analysis.tolerances import Tolerances
from rldbg.core import Finding, IncompleteDataError, Severity, worst
from rldbg.recording import Recording

Verdict = Literal["equal", "different", "incomplete"]


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """Where two recordings first part, in causal order."""

    stage: Stage
    kind: str
    field: str
    step: int
    place: Place
    epoch: int = 0
    mini_batch: int = 0

    def to_dict(self) -> dict[str, Any]:
        place = self.place
        return {
            "stage": self.stage.value,
            "kind": self.kind,
            "field": self.field,
            "step": self.step,
            "epoch": self.epoch,
            "mini_batch": self.mini_batch,
            "rank": place.rank,
            "micro": place.micro,
            "sample": place.sample,
            "row": place.row,
            "token": place.token,
            "index": None if place.index is None else list(place.index),
            "name": place.name or None,
            "a": place.a,
            "b": place.b,
        }


@dataclass(slots=True)
class FieldResult:
    """One field of one kind over all compared steps."""

    kind: str
    field: str
    stage: Stage
    measured: Measured = dataclasses.field(default_factory=Measured)
    first: FirstDifference | None = None
    worst: FirstDifference | None = None
    worst_excess: float = float("-inf")
    notes: set[str] = dataclasses.field(default_factory=set)
    blocks: dict[tuple[int, int, int], float] = dataclasses.field(default_factory=dict)

    @property
    def equal(self) -> bool:
        return self.first is None

    def add(self, step: int, block: Block, difference: FieldDifference) -> None:
        self.measured.add(difference.measured)
        cell = (step, block.a.key.rank, block.a.key.micro)
        self.blocks[cell] = max(self.blocks.get(cell, 0.0), difference.measured.max_abs)
        if difference.note:
            self.notes.add(difference.note)
        if difference.first is not None:
            key = block.a.key
            here = FirstDifference(self.stage, self.kind, self.field, step, difference.first, key.epoch, key.mini_batch)
            if self.first is None or _order(here) < _order(self.first):
                self.first = here
        if difference.worst is not None and difference.measured.max_abs >= self.worst_excess:
            self.worst = FirstDifference(self.stage, self.kind, self.field, step, difference.worst)
            self.worst_excess = difference.measured.max_abs

    def to_dict(self) -> dict[str, Any]:
        measured = self.measured
        return {
            "kind": self.kind,
            "field": self.field,
            "verdict": "equal" if self.equal else "different",
            "compared": measured.compared,
            "beyond": measured.beyond,
            "max_abs": measured.max_abs,
            "mean_abs": measured.mean_abs,
            "max_rel": measured.max_rel,
            "cosine": measured.cosine,
            "nan": [measured.nan_a, measured.nan_b],
            "inf": [measured.inf_a, measured.inf_b],
            "first": None if self.first is None else self.first.to_dict(),
            "worst": None if self.worst is None else self.worst.to_dict(),
            "notes": sorted(self.notes),
        }


@dataclass(slots=True)
class Comparison:
    """The result: a verdict, the first difference, every field, and what stood in the way."""

    fields: list[FieldResult]
    findings: list[Finding]
    steps: list[int]
    explanations: list[Explanation] = dataclasses.field(default_factory=list)

    @property
    def compared(self) -> int:
        return sum(result.measured.compared for result in self.fields)

    @property
    def first_difference(self) -> FirstDifference | None:
        """The earliest optimizer step decides, then the causal order of the stages, then the place.

        What differs after one optimizer step differs in every stage of the next one, so stages are only ordered within.
        """
        found = [result.first for result in self.fields if result.first is not None]
        return min(found, key=lambda item: (*_update(item), item.stage.order, _order(item)), default=None)

    @property
    def verdict(self) -> Verdict:
        if self.first_difference is not None or any(finding.id == "unaligned" for finding in self.findings):
            return "different"
        return "incomplete" if worst(self.findings) is Severity.ERROR else "equal"

    def stages(self) -> list[dict[str, Any]]:
        """One row a stage that was compared, in causal order."""
        rows = []
        for stage in Stage:
            results = [result for result in self.fields if result.stage is stage]
            if not results:
                continue
            total = Measured()
            for result in results:
                total.add(result.measured)
            rows.append(
                {
                    "stage": stage.value,
                    "verdict": "equal" if all(result.equal for result in results) else "different",
                    "compared": total.compared,
                    "beyond": total.beyond,
                    "max_abs": total.max_abs,
                    "mean_abs": total.mean_abs,
                    "max_rel": total.max_rel,
                    "nan": [total.nan_a, total.nan_b],
                    "fields": [result.to_dict() for result in results],
                }
            )
        return rows

    def to_dict(self) -> dict[str, Any]:
        first = self.first_difference
        return {
            "verdict": self.verdict,
            "first_difference": None if first is None else first.to_dict(),
            "steps": self.steps,
            "stages": self.stages(),
            "explanations": [item.to_dict() for item in self.explanations],
            "findings": [finding.to_dict() for finding in self.findings],
        }


def compare(
    a: Recording,
    b: Recording,
    *,
    steps: Iterable[int] | None = None,
    kinds: Sequence[str] | None = None,
    tolerances: Tolerances | None = None,
    num_ranks: int | None = None,
    num_micros: int | None = None,
) -> Comparison:
    """Compares what both recordings hold. Raises IncompleteDataError when there is nothing to compare."""
    tolerances = tolerances or Tolerances()
    left, right = (
        Side(recording, label, num_ranks=num_ranks, num_micros=num_micros) for recording, label in ((a, "A"), (b, "B"))
    )
    return _compare_sides(left, right, steps, kinds, tolerances)


def _compare_sides(
    a: Side, b: Side, steps: Iterable[int] | None, kinds: Sequence[str] | None, tolerances: Tolerances
) -> Comparison:
    chosen = _steps_to_compare(a, b, steps)
    shared = [pair for pair in kinds_to_pair(a, b) if kinds is None or pair[0] in kinds or pair[1] in kinds]
    findings = [*_missing_kinds(a, b, kinds, shared), *(_missing_steps(a, b) if steps is None else ())]
    results: dict[tuple[str, str], FieldResult] = {}
    for step in chosen:
        samples_a, samples_b = StepSamples.read(a, step), StepSamples.read(b, step)
        for pair in shared:
            pairing = pair_kind(a, b, pair, step, samples_a, samples_b)
            findings.extend(_pairing_findings(pairing))
            for block in pairing.blocks:
                _compare_block(results, step, block, tolerances)
    comparison = Comparison(list(results.values()), _once(findings), chosen)
    first = comparison.first_difference
    if first is not None:
        comparison.explanations = explain(a, b, first.stage, *_update(first))
    if not comparison.compared:
        raise IncompleteDataError(
            f"nothing to compare between {a.title} and {b.title}",
            f"A has {_kinds_text(a)}; B has {_kinds_text(b)}: record the same kinds on both sides",
        )
    return comparison


def _compare_block(
    results: dict[tuple[str, str], FieldResult], step: int, block: Block, tolerances: Tolerances
) -> None:
    kind = block.a.key.kind
    for name in shared_fields(block):
        result = results.setdefault((kind, name), FieldResult(kind, name, stage_of(kind, name)))
        result.add(step, block, compare_field(block, name, tolerances))


def _steps_to_compare(a: Side, b: Side, steps: Iterable[int] | None) -> list[int]:
    """The steps asked for, which both sides must have; by default those that either side has."""
    has_a, has_b = a.steps(), b.steps()
    for recording, has in ((a, has_a), (b, has_b)):
        if not has:
            raise IncompleteDataError(f"{recording.title} holds no records", "check the path with `rldbg show`")
    if steps is None:
        shared = sorted(has_a & has_b)
        if not shared:
            raise IncompleteDataError(
                f"no step is in both: A has {_some(has_a)}, B has {_some(has_b)}", "record the same steps on both sides"
            )
        return shared
    asked = sorted(set(steps))
    for step in asked:
        for recording, has in ((a, has_a), (b, has_b)):
            if step not in has:
                raise IncompleteDataError(
                    f"step {step} is not in {recording.title}, which has {_some(has)}", "choose one with --step"
                )
    return asked


def _some(steps: set[int]) -> str:
    ordered = sorted(steps)
    if len(ordered) <= 8:
        return "steps " + ", ".join(map(str, ordered)) if ordered else "none"
    return f"{len(ordered)} steps from {ordered[0]} to {ordered[-1]}"


def _kinds_text(recording: Side) -> str:
    return ", ".join(recording.kinds()) or "nothing"


def _missing_kinds(
    a: Side, b: Side, kinds: Sequence[str] | None, paired: Sequence[tuple[str, str]]
) -> Iterable[Finding]:
    known = {kind for pair in paired for kind in pair}
    for one, other in ((a, b), (b, a)):
        for kind in one.kinds():
            if kind not in other.kinds() and kind not in known and (kinds is None or kind in kinds):
                yield Finding(
                    "kind-on-one-side",
                    Severity.INFO,
                    kind,
                    (f"only {one.label} ({one.title}) has it",),
                    "the kind was not recorded on the other side, so it was not compared",
                    (f"switch it on there: dump_options.{kind}: true",),
                )


def _missing_steps(a: Side, b: Side) -> Iterable[Finding]:
    for one, other in ((a, b), (b, a)):
        missing = one.steps() - other.steps()
        if missing:
            yield Finding(
                "step-on-one-side",
                Severity.ERROR,
                _some(missing),
                (f"only {one.label} ({one.title}) has them",),
                "the other run ended earlier, recorded other steps, or lost files",
                ("compare the steps both have with --step", f"rldbg verify {other.title}"),
            )


def _pairing_findings(pairing: Pairing) -> Iterable[Finding]:
    where = f"{pairing.kind} step {pairing.step}"
    if pairing.method == "place":
        yield Finding(
            "aligned-by-place",
            Severity.INFO,
            pairing.kind,
            ("rows were matched by (rank, micro-batch, row)",),
            "these records carry neither sample ids nor input_ids",
            ("record with sample ids, so that order and packing cannot matter",),
        )
    for side, left in (("A", pairing.only_a), ("B", pairing.only_b)):
        if left:
            shown = tuple(left[:5]) + ((f"and {len(left) - 5} more",) if len(left) > 5 else ())
            yield Finding(
                "unaligned",
                Severity.ERROR,
                where,
                (f"{len(left)} only in {side}:", *shown),
                "they have no counterpart on the other side, so they could not be compared",
                ("check that both runs used the same data, seed and number of ranks",),
            )


def _once(findings: list[Finding]) -> list[Finding]:
    return list(dict.fromkeys(findings))


def _update(item: FirstDifference) -> tuple[int, int, int]:
    """Which optimizer step of the run."""
    return (item.step, item.epoch, item.mini_batch)


def _order(item: FirstDifference) -> tuple[int, ...]:
    place = item.place
    return (*_update(item), place.rank, place.micro, place.row or 0, place.token or 0)
