"""Recordings: the summary, the fields of records, one sample token by token, and what `rldbg verify` found."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import numpy as np
from rich import box
from rich.console import Group, RenderableType
from rich.text import Text

from rldbg.core import Finding, by_severity, number_ranges
from rldbg.recording import Record, Recording, Sample, Summary, TokenColumns, statistics_of
from rldbg.reports.findings import to_terminal as findings_to_terminal
from rldbg.reports.tables import Table
from rldbg.reports.token_table import TokenListing

_MAX_RANGES = 4
_MAX_TEXT = 240
_MAX_HEALTH = 12
_MAX_OF_ONE_ID = 10


def to_terminal(summary: Summary) -> RenderableType:
    """What there is: one line for all, then one line per kind, then what is wrong."""
    return Group(_overview(summary), _health(summary))


def _overview(summary: Summary) -> RenderableType:
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
            ", ".join(f"{count} {part}" for part, count in kind.parts.items()) or ranges(kind.micros),
            f"{kind.records:,}",
            size(kind.bytes),
        )
    return Group(head, table)


def _health(summary: Summary) -> RenderableType:
    health = list(summary.health)
    parts: list[RenderableType] = []
    if summary.is_healthy:
        parts.append(
            Text.assemble(("✓ ", "green"), "no problems found so far; ", ("rldbg verify", "cyan"), " reads every file")
        )
    parts.append(findings_to_terminal(health[:_MAX_HEALTH]))
    if len(health) > _MAX_HEALTH:
        more = f"… and {len(health) - _MAX_HEALTH} more findings: rldbg verify {summary.title}"
        parts.append(Text(more, "dim", overflow="fold"))
    return Group(*parts)


def recording_to_terminal(recording: Recording) -> RenderableType:
    return to_terminal(recording.summary())


def records_to_json(layout: str, records: Sequence[Record]) -> dict[str, Any]:
    """The document of `rldbg show --json` with --step, --kind or --rank."""
    return {
        "layout": layout,
        "records": [
            {
                "key": record.key._asdict(),
                "source": record.source,
                "samples": [str(sample) for sample in record.samples],
                "fields": [asdict(field) for field in statistics_of(record)],
            }
            for record in records
        ],
    }


def record_to_terminal(record: Record) -> RenderableType:
    """The fields of one record: type, shape and statistics of their values."""
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


def sample_to_json(sample: Sample, columns: TokenColumns, texts: Sequence[str] | None = None) -> dict[str, Any]:
    """The document of `rldbg show --sample --json`; `text` is null where no tokenizer is known."""
    return {
        "sample": str(sample.id),
        "step": sample.step,
        "prompt_hash": sample.prompt_hash,
        "records": [row.key._asdict() | {"row": row.row, "source": row.source} for row in sample.rows],
        "values": sample.single_values(),
        "tokens": columns.tokens.tolist(),
        "text": None if texts is None else list(texts),
        "trained": None if columns.trained is None else columns.trained.tolist(),
        "columns": {
            name: [value if math.isfinite(value) else None for value in values.tolist()]
            for name, values in columns.columns.items()
        },
    }


def sample_to_terminal(sample: Sample, columns: TokenColumns, texts: Sequence[str] | None = None) -> RenderableType:
    """Everything about one sample: single values first, then the tokens, those trained on marked."""
    parts: list[RenderableType] = [_sample_head(sample, columns)]
    if not len(columns.tokens):
        parts.append(Text("  no token ids are recorded for this sample", "dim"))
        return Group(*parts)
    parts.append(TokenListing(columns, number, texts))
    for name, values in columns.unaligned.items():
        problem = f"  {name}: {len(values)} values cannot be aligned with {len(columns.tokens)} tokens"
        parts.append(Text(problem, "yellow"))
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


def verification_to_terminal(title: str, records: int, findings: Sequence[Finding], is_fine: bool) -> RenderableType:
    """The worst first; the number per id is limited, because a lost disk causes thousands."""
    parts: list[RenderableType] = []
    if is_fine:
        count = "1 record, complete" if records == 1 else f"{records:,} records, all complete"
        parts.append(Text.assemble(("✓ ", "green"), f"{title}: {count}"))
    shown: Counter[str] = Counter()
    kept = []
    for finding in by_severity(findings):
        shown[finding.id] += 1
        if shown[finding.id] <= _MAX_OF_ONE_ID:
            kept.append(finding)
    parts.append(findings_to_terminal(kept))
    for id, count_of_id in shown.items():
        if count_of_id > _MAX_OF_ONE_ID:
            parts.append(Text(f"… and {count_of_id - _MAX_OF_ONE_ID:,} more {id}: --json lists all of them", "dim"))
    return Group(*parts)


def ranges(numbers: Sequence[int]) -> str:
    """Integers as people write them: 0–99, 5, 7–8; many pieces only as from, to and how many."""
    pieces = number_ranges(numbers)
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
