"""Tables of the reports. No cell loses a character: what is too wide wraps, or goes to a table below."""

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from typing import NamedTuple

import rich.table
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.text import Text

_FOLDED = 20  # a path or an address may be folded, but not into a column narrower than this


class Table(rich.table.Table):
    """A table that is never squeezed: columns whose words do not fit go to a table below, beside the first column."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.update_width(1_000_000)
        widths = [_widths_of(column, self._texts(console, column)) for column in self.columns]
        around = Measurement.get(console, wide, self).maximum - sum(width.natural for width in widths)
        gap = around / len(widths)
        for places in _parts([width.least + gap for width in widths], options.max_width):
            part = copy(self)
            shares = _shared_out([widths[place] for place in places], options.max_width - int(gap * len(places)))
            part.columns = [copy(self.columns[place]) for place in places]
            for number, (column, share) in enumerate(zip(part.columns, shares, strict=True)):
                column._index, column.width, column.overflow = number, share, "fold"
            yield from super(Table, part).__rich_console__(console, options)

    def _texts(self, console: Console, column: rich.table.Column) -> Iterator[Text]:
        for cell in [column.header, *column.cells] if self.show_header else column.cells:
            assert isinstance(cell, str | Text), "a cell is text"
            yield console.render_str(cell) if isinstance(cell, str) else cell


class _Widths(NamedTuple):
    natural: int
    least: int


def _widths_of(column: rich.table.Column, texts: Iterable[Text]) -> _Widths:
    """The width of the longest line of a column, and that of its longest word, or less where it may be folded."""
    natural = least = 0
    for text in texts:
        lines = text.plain.splitlines()
        natural = max([natural, *map(cell_len, lines)])
        if text.overflow != "ellipsis":
            words = lines if column.no_wrap or text.no_wrap else text.plain.split()
            least = max([least, *map(cell_len, words)])
    return _Widths(natural, min(least, _FOLDED) if column.overflow == "fold" and not column.no_wrap else least)


def _parts(needs: Sequence[float], room: int) -> Iterator[list[int]]:
    """The columns of each table: the first, and as many others as stand beside it."""
    part = [0]
    for place in range(1, len(needs)):
        if len(part) > 1 and sum(needs[each] for each in (*part, place)) > room:
            yield part
            part = [0]
        part.append(place)
    yield part


def _shared_out(widths: Sequence[_Widths], room: int) -> list[int]:
    """What each column gets: the widest gives way first, and none more than it can."""
    shares = [width.natural for width in widths]
    for _ in range(sum(shares) - max(room, sum(width.least for width in widths))):
        shares[max(range(len(shares)), key=lambda each: (shares[each] > widths[each].least, shares[each]))] -= 1
    return shares


def table(*titles: str, rows: Iterable[Iterable[RenderableType]], title: str | None = None) -> Table:
    """A table without lines, one row per item."""
    made = Table(*titles, title=title, box=None, header_style="bold")
    for row in rows:
        made.add_row(*row)
    return made
