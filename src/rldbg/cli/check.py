"""`rldbg check`: the invariants of one recording."""

from pathlib import Path

import click

from rldbg.cli.application import verb
from rldbg.cli.output import print_findings, print_json, print_line, print_note, print_result
from rldbg.core import ExitCode, Severity, UsageError, worst

_STEPS_SHOWN = 10
_FAIL_ON = {"error": (Severity.ERROR,), "warning": (Severity.ERROR, Severity.WARNING), "never": ()}


@verb("check")
@click.argument("path", required=False)
@click.option("--list", "list_checks", is_flag=True, help="List the checks, then exit.")
@click.option("--only", multiple=True, help="Run only this check. Repeatable.")
@click.option("--step", "steps", multiple=True, type=int, help="Check only this step. Repeatable.")
@click.option("--layout", help="Layout of the recording (default: detected).")
@click.option("--metrics", is_flag=True, help="Also print training metrics per step: KL, ratio tails, staleness ...")
@click.option(
    "--export",
    type=click.Path(path_type=Path),
    help="Write the metrics of --metrics to a .parquet file, or as TensorBoard events into a folder.",
)
@click.option("--fail-on", type=click.Choice(list(_FAIL_ON)), default="warning", help="What makes the exit code 1.")
def command(
    path: str | None,
    list_checks: bool,
    only: tuple[str, ...],
    steps: tuple[int, ...],
    layout: str | None,
    metrics: bool,
    export: Path | None,
    fail_on: str,
    as_json: bool,
) -> int:
    """Check invariants of the recording at PATH: finite log probs, equal replicas, advantages that match rewards ..."""
    if list_checks:
        return _list(as_json)
    if path is None:
        raise UsageError("check needs a recording", "rldbg check RUN, or rldbg check --list")
    from rldbg.analysis import Row, check, export_metrics, metrics_by_step
    from rldbg.recording import open as open_recording

    recording = open_recording(path, layout=layout)
    report = check(recording, only=only, steps=steps or None)
    rows: list[Row] = metrics_by_step(recording, steps or None) if metrics or export is not None else []
    if export is not None:
        export_metrics(rows, export)
        print_note(f"metrics of {len(rows)} steps: {export}")
    if as_json:
        print_json({**report.to_dict(), **({"metrics": rows} if metrics else {})})
    else:
        if metrics:
            _print_metrics(rows)
        print_line(
            f"{report.verdict}: {len(report.passed)} checks hold, {len(report.not_applicable)} not applicable, "
            f"over {len(report.steps)} step{'' if len(report.steps) == 1 else 's'}"
        )
        if report.findings:
            print_findings(report.findings)
        for name, reason in report.not_applicable.items():
            print_line(f"  - {name}: {reason}")
    if report.verdict == "incomplete":
        return ExitCode.INCOMPLETE
    return ExitCode.FINDING if worst(report.findings) in _FAIL_ON[fail_on] else ExitCode.OK


def _print_metrics(rows: list[dict[str, float]]) -> None:
    """One column per step, the newest ten: names are long and steps are many."""
    from rich.table import Table

    from rldbg.analysis import metric_names

    shown = rows[-_STEPS_SHOWN:]
    table = Table("metric", *(f"step {int(row['step'])}" for row in shown), box=None, header_style="bold")
    for name in metric_names(shown):
        table.add_row(name, *("" if name not in row else f"{row[name]:.4g}" for row in shown))
    print_result(table)


def _list(as_json: bool) -> int:
    from rldbg.analysis.checks import CHECKS

    rows = [{"id": item.id, "title": item.title, "severity": item.severity.value} for item in CHECKS]
    if as_json:
        print_json({"checks": rows})
        return ExitCode.OK
    from rich.table import Table

    table = Table("check", "invariant", "severity", box=None, header_style="bold")
    for row in rows:
        table.add_row(row["id"], row["title"], row["severity"])
    print_result(table)
    return ExitCode.OK
