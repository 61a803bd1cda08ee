"""compare: two recordings, stage by stage, down to the first step, rank, sample and token that differs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rldbg.analysis.configuration import compare_configuration
from rldbg.analysis.explain import explain
from rldbg.analysis.pairing import kinds_to_pair
from rldbg.analysis.results import Comparison
from rldbg.analysis.side import Side
from rldbg.analysis.tolerances import Tolerances
from rldbg.analysis.units import UnitResult, UnitWorker, units_of
from rldbg.core import Finding, IncompleteDataError, Severity
from rldbg.recording import Recording


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
    findings = [*_missing_kinds(a, b, kinds), *(_missing_steps(a, b) if steps is None else ())]
    worker = UnitWorker(a, b, tolerances)
    total = UnitResult(findings=findings)
    for unit in units_of(a, b, chosen, kinds):
        total.merge(worker.run(unit))
    comparison = Comparison(list(total.fields.values()), total.findings, chosen, (a.title, b.title))
    comparison.configuration = compare_configuration(a, b)
    if not comparison.compared:
        raise _nothing_compared(a, b, comparison)
    first = comparison.first_difference
    if first is not None:
        comparison.explanations = explain(a, b, first.stage, *first.update)
    return comparison


def _nothing_compared(a: Side, b: Side, comparison: Comparison) -> IncompleteDataError:
    unreadable = [finding for finding in comparison.findings if finding.id == "unreadable"]
    if unreadable:
        return IncompleteDataError(
            f"nothing could be read: {unreadable[0].evidence[0]}", "rldbg verify names the files"
        )
    return IncompleteDataError(
        f"nothing to compare between {a.title} and {b.title}",
        f"A has {_kinds_text(a)}; B has {_kinds_text(b)}: record the same kinds on both sides",
    )


def _steps_to_compare(a: Side, b: Side, steps: Iterable[int] | None) -> list[int]:
    """The steps asked for, which both sides must have; by default those that both sides have."""
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
    if not asked:
        raise IncompleteDataError("the range of steps is empty", "N:M takes steps N to M - 1; choose one with --step")
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


def _missing_kinds(a: Side, b: Side, kinds: Sequence[str] | None) -> Iterable[Finding]:
    known = {kind for pair in kinds_to_pair(a, b) for kind in pair}
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
