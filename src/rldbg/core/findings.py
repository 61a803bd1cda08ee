"""The one type in which every verb reports what it found."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from rldbg.lazy import html_by


class Severity(StrEnum):
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def weight(self) -> int:
        return {"info": 0, "warning": 1, "error": 2}[self.value]


@html_by("findings", "block")
@dataclass(frozen=True, slots=True)
class Finding:
    """Something a user should know: what, how bad, where, by which evidence, why, and what to do."""

    id: str
    severity: Severity
    where: str
    evidence: tuple[str, ...] = ()
    cause: str = ""
    fix: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        lists = {"evidence": list(self.evidence), "fix": list(self.fix)}
        return asdict(self) | {"severity": self.severity.value} | lists

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Finding":
        lists = {"evidence": tuple(data["evidence"]), "fix": tuple(data["fix"])}
        return cls(**{**data, "severity": Severity(data["severity"]), **lists})


def worst(findings: Iterable[Finding]) -> Severity | None:
    """The highest severity present, or None when there is no finding at all."""
    return max((f.severity for f in findings), key=lambda s: s.weight, default=None)


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """Worst first; the order of discovery is kept within one severity."""
    return sorted(findings, key=lambda f: -f.severity.weight)
