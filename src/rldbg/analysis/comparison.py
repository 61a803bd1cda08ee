"""compare: two recordings, stage by stage, down to the first step, rank, sample and token that differs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from rldbg.analysis.advice import advice
from rldbg.analysis.configuration import compare_configuration
from rldbg.analysis.measure import non_finite_numbers
from rldbg.analysis.missing_kinds import missing_kinds
from rldbg.analysis.noise import judge_with_noise
from rldbg.analysis.pairing import kinds_to_pair
from rldbg.analysis.processes import run_units
from rldbg.analysis.resampling import NOTHING_RESAMPLED, Resampled, engine_noise, resampled
from rldbg.analysis.results import Comparison, FieldResult
from rldbg.analysis.run_metrics import metrics_findings
from rldbg.analysis.samples import StepSamples
from rldbg.analysis.side import Side
from rldbg.analysis.stages import Stage
from rldbg.analysis.tolerances import Tolerances
from rldbg.analysis.units import Unit, UnitResult, UnitWorker, units_of
from rldbg.core import Finding, IncompleteDataError, Severity
from rldbg.recording import Recording, how_to_record


@non_finite_numbers()
def compare(
    a: Recording,
    b: Recording,
    *,
    steps: Iterable[int] | None = None,
    kinds: Sequence[str] | None = None,
    tolerances: Tolerances | None = None,
    num_ranks: int | None = None,
    num_micros: int | None = None,
    shift: int | None = None,
    jobs: int | None = 1,
    on_ray: str | None = None,
    repetitions: Sequence[Recording] = (),
    first_update: bool = False,
) -> Comparison:
    """Compares what both recordings contain. Raises IncompleteDataError when there is nothing to compare.

    `shift` is added to the steps of B; without one, recordings that number the same steps differently are refused.
    `jobs` processes share the work, None for a number chosen by size: they import the caller's main module again, so
    more than one needs an `if __name__ == "__main__"` guard there. `on_ray` names a Ray cluster that runs the
    comparison instead ("auto" for this machine's). `repetitions` are clean runs that should equal A: their
    differences from it are the noise. `first_update` leaves out what follows the first optimizer step of a step.
    """
    left = Side(a, "A", num_ranks=num_ranks, num_micros=num_micros, first_update=first_update)
    right = Side(b, "B", num_ranks=num_ranks, num_micros=num_micros, shift=shift or 0, first_update=first_update)
    right.compare_with(left)
    left.number_like(right)
    right.number_like(left)
    if shift is None:
        _refuse_other_numbering(left, right)
    chosen = _steps_to_compare(left, right, steps)
    total = UnitResult(findings=[*_missing_kinds(left, right, kinds)])
    if steps is None:
        total.findings.extend(_missing_steps(left, right))
    units = units_of(left, right, chosen, kinds)
    tolerances = tolerances or Tolerances()
    for result in run_units(left, right, units, tolerances, jobs=jobs, on_ray=on_ray):
        total.merge(result)
    if (sampled := total.fields.get(("trajectory", "logprobs"))) is not None and sampled.first is not None:
        tolerances = tolerances.of_engines(engine_noise(left, right, min(chosen)))
        total.fields |= _judged_again(left, right, [unit for unit in units if "trajectory" in unit.kinds], tolerances)
    odd = _other_tokens(left, right, chosen, units, tolerances, total)
    noise = judge_with_noise(left, right, chosen, kinds, tolerances, total, odd)
    if tolerances.propagates and kinds is None and any(field.measured.allowed for field in total.fields.values()):
        from rldbg.analysis.noise import judge_by_rules  # with all hypotheses, which most comparisons do not need

        judge_by_rules(left, right, chosen, total)
    others = [Side(item, "A2", num_ranks=num_ranks, num_micros=num_micros) for item in repetitions]
    for other in others:
        other.number_like(left)
    if others:
        from rldbg.analysis.noise import judge_by_repetitions

        judge_by_repetitions(left, right, others, chosen, kinds, tolerances, total)
    unaligned = [finding for finding in total.findings if finding.id == "unaligned"]
    total.findings.extend(advice(list(total.fields.values()), unaligned))
    titles = (left.title, right.title)
    comparison = Comparison(list(total.fields.values()), _said_once(total.findings), chosen, titles, shift or 0)
    comparison.noise = noise
    if others:
        _look_for_structure(comparison, left, right, others)
    comparison.configuration = compare_configuration(left, right)
    if not comparison.compared:
        raise _nothing_compared(left, right, comparison)
    comparison.findings.extend(_noise_unknown(comparison, left, right))
    if comparison.first_difference is not None:
        _add_reasons(comparison, left, right)
        comparison.findings.extend(missing_kinds(comparison, left, right))
    if kinds is None:
        comparison.findings.extend(metrics_findings(comparison, left, right, None if steps is None else chosen))
    return comparison


def _other_tokens(
    a: Side, b: Side, steps: Sequence[int], units: Sequence[Unit], tolerances: Tolerances, result: UnitResult
) -> Resampled:
    """The samples whose tokens differ by noise; `result` is then that of the other samples."""
    tokens = result.fields.get(("trajectory", "tokens"))
    if tokens is None or tokens.first is None or not tolerances.propagates:
        return NOTHING_RESAMPLED
    found = resampled(a, b, steps)
    if found.samples:
        result.fields = _judged_again(a, b, units, tolerances, found)
        result.findings.extend(found.findings)
    return found


def _judged_again(
    a: Side, b: Side, units: Sequence[Unit], tolerances: Tolerances, odd: Resampled = NOTHING_RESAMPLED
) -> dict[tuple[str, str], FieldResult]:
    worker, fresh = UnitWorker(a, b, tolerances, odd), UnitResult()
    for unit in units:
        fresh.merge(worker.run(unit))
    return fresh.fields


def _look_for_structure(comparison: Comparison, a: Side, b: Side, repetitions: Sequence[Side]) -> None:
    """Shapes in the differences from B that the clean repetitions do not have."""
    from rldbg.analysis.layer_structure import layer_structures
    from rldbg.analysis.structure import structures

    found, comparison.noise_statistics = structures(a, b, comparison.steps)
    if found:
        noise = [item for side in repetitions for item in structures(a, side, comparison.steps)[0]]
        clean = {(item.quantity, item.shape) for item in noise}
        comparison.structures = [item for item in found if (item.quantity, item.shape) not in clean]
    comparison.structures += layer_structures(a, b, repetitions, comparison.steps)


def _noise_unknown(comparison: Comparison, a: Side, b: Side) -> Iterable[Finding]:
    """After the first update rounding may have been amplified; names the missing kinds that would decide it."""
    lacking = [kind for kind in ("gradient", "param") if not a.steps(kind) & b.steps(kind)]
    first = comparison.first_difference
    is_later = first is not None and first.step > min(a.steps() & b.steps())
    is_drift = first is None and any(field.measured.allowed for field in comparison.fields)
    if lacking and (is_later or is_drift):
        yield Finding(
            "noise-unknown",
            Severity.INFO,
            "after the first update" if first is None else f"step {first.step}",
            (f"not recorded on both sides: {', '.join(lacking)}",),
            "what differs may be rounding; without these, a small fault of loss or optimizer looks the same"
            if first is None
            else "the runs agree before this step; without these, amplified rounding and a real difference look alike",
            ("record gradient and param on both sides", "give a clean repetition of A with --noise"),
        )


# A step larger than this is compared, but not explained: that would load its tokens into memory.
_EXPLAIN_UP_TO_BYTES = 1 << 29
_LOG_PROB_STAGES = (Stage.TRAJECTORY, Stage.OLD_LOG_PROBS, Stage.FORWARD)


def _add_reasons(comparison: Comparison, a: Side, b: Side) -> None:
    """Explains the difference, as far as the data can be read: a damaged file has its own finding."""
    from rldbg.analysis.explain import explain
    from rldbg.analysis.mismatch_measures import log_prob_mismatch

    first = comparison.first_difference
    assert first is not None
    size = sum(side.size_bytes(kind, first.step) for side in (a, b) for kind in side.kinds())
    if size > _EXPLAIN_UP_TO_BYTES:
        comparison.findings.append(_too_large(first.step, size))
        return
    try:
        comparison.explanations, comparison.candidates, comparison.nearest = explain(a, b, first.stage, *first.update)
        if any(stage.value in comparison.stage_names() for stage in _LOG_PROB_STAGES):
            comparison.mismatch = log_prob_mismatch(a, b, first.step)
    except IncompleteDataError:
        if not any(finding.id == "unreadable" for finding in comparison.findings):
            raise


def _too_large(step: int, size: int) -> Finding:
    return Finding(
        "not-explained",
        Severity.INFO,
        f"step {step}",
        (f"{size / 2**30:.1f} GiB in both recordings",),
        "hypotheses need the whole step in memory, and this step is too large",
        ("compare fewer ranks: --num_ranks", "compare fewer kinds: --kind"),
    )


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


def _refuse_other_numbering(a: Side, b: Side) -> None:
    shift = other_numbering(a, b)
    if shift is not None:
        first = min(a.steps("trajectory"))
        raise IncompleteDataError(
            "the recordings number their steps differently: "
            f"step {first} of A holds the samples of step {first - shift} of B",
            f"add --shift {shift}, or --shift 0 to compare equal step numbers anyway",
        )


def _said_once(findings: Sequence[Finding]) -> list[Finding]:
    """Merges equal findings of several kinds and steps into one, with the first place and evidence."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for finding in findings:
        side = finding.evidence[0].rpartition(" ")[2] if finding.id == "unaligned" else finding.evidence
        groups.setdefault((finding.id, finding.severity, finding.cause, side), []).append(finding)
    return [
        group[0] if len(group) == 1 else replace(group[0], where=f"{group[0].where}, and {len(group) - 1} more places")
        for group in groups.values()
    ]


def _steps_to_compare(a: Side, b: Side, steps: Iterable[int] | None) -> list[int]:
    """The steps asked for, which both sides must have; by default those that both sides have."""
    has_a, has_b = a.steps(), b.steps()
    for recording, has in ((a, has_a), (b, has_b)):
        if not has:
            raise IncompleteDataError(f"{recording.title} has no records", "check the path with `rldbg show`")
    if steps is None:
        shared = sorted(has_a & has_b)
        if not shared:
            raise IncompleteDataError(
                f"no common step: A has {_some(has_a)}, B has {_some(has_b)}", "record the same steps on both sides"
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
                    how_to_record(kind),
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


def other_numbering(a: Side, b: Side) -> int | None:
    """What to add to the steps of B so that they mean those of A; None when the numbers agree or it cannot be known.

    The samples decide: the first steps of both sides hold the same sequences, and equal numbers do not.
    """
    steps_a, steps_b = sorted(a.steps("trajectory")), sorted(b.steps("trajectory"))
    if not steps_a or not steps_b or steps_a[0] == steps_b[0]:
        return None
    first_a = _sequences(a, steps_a[0])
    later = steps_a[0] if steps_a[0] in steps_b else None
    if not first_a or not first_a & _sequences(b, steps_b[0]):
        return None
    if later is not None and first_a & _sequences(b, later):
        return None
    return steps_a[0] - steps_b[0]


def _sequences(side: Side, step: int) -> set[bytes]:
    tokens = StepSamples(side, step).tokens
    return {np.asarray(row, dtype="<i8").tobytes() for row in tokens.values()}
