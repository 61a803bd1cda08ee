"""What a report is made of as plain text, for readers that are not a terminal: agents, files, trackers."""

import io
from collections.abc import Iterable

from rich.console import Console, RenderableType

_COLUMNS = 120


def to_text(shown: Iterable[RenderableType]) -> str:
    """Text by the line, anything else rendered without colours; trailing blanks are left out."""
    stream = io.StringIO()
    console = Console(file=stream, color_system=None, highlight=False, width=_COLUMNS)
    for item in shown:
        stream.write(f"{item}\n") if isinstance(item, str) else console.print(item)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()).strip("\n")
