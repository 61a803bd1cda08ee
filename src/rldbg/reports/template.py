"""What `rldbg check-template` found: a row per property, then every conversation token by token."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from rldbg.reports.tables import Table
from rldbg.templates import Property, RenderedConversation, TemplateReport

_STYLES = {"holds": "green", "broken": "bold red", "not tried": "dim"}


def to_terminal(report: TemplateReport) -> Iterator[RenderableType]:
    table = Table.grid(padding=(0, 2))
    for item in report.properties:
        table.add_row(Text(item.verdict, _STYLES[item.verdict]), item.name, Text(_details(item)))
    yield table
    for rendered in report.conversations:
        share = f"{sum(rendered.trained)} of {len(rendered.trained)} tokens are trained on"
        yield Text(f"\n{rendered.conversation.name}: {share}", "bold")
        yield _tokens(rendered)


def _details(item: Property) -> str:
    if item.verdict != "broken":
        return item.why
    return f"{item.why} (conversation {item.conversation})\n{item.fix}"


def _tokens(rendered: RenderedConversation) -> Text:
    """The conversation's own line breaks are kept; each token is shown in one of two shades, so that token boundaries
    are visible."""
    text = Text()
    for number, (token, trained) in enumerate(zip(rendered.texts, rendered.trained, strict=True)):
        style = "green" if trained else "dim"
        text.append(token.replace("\n", "↵\n"), f"{style} underline" if number % 2 else style)
    return text
