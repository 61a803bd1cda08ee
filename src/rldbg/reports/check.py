"""The invariants of a recording: what holds, what does not, and the metrics of its steps."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType

from rldbg.analysis import CheckReport, MetricRow, metric_names
from rldbg.reports.findings import to_terminal as findings_to_terminal
from rldbg.reports.tables import Table, table

_STEPS_SHOWN = 10


def to_terminal(report: CheckReport, metrics: Sequence[MetricRow] = ()) -> Iterator[RenderableType]:
    """The metrics where they are asked for, then the verdict, findings, and checks that do not apply."""
    if metrics:
        yield _metrics(metrics[-_STEPS_SHOWN:])
    steps = f"{len(report.steps)} step{'' if len(report.steps) == 1 else 's'}"
    counts = f"{len(report.passed)} checks hold, {len(report.not_applicable)} not applicable"
    yield f"{report.verdict}: {counts}, over {steps}"
    if report.findings:
        yield findings_to_terminal(report.findings)
    yield from (f"  - {name}: {reason}" for name, reason in report.not_applicable.items())


def _metrics(rows: Sequence[MetricRow]) -> Table:
    """One column per step: names are long and steps are many."""
    titles = [f"step {int(row['step'])}" for row in rows]
    cells = ((name, *("" if name not in row else f"{row[name]:.4g}" for row in rows)) for name in metric_names(rows))
    return table("metric", *titles, rows=cells)
