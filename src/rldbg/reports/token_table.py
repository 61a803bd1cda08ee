"""One sample's tokens as a table; where the terminal is too narrow for all columns, several under each other."""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

from rich import box
from rich.console import Console, ConsoleOptions
from rich.text import Text

from rldbg.recording import TokenColumns
from rldbg.reports.tables import Table

_GAP = 2


class _Column(NamedTuple):
    title: str
    cells: list[str]
    justify: Literal["left", "center", "right"] = "right"

    @property
    def width(self) -> int:
        return max(map(len, (*self.title.splitlines(), *self.cells)))


class TokenListing:
    """Those trained on are marked, the rest is dim. A number is never broken: its column goes to the next table."""

    def __init__(self, columns: TokenColumns, number: Callable[[float], str], texts: Sequence[str] | None) -> None:
        tokens = columns.tokens.tolist()
        self._start = columns.response_start
        self._trained = [False] * len(tokens) if columns.trained is None else [bool(mark) for mark in columns.trained]
        marks = ["●" if mark else "·" if row >= self._start else "" for row, mark in enumerate(self._trained)]
        self._fixed = [
            _Column("#", [str(row) for row in range(len(tokens))]),
            _Column("token", [str(token) for token in tokens]),
            *([_Column("text", [escaped(text) for text in texts], "left")] if texts is not None else []),
            _Column("trained", marks, "center"),
        ]
        self._values = [
            _Column(name, [number(float(value)) for value in values]) for name, values in columns.columns.items()
        ]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        parts = list(self._parts(self._values, options.max_width))
        if len(parts) > 1:
            # Long names are broken where their words end, so that more columns stand side by side.
            broken = [column._replace(title=column.title.replace("_", "_\n")) for column in self._values]
            parts = list(self._parts(broken, options.max_width))
        for part in parts:
            yield self._table([*self._fixed, *part])

    def _parts(self, values: list[_Column], width: int) -> Iterator[list[_Column]]:
        """The columns of values, as many at a time as stand beside the fixed ones."""
        room = width - sum(column.width + _GAP for column in self._fixed)
        part: list[_Column] = []
        for column in values:
            if part and sum(known.width + _GAP for known in (*part, column)) - _GAP > room:
                yield part
                part = []
            part.append(column)
        yield part

    def _table(self, columns: list[_Column]) -> Table:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim", show_edge=False, collapse_padding=True)
        for column in columns:
            table.add_column(column.title, justify=column.justify, vertical="bottom", overflow="fold")
        for row, trained in enumerate(self._trained):
            cells = (Text(column.cells[row], "" if trained else "dim") for column in columns)
            table.add_row(*cells, end_section=row == self._start - 1)
        return table


def escaped(text: str) -> str:
    """Text in one line whose every character can be seen: spaces at its ends, line breaks, control characters."""
    shown = "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text.replace("\\", "\\\\")
    )
    inner = shown.strip(" ")
    if not inner:
        return "␣" * len(shown)
    before, _, after = shown.partition(inner)
    return "␣" * len(before) + inner + "␣" * len(after)
