"""What the doctor found: a diagnosis, and checks of a machine. Text from logs is shown as text, never as markup."""

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from rldbg.doctor import Cause, Diagnosis, Failure, ProbeResult, Quote
from rldbg.reports.findings import to_terminal as findings_to_terminal

_STATUS = {"pass": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "bold red"), "skip": ("-", "dim")}
_FRAMES_SHOWN = 6


def to_terminal(diagnosis: Diagnosis, *, verbose: bool = False) -> RenderableType:
    """The root cause first, fallout folded under it, then where to look."""
    parts: list[RenderableType] = [_headline(diagnosis)]
    for number, cause in enumerate(diagnosis.root_causes):
        parts.append(_cause(cause, first=number == 0))
    if diagnosis.first_error is not None:
        parts.append(_failure(diagnosis.first_error))
    if diagnosis.also_says:
        parts.append(Text("the log also says", "bold"))
        parts += [_quoted(quote) for quote in diagnosis.also_says]
    if diagnosis.fallout:
        parts.append(_folded("consequences", diagnosis.fallout, verbose=verbose))
    if diagnosis.next:
        parts.append(Text("where to look next", "bold"))
        parts += [_indented(Text.assemble(("→ ", "green"), step, overflow="fold")) for step in diagnosis.next]
    if diagnosis.findings:
        parts.append(findings_to_terminal(diagnosis.findings))
    if diagnosis.notes and verbose:
        parts.append(_folded("also seen, not the cause", diagnosis.notes, verbose=True))
    if diagnosis.probes:
        parts.append(
            probes_to_terminal(
                [probe for probe in diagnosis.probes if probe.status == "fail" or (verbose and probe.status == "warn")]
            )
        )
    return Group(*parts)


def _headline(diagnosis: Diagnosis) -> Text:
    style = {"found": "bold red", "unknown": "bold yellow", "healthy": "bold green"}[diagnosis.verdict]
    read = f"  ({diagnosis.read_files} log{'s' * (diagnosis.read_files != 1)}, {diagnosis.read_bytes:,} bytes)"
    return Text.assemble((diagnosis.headline, style), (read, "dim"), overflow="fold")


def _cause(cause: Cause, *, first: bool) -> RenderableType:
    lines: list[RenderableType] = []
    if not first:
        lines.append(Text.assemble("also: ", (cause.title, "bold"), f" ({cause.id})"))
    if cause.detail:
        lines.append(_indented(Text(f"in this log: {cause.detail}", "bold", overflow="fold")))
    lines.append(_indented(Text(cause.cause, overflow="fold")))
    lines.append(_indented(Text(f"confidence {cause.confidence}: {'; '.join(cause.why)}", "dim", overflow="fold")))
    for quote in cause.evidence[:3]:
        where = f"{quote.file}:{quote.line}" + (f" {quote.speaker}" if quote.speaker else "")
        lines.append(_indented(Text(where, "cyan", overflow="fold"), 4))
        lines.append(_indented(Text(quote.text[:400], overflow="fold"), 6))
    if cause.count > 3:
        lines.append(_indented(Text(f"... seen {cause.count} times", "dim"), 4))
    lines += [_indented(Text.assemble(("→ ", "green"), step, overflow="fold")) for step in cause.fix]
    if cause.sources:
        lines.append(_indented(Text("known from: " + ", ".join(cause.sources), "dim", overflow="fold")))
    return Group(*lines)


def _quoted(quote: Quote) -> RenderableType:
    place = Text(f"{quote.file}:{quote.line}", "cyan", overflow="fold")
    return Group(_indented(place), _indented(Text(quote.text, overflow="fold"), 4))


def _failure(failure: Failure) -> RenderableType:
    who = f" {failure.place.speaker}" if str(failure.place.speaker) else ""
    lines: list[RenderableType] = [
        Text("first error without an entry", "bold"),
        _indented(Text(f"{failure.place.file}:{failure.place.line}{who}", "cyan", overflow="fold")),
        _indented(Text(failure.headline, overflow="fold"), 4),
    ]
    lines += [_indented(Text(text, overflow="fold"), 4) for text in failure.more]
    lines += [_indented(Text(frame, "dim", overflow="fold"), 6) for frame in failure.frames[-_FRAMES_SHOWN:]]
    return Group(*lines)


def _folded(title: str, causes: Sequence[Cause], *, verbose: bool) -> RenderableType:
    lines: list[RenderableType] = [Text(f"{title}:", "bold")]
    for cause in causes:
        quote = cause.evidence[0]
        head = Text.assemble(
            f"{cause.id} ×{cause.count}  {cause.title}  ", (f"{quote.file}:{quote.line}", "cyan"), overflow="fold"
        )
        lines.append(_indented(head))
        if verbose:
            lines.append(_indented(Text(quote.text[:300], "dim", overflow="fold"), 4))
    return Group(*lines)


def probes_to_terminal(probes: Iterable[ProbeResult]) -> RenderableType:
    """One line per probe; the fix under those that warn or fail."""
    lines: list[RenderableType] = []
    for probe in probes:
        mark, style = _STATUS[probe.status]
        node = f" [{probe.node}]" if probe.node else ""
        lines.append(
            Text.assemble((f"{mark} ", style), (f"{probe.title}{node}  ", "bold"), probe.reason, overflow="fold")
        )
        if probe.status in ("warn", "fail"):
            lines += [_indented(Text.assemble(("→ ", "green"), step, overflow="fold"), 4) for step in probe.fix]
    return Group(*lines)


def _indented(content: RenderableType, by: int = 2) -> RenderableType:
    return Padding(content, (0, 0, 0, by))
