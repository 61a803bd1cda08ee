"""A comparison in the report format of the NexRL document, line by line.

Where the document looks at five trajectories, at losses only, and at ranks it was told of, this covers all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rldbg.analysis import Comparison, FieldResult

# The document calls a loss different beyond this.
LOSS_LIMIT = 1e-5
_RULE = "=" * 80


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the report: its title, the kinds it covers, and what its values are called."""

    title: str
    kinds: tuple[str, ...]
    noun: str


SECTIONS = (
    Section("TRAJECTORIES", ("trajectory", "prepared_trajectories"), "Trajectory"),
    Section("FORWARD_DATA_ALL", ("forward_data",), "Forward data"),
    Section("LOSS_DATA_ALL", ("loss",), "Loss"),
    Section("IS_LOSS_DEBUG_ALL", ("is_loss_debug", "old_log_probs"), "IS loss debug"),
    Section("DATUMS", ("datums",), "Datum"),
    Section("PARAMS_ALL", ("param", "gradient"), "Parameter"),
    Section("TRAINING_METRICS", ("training_metrics",), "Metric"),
)


def report_lines(
    step: int,
    directories: dict[str, str | None],
    comparisons: list[Comparison],
    datums: Mapping[str, Any],
) -> Iterator[str]:
    """The whole report for one step; `datums` is that section of its JSON form."""
    yield from ("", _RULE, f"Debug Dump Comparison Report - Step {step}", _RULE, "", "Directories:")
    for title, directory in directories.items():
        yield f"  {title + ':':<12} {directory}"
    ranks, micros = _grid(comparisons)
    yield from ("", f"Comparing: {ranks} ranks × {micros} microbatches")
    for section in SECTIONS:
        results = [field for item in comparisons for field in item.fields if field.kind in section.kinds]
        yield from ("", f"--- {section.title} ---")
        if results:
            yield from _section_lines(section, results)
        elif section.title == "DATUMS" and datums["status"] == "analyzed":
            yield from _datums_lines(datums)
        else:
            yield "Status: no data"
    yield from ("", _RULE)


def _datums_lines(analysed: Mapping[str, Any]) -> Iterator[str]:
    """Only one side sends datums: their structure is what can be said of them."""
    yield f"Number of datums: {analysed['num_datums']}"
    yield f"First datum: {analysed['input_tokens_len']} input tokens"
    yield f"loss_fn_inputs: {', '.join(analysed['loss_fn_inputs_keys'])}"


def _grid(comparisons: list[Comparison]) -> tuple[int, int]:
    cells = {cell for item in comparisons for field in item.fields for cell in field.cells}
    return len({rank for _, rank, _ in cells}), len({micro for _, _, micro in cells})


def _section_lines(section: Section, results: list[FieldResult]) -> Iterator[str]:
    places = {(result.kind, cell) for result in results for cell in result.cells}
    yield f"Total comparisons: {len(places)}"
    yield from ("", f"{section.noun} differences across ranks/micros:")
    diffs = []
    for result in results:
        for (_, rank, micro), (diff, beyond) in sorted(result.cells.items()):
            kept = diff < LOSS_LIMIT if result.kind == "loss" and diff else beyond == 0
            diffs.append(diff)
            yield f"  rank{rank}_micro{micro} {result.field}: {'✓' if kept else '✗'} diff={diff:.6e}"
    yield from ("", "Diff statistics:")
    yield f"  max: {max(diffs):.6e}"
    yield f"  min: {min(diffs):.6e}"
    yield f"  mean: {sum(diffs) / len(diffs):.6e}"
