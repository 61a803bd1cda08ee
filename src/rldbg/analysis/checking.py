"""check: every invariant on every step of one recording."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from rldbg.analysis.checks import CHECKS, Check, NotApplicable, StepView
from rldbg.analysis.measure import non_finite_numbers
from rldbg.analysis.side import Side
from rldbg.core import Finding, IncompleteDataError, Severity, UsageError, did_you_mean, worst
from rldbg.lazy import html_by
from rldbg.recording import Recording

INTEGRITY = "integrity"
_SHOWN_PER_CHECK = 5
_FORMER_NAMES = {"only-drawn-tokens-trained": "only-sampled-tokens-trained"}  # accepted for one version


@html_by("check")
@dataclass(frozen=True, slots=True)
class CheckReport:
    """What was checked, what was found, and which checks were not applicable."""

    findings: tuple[Finding, ...]
    passed: tuple[str, ...]
    not_applicable: dict[str, str]
    steps: tuple[int, ...]

    @property
    def verdict(self) -> Literal["pass", "fail", "incomplete"]:
        if worst(self.findings) in (Severity.ERROR, Severity.WARNING):
            return "fail"
        return "pass" if self.passed else "incomplete"

    def to_dict(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "findings": [finding.to_dict() for finding in self.findings],
            "passed": list(self.passed),
            "not_applicable": dict(self.not_applicable),
            "steps": list(self.steps),
        }


@non_finite_numbers()
def check(recording: Recording, *, only: Sequence[str] = (), steps: Iterable[int] | None = None) -> CheckReport:
    """Runs the named checks, all by default, on the steps given, all by default."""
    side = Side(recording, "A")
    versions = set(recording.steps("weights"))
    compared = side.steps()
    known = compared | versions
    chosen = sorted(known if steps is None else set(steps) & known)
    if not chosen:
        raise IncompleteDataError(f"{recording.title} has no such step", "rldbg show lists its steps")
    findings: list[Finding] = []
    passed: list[str] = []
    skipped: dict[str, str] = {}
    wanted = _select(only)
    if not only or INTEGRITY in only:
        broken = [finding for finding in recording.verify() if finding.severity is not Severity.INFO]
        findings.extend(broken)
        if not broken:
            passed.append(INTEGRITY)
    outcomes = {item.id: _Outcome() for item in wanted}
    unread = _Unread()
    # All checks of a step before the next: its records are read once, and then released.
    for step in chosen:
        view = StepView(side, step)
        for item in wanted:
            # A version that is sent behind the last step, or without any, has its weights only.
            if item.of_weights or step in compared:
                with unread.noted(item.id, step):
                    outcomes[item.id].add(item, view)
    findings.extend(unread.findings())
    for item in wanted:
        outcome = outcomes[item.id]
        findings.extend(outcome.shown(item))
        if not outcome.found and outcome.applied:
            passed.append(item.id)
        elif not outcome.found:
            skipped[item.id] = unread.reasons.get(item.id, outcome.reason)
    return CheckReport(tuple(findings), tuple(passed), skipped, tuple(chosen))


@dataclass(slots=True)
class _Outcome:
    """What one check said of the steps so far."""

    found: list[Finding] = field(default_factory=list)
    applied: bool = False
    reason: str = "no step has what it looks at"

    def add(self, item: Check, view: StepView) -> None:
        try:
            self.found.extend(item.findings(view))
            self.applied = True
        except NotApplicable as missing:
            self.reason = str(missing)

    def shown(self, item: Check) -> Iterable[Finding]:
        yield from self.found[:_SHOWN_PER_CHECK]
        if len(self.found) > _SHOWN_PER_CHECK:
            count = len(self.found) - _SHOWN_PER_CHECK
            more = f"{count} more place{'s' * (count > 1)}"
            yield Finding(item.id, Severity.INFO, more, (), "this check fails there too; --step N shows one step", ())


@dataclass(slots=True)
class _Unread:
    """Damaged files: what each error kept from the checks. The rest of the recording is still judged."""

    missed: dict[tuple[int, str], tuple[IncompleteDataError, list[str]]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def noted(self, check_id: str, step: int) -> Iterator[None]:
        try:
            yield
        except IncompleteDataError as error:
            self.missed.setdefault((step, str(error)), (error, []))[1].append(check_id)
            self.reasons[check_id] = f"step {step} cannot be read"

    def findings(self) -> Iterator[Finding]:
        for (step, message), (error, checks) in self.missed.items():
            yield Finding(
                "unreadable",
                Severity.ERROR,
                f"step {step}",
                (message, f"not judged at this step: {', '.join(checks)}"),
                "a file of this step cannot be read, so the checks that need it did not see the step",
                (error.hint,) if error.hint else (),
            )


def _select(only: Sequence[str]) -> list[Check]:
    if not only:
        return list(CHECKS)
    by_id = {item.id: item for item in CHECKS}
    only = [_FORMER_NAMES.get(name, name) for name in only]
    for name in only:
        if name not in by_id and name != INTEGRITY:
            raise UsageError(f"unknown check: {name!r}", did_you_mean(name, by_id, "rldbg check --list"))
    return [by_id[name] for name in only if name in by_id]
