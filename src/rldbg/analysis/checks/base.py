"""A check is a small pure function over one step of a recording that yields the violations of an invariant."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from rldbg.analysis.side import Side
from rldbg.analysis.tokens import SampleTokens, read_tokens
from rldbg.core import Finding, SampleId, Severity


class StepView:
    """One step of a recording, read once and shared by all checks."""

    def __init__(self, side: Side, step: int) -> None:
        self.side = side
        self.step = step

    @cached_property
    def samples(self) -> dict[SampleId, SampleTokens]:
        return read_tokens(self.side, self.step)


@dataclass(frozen=True, slots=True)
class Check:
    """An invariant, the likely cause of a violation, and what to do about it.

    `run` yields (where, evidence) for each violation, or raises NotApplicable when the recording lacks what it needs.
    """

    id: str
    title: str
    cause: str
    fix: tuple[str, ...]
    run: Callable[[StepView], Iterable[Violation]]
    severity: Severity = Severity.ERROR

    def findings(self, view: StepView) -> list[Finding]:
        return [
            Finding(self.id, self.severity, violation.where, violation.evidence, self.cause, self.fix)
            for violation in self.run(view)
        ]


@dataclass(frozen=True, slots=True)
class Violation:
    where: str
    evidence: tuple[str, ...]


class NotApplicable(Exception):
    """The recording does not contain what the check needs; the message says what is missing."""
