"""Tables of the reports."""

from collections.abc import Iterable

from rich.console import RenderableType
from rich.table import Table


def table(*titles: str, rows: Iterable[Iterable[RenderableType]], title: str | None = None) -> Table:
    """A table without lines, one row per item."""
    made = Table(*titles, title=title, box=None, header_style="bold")
    for row in rows:
        made.add_row(*row)
    return made
