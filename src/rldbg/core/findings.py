"""The one type in which every verb reports what it found."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Severity(StrEnum):
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def weight(self) -> int:
        return {"info": 0, "warning": 1, "error": 2}[self.value]


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

    def _repr_html_(self) -> str:
        return to_html([self])


def worst(findings: Iterable[Finding]) -> Severity | None:
    """The highest severity present, or None when there is no finding at all."""
    return max((f.severity for f in findings), key=lambda s: s.weight, default=None)


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """Worst first; the order of discovery is kept within one severity."""
    return sorted(findings, key=lambda f: -f.severity.weight)


def to_html(findings: Iterable[Finding]) -> str:
    """A self-contained HTML fragment; everything in it is escaped."""
    from html import escape  # a table of all named characters, which only pages need

    items = []
    for finding in findings:
        parts = [
            f'<summary><b class="{finding.severity}">{finding.severity}</b> '
            f"<code>{escape(finding.id)}</code> {escape(finding.where)}</summary>"
        ]
        if finding.cause:
            parts.append(f"<p>{escape(finding.cause)}</p>")
        if finding.evidence:
            parts.append("<ul>" + "".join(f"<li>{escape(line)}</li>" for line in finding.evidence) + "</ul>")
        if finding.fix:
            parts.append("<ol>" + "".join(f"<li>{escape(line)}</li>" for line in finding.fix) + "</ol>")
        items.append('<details class="finding" open>' + "".join(parts) + "</details>")
    return '<section class="findings">' + "".join(items) + "</section>"
