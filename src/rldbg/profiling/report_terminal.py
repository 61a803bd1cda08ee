"""A report as tables for people."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rldbg.profiling.report import Report


def to_terminal(report: Report) -> Group:
    parts: list[RenderableType] = [
        Text(f"{report.steps} steps of {report.step_seconds:.3f} s"),
        _phases(report),
        _roles(report),
    ]
    if report.tails:
        parts.append(_tails(report))
    parts += [Text("what to try")] if report.advice else [Text("nothing stands out")]
    parts += [Text(f"  {number}. {text}") for number, text in enumerate(report.advice, 1)]
    return Group(*parts)


def _phases(report: Report) -> Table:
    table = Table("role", "processes", "phase", "s a step", "share", "slowest", title="where the time goes")
    for row in report.phases:
        slowest = f"{row.slowest} {row.slowest_seconds:.4f}" if row.processes > 1 else ""
        seconds, share = f"{row.seconds:.4f}", f"{row.share:.1%}"
        table.add_row(row.role, str(row.processes), row.phase, seconds, share, slowest)
    return table


def _roles(report: Report) -> Table:
    table = Table("role", "busy", "idle", "waits for its slowest", "slowest", title="bubbles")
    for row in report.roles:
        slowest = f"{row.slowest} ({row.slowest_ratio:.2f} of the median, in {row.slowest_steps} steps)"
        table.add_row(
            row.role,
            f"{row.busy_share:.1%}",
            f"{row.idle_share:.1%}",
            f"{row.waits_for_slowest_share:.1%}" if row.processes > 1 else "",
            slowest if row.processes > 1 else "",
        )
    return table


def _tails(report: Report) -> Table:
    table = Table("role", "phase", "count", "median s", "longest s", "cost of the tail", title="long tails")
    for tail in report.tails:
        lengths = (f"{tail.median_seconds:.4f}", f"{tail.longest_seconds:.4f}")
        table.add_row(tail.role, tail.phase, str(tail.count), *lengths, f"{tail.cost_share:.1%}")
    return table
