"""What a report is made of for readers that are not a terminal: agents, files, trackers, notebooks."""

import io
from collections.abc import Iterable, Iterator

from rich.console import Console, RenderableType
from rich.text import Text

_COLUMNS = 120


def to_text(shown: Iterable[RenderableType]) -> str:
    """Text by the line, anything else rendered without colours; trailing blanks are left out."""
    stream = io.StringIO()
    console = Console(file=stream, color_system=None, highlight=False, width=_COLUMNS)
    for item in shown:
        stream.write(f"{item}\n") if isinstance(item, str) else console.print(item)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()).strip("\n")


def to_html(shown: RenderableType | Iterator[RenderableType]) -> str:
    """The same with its colours, for notebooks. Everything is escaped."""
    console = Console(file=io.StringIO(), record=True, highlight=False, width=_COLUMNS, force_jupyter=False)
    for item in shown if isinstance(shown, Iterator) else [shown]:
        console.print(Text(item) if isinstance(item, str) else item)
    return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")
