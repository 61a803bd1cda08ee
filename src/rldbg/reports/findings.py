"""Findings: worst first, cause and fix under each."""

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from rldbg.core import Finding, Severity, by_severity

_STYLE = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}
_MARK = {Severity.ERROR: "✗", Severity.WARNING: "!", Severity.INFO: "i"}


def to_terminal(findings: Iterable[Finding]) -> RenderableType:
    """One block per finding. Text from files is shown as text, never interpreted as markup."""
    return Group(*(_block(finding) for finding in by_severity(findings)))


def _block(finding: Finding) -> RenderableType:
    style = _STYLE[finding.severity]
    head = Text.assemble(
        (f"{_MARK[finding.severity]} {finding.id}", style), "  ", (finding.where, "bold"), overflow="fold"
    )
    lines: list[RenderableType] = [head]
    if finding.cause:
        lines.append(Padding(Text(finding.cause, overflow="fold"), (0, 0, 0, 2), expand=False))
    lines.extend(Padding(Text(line, "dim", overflow="fold"), (0, 0, 0, 4), expand=False) for line in finding.evidence)
    lines.extend(
        Padding(Text.assemble(("→ ", "green"), line, overflow="fold"), (0, 0, 0, 2), expand=False)
        for line in finding.fix
    )
    return Group(*lines)
