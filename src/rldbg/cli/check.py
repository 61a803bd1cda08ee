"""`rldbg check`: the invariants of one recording."""

from pathlib import Path

import click

from rldbg.cli.application import verb
from rldbg.cli.output import print_note, show
from rldbg.cli.progress import progress
from rldbg.core import ExitCode, Severity, UsageError, worst

_FAIL_ON = {"error": (Severity.ERROR,), "warning": (Severity.ERROR, Severity.WARNING), "never": ()}


@verb("check")
@click.argument("path", required=False)
@click.option("--list", "list_checks", is_flag=True, help="List the checks, then exit.")
@click.option("--only", multiple=True, help="Run only this check. Repeatable.")
@click.option("--step", "steps", multiple=True, type=int, help="Check only this step. Repeatable.")
@click.option("--layout", help="Layout of the recording.  [default: detected]")
@click.option("--metrics", is_flag=True, help="Also print training metrics per step: KL, ratio tails, staleness ...")
@click.option(
    "--export",
    type=click.Path(path_type=Path),
    help="Write the metrics of --metrics to a .parquet file, or as TensorBoard events into a folder.",
)
@click.option(
    "--fail-on",
    type=click.Choice(list(_FAIL_ON)),
    default="warning",
    show_default=True,
    help="What makes the exit code 1.",
)
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
    """Check invariants of the recording at PATH: finite log probs, equal replicas, advantages that match rewards ...

    \b
    rldbg check RUN                                      every check on every step
    rldbg check RUN --only first-ratio-is-one --step 3   one check on one step
    rldbg check RUN --fail-on error                      warnings do not fail
    """
    if list_checks:
        return _list(as_json)
    if path is None:
        raise UsageError("check needs a recording", "rldbg check RUN, or rldbg check --list")
    from rldbg.analysis import MetricRow, check, export_metrics, metrics_by_step
    from rldbg.recording import open as open_recording
    from rldbg.reports.check import to_terminal

    recording = open_recording(path, layout=layout)
    with progress("checking", "records read", as_json=as_json) as advance:
        recording.on_read = advance
        report = check(recording, only=only, steps=steps or None)
        rows: list[MetricRow] = metrics_by_step(recording, steps or None) if metrics or export is not None else []
    if export is not None:
        export_metrics(rows, export)
        print_note(f"metrics of {len(rows)} steps: {export}")
    document = {**report.to_dict(), **({"metrics": rows} if metrics else {})}
    show(document, as_json, lambda: to_terminal(report, rows if metrics else ()))
    if report.verdict == "incomplete":
        return ExitCode.INCOMPLETE
    return ExitCode.FINDING if worst(report.findings) in _FAIL_ON[fail_on] else ExitCode.OK


def _list(as_json: bool) -> int:
    from rldbg.analysis.checks import CHECKS
    from rldbg.reports.tables import table

    rows = [{"id": item.id, "title": item.title, "severity": item.severity.value} for item in CHECKS]
    titles = ("check", "invariant", "severity")
    show({"checks": rows}, as_json, lambda: [table(*titles, rows=(row.values() for row in rows))])
    return ExitCode.OK
