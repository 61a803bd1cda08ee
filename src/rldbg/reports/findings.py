"""Findings: worst first, cause and fix under each."""

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from rldbg.core import Finding, Severity, by_severity

_STYLE = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}
_MARK = {Severity.ERROR: "✗", Severity.WARNING: "!", Severity.INFO: "i"}


def to_terminal(findings: Iterable[Finding]) -> RenderableType:
    """One block per cause, with all its places. Text from files is shown as text, never interpreted as markup."""
    causes: dict[tuple[object, ...], list[Finding]] = {}
    for finding in by_severity(findings):
        causes.setdefault((finding.severity, finding.id, finding.cause, finding.fix), []).append(finding)
    return Group(*(block(*places) for places in causes.values()))


def block(finding: Finding, *others: Finding) -> RenderableType:
    """One finding, and where else the same is the case."""
    style = _STYLE[finding.severity]
    head = Text.assemble(
        (f"{_MARK[finding.severity]} {finding.id}", style), "  ", (finding.where, "bold"), overflow="fold"
    )
    lines: list[RenderableType] = [head]
    if finding.cause:
        lines.append(_indented(Text(finding.cause, overflow="fold"), 2))
    evidence = [*finding.evidence, *(": ".join(("also at " + other.where, *other.evidence[:1])) for other in others)]
    lines.extend(_indented(Text(line, "dim", overflow="fold"), 4) for line in evidence)
    lines.extend(_indented(Text.assemble(("→ ", "green"), line, overflow="fold"), 2) for line in finding.fix)
    return Group(*lines)


def _indented(text: Text, columns: int) -> RenderableType:
    return Padding(text, (0, 0, 0, columns), expand=False)
