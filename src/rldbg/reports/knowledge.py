"""The known failures: on a terminal, and as documentation pages, one per category, which `docs/generate.py` writes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from rldbg.doctor import KnownFailure, Library
from rldbg.reports.tables import Table

_SHOWN = 20


def failure_pages(library: Library) -> Mapping[str, str]:
    """File name -> Markdown, for docs/failures/."""
    by_category: dict[str, list[KnownFailure]] = {}
    for entry in library.entries.values():
        by_category.setdefault(entry.category, []).append(entry)
    pages = {f"{category}.md": _page(category, entries) for category, entries in by_category.items()}
    return {"index.md": _index(by_category)} | dict(sorted(pages.items()))


def _index(by_category: Mapping[str, list[KnownFailure]]) -> str:
    lines = ["# Known failures", "", "Generated from `src/rldbg/doctor/knowledge`; do not edit.", ""]
    for category, entries in sorted(by_category.items()):
        lines += [f"## [{category}]({category}.md)", ""]
        for entry in sorted(entries, key=lambda item: item.id):
            lines.append(
                f"- [{entry.id}]({category}.md#{entry.id}) ({entry.role.value}): {entry.title} / {entry.title_zh}"
            )
        lines.append("")
    lines += _by_year([entry for entries in by_category.values() for entry in entries])
    return "\n".join(lines).rstrip() + "\n"


def _by_year(entries: Sequence[KnownFailure]) -> Iterator[str]:
    """Which entries rest on a report of which year; a source without a year is code, documentation or older."""
    yield from ("## By year of their reports", "")
    for year in sorted({year for entry in entries for year in entry.years}, reverse=True):
        names = sorted(entry.id for entry in entries if year in entry.years)
        yield f"- {year}: {len(names)} entries: {', '.join(f'`{name}`' for name in names)}"


def _page(category: str, entries: Iterable[KnownFailure]) -> str:
    lines = [f"# Known failures: {category}", "", "Generated from `src/rldbg/doctor/knowledge`; do not edit.", ""]
    for entry in sorted(entries, key=lambda item: item.id):
        lines += _section(entry)
    return "\n".join(lines).rstrip() + "\n"


def _section(entry: KnownFailure) -> list[str]:
    lines = [f"## {entry.id}", "", f"**{entry.title}** ({entry.title_zh}). Role: {entry.role.value}.", ""]
    lines += [
        entry.cause,
        "",
        "What to do:",
        "",
        *(f"{number}. {step}" for number, step in enumerate(entry.fix, 1)),
        "",
    ]
    examples = [example for signature in entry.signatures for example in signature.examples]
    if examples:
        lines += ["Looks like:", "", "```text", *(example.strip() for example in examples), "```", ""]
    if entry.look:
        lines += ["Where the cause is to be found:", "", *(f"- {step}" for step in entry.look), ""]
    for title, others in (("Leads to", entry.leads_to), ("Can be a consequence of", entry.downstream_of)):
        if others:
            lines += [f"{title}: {', '.join(f'`{other}`' for other in others[:_SHOWN])}{_more(others)}.", ""]
    if entry.versions:
        lines += [f"Versions: {entry.versions}.", ""]
    return [*lines, f"Known from: {'; '.join(entry.sources)}.", ""]


def entry_to_terminal(entry: KnownFailure) -> RenderableType:
    """Everything that is known about one failure."""
    lines: list[RenderableType] = [
        Text.assemble((entry.id, "bold"), f"  {entry.title}  ", (entry.title_zh, "dim"), overflow="fold"),
        Text(f"{entry.category}, {entry.role.value}, known from {entry.evidence or 'the sources below'}", "dim"),
        Text(entry.cause, overflow="fold"),
    ]
    lines += [_indented(Text.assemble(("→ ", "green"), step, overflow="fold")) for step in entry.fix]
    for title, items in (
        ("looks like", [example for signature in entry.signatures for example in signature.examples]),
        ("leads to", entry.leads_to),
        ("can be a consequence of", entry.downstream_of),
        ("look", entry.look),
        ("where a line says more, it is told as", [variant.title for variant in entry.variants]),
        ("sources", entry.sources),
    ):
        if items:
            lines.append(Text(title, "bold"))
            lines += [
                _indented(Text(item, overflow="fold")) for item in [*items[:_SHOWN], _more(items).strip()] if item
            ]
    if entry.remedy:
        lines.append(Text(f"rldbg doctor --fix {entry.id} can do part of this", "green"))
    return Group(*lines)


def library_to_terminal(entries: Iterable[KnownFailure]) -> RenderableType:
    """The list of all entries by category."""
    table = Table(box=None, header_style="bold")
    for column in ("category", "id", "role", "reported", "title"):
        table.add_column(column, overflow="fold", no_wrap=column == "id")
    for entry in sorted(entries, key=lambda item: (item.category, item.id)):
        reported = str(max(entry.years, default=""))
        table.add_row(entry.category, entry.id, entry.role.value, reported, entry.title)
    return table


def _more(items: Sequence[str]) -> str:
    return f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""


def _indented(content: RenderableType) -> RenderableType:
    return Padding(content, (0, 0, 0, 2))
