"""How recordings look on a terminal: an overview, the fields of records, one sample token by token."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rldbg.recording.records import Record
from rldbg.recording.samples import Sample
from rldbg.recording.statistics import statistics_of
from rldbg.recording.summary import Summary
from rldbg.recording.token_columns import TokenColumns
from rldbg.recording.token_table import TokenTable

_MAX_RANGES = 4
_MAX_TEXT = 240


def summary_view(summary: Summary) -> RenderableType:
    """What is in here: one line in all, then a line a kind."""
    records = sum(kind.records for kind in summary.kinds.values())
    head = Text.assemble(
        (summary.title, "bold"),
        ("  layout ", "dim"),
        (summary.layout, "cyan"),
        ("  records ", "dim"),
        f"{records:,}",
        ("  samples ", "dim"),
        f"{summary.samples:,}",
        ("  size ", "dim"),
        size(sum(kind.bytes for kind in summary.kinds.values())),
        overflow="fold",
    )
    if not summary.kinds:
        return head
    table = _table()
    table.add_column("kind", style="bold")
    for name in ("steps", "ranks", "micro-batches"):
        table.add_column(name)
    for name in ("records", "size"):
        table.add_column(name, justify="right")
    for name, kind in summary.kinds.items():
        table.add_row(
            Text(name),
            ranges(kind.steps),
            ranges(kind.ranks),
            ranges(kind.micros),
            f"{kind.records:,}",
            size(kind.bytes),
        )
    return Group(head, table)


def record_view(record: Record) -> RenderableType:
    """The fields of one record: what they are and how their values lie."""
    title = Text.assemble((str(record.key), "bold"))
    about = [f"{len(record.samples)} samples"] if record.samples else []
    about += [f"role {record.role}"] if record.role else []
    about += [f"{axis} {place}" for axis, place in record.coordinates.items()]
    about += [f"policy version {record.policy_version}"] if record.policy_version is not None else []
    title.append("  " + "  ".join([*about, record.source]), "dim")
    table = _table()
    table.add_column("field", style="bold")
    table.add_column("shape")
    table.add_column("dtype", style="cyan")
    for name in ("min", "mean", "max"):
        table.add_column(name, justify="right")
    table.add_column("not finite")
    for field in statistics_of(record):
        bad = [f"{field.nan:,} NaN"] if field.nan else []
        bad += [f"{field.inf:,} Inf"] if field.inf else []
        numbers = [number(value) for value in (field.min, field.mean, field.max)]
        row: list[RenderableType] = [Text(field.name), field.shape, field.dtype, *numbers]
        if field.preview:
            row[5] = Text(field.preview, "dim", overflow="ellipsis", no_wrap=True)
        table.add_row(*row, Text(" ".join(bad), "bold red"))
    return Group(title, table, Text())


def sample_view(sample: Sample, decode: Callable[[int], str] | None = None) -> RenderableType:
    """Everything about one sample: single values first, then the tokens, those trained on marked."""
    columns = TokenColumns(sample)
    parts: list[RenderableType] = [_sample_head(sample, columns)]
    if not len(columns.tokens):
        parts.append(Text("  no token ids are recorded for this sample", "dim"))
        return Group(*parts)
    parts.append(TokenTable(columns, number, decode))
    for name, values in columns.unaligned.items():
        parts.append(Text(f"  {name}: {len(values)} values that fit no end of {len(columns.tokens)} tokens", "yellow"))
    return Group(*parts)


def _sample_head(sample: Sample, columns: TokenColumns) -> RenderableType:
    trained = int(columns.trained.sum()) if columns.trained is not None else 0
    head = Text.assemble(
        ("sample ", "dim"),
        (str(sample.id), "bold"),
        ("  step ", "dim"),
        str(sample.step),
        ("  tokens ", "dim"),
        f"{len(columns.tokens)}",
        ("  trained on ", "dim"),
        f"{trained}",
        ("  prompt ", "dim"),
        sample.prompt_hash or "–",
    )
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for row in sample.rows:
        table.add_row(str(row.key), Text(f"row {row.row} of {row.source}"))
    for name, value in sample.single_values().items():
        if not _is_empty(value):
            table.add_row(Text(name), Text(_short(value)))
    return Group(head, table)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}… ({len(text):,} characters)"


def _is_empty(value: object) -> bool:
    return value is None or (isinstance(value, dict | list | str) and not value)


def ranges(numbers: Sequence[int]) -> str:
    """Whole numbers as people write them: 0–99, 5, 7–8; many pieces only as from, to and how many."""
    pieces: list[list[int]] = []
    for value in numbers:
        if pieces and value == pieces[-1][1] + 1:
            pieces[-1][1] = value
        else:
            pieces.append([value, value])
    if len(pieces) > _MAX_RANGES:
        step = numbers[1] - numbers[0]
        regular = all(later - earlier == step for earlier, later in pairwise(numbers))
        return f"{numbers[0]}–{numbers[-1]} " + (f"by {step}" if regular else f"({len(numbers)} of them)")
    return ", ".join(str(low) if low == high else f"{low}–{high}" for low, high in pieces)


def size(count: int) -> str:
    """Bytes with a unit of thousand."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def number(value: float | None) -> str:
    """A number in few characters; nothing where there is none."""
    if value is None or np.isnan(value):
        return ""
    return str(int(value)) if value == int(value) and abs(value) < 1e9 else f"{value:.5g}"


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim", show_edge=False)
