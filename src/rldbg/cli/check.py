"""`rldbg check`: what must hold in one recording."""

import click

from rldbg.cli.application import verb
from rldbg.cli.output import print_findings, print_json, print_line, print_result
from rldbg.core import ExitCode, Severity, UsageError, worst

_FAIL_ON = {"error": (Severity.ERROR,), "warning": (Severity.ERROR, Severity.WARNING), "never": ()}


@verb("check")
@click.argument("path", required=False)
@click.option("--list", "list_checks", is_flag=True, help="List the checks, then exit.")
@click.option("--only", multiple=True, help="Run only this check; may be given more than once.")
@click.option("--step", "steps", multiple=True, type=int, help="Only this step; may be given more than once.")
@click.option("--layout", help="Layout instead of the detected one.")
@click.option("--fail-on", type=click.Choice(list(_FAIL_ON)), default="warning", help="What makes the exit code 1.")
def command(
    path: str | None,
    list_checks: bool,
    only: tuple[str, ...],
    steps: tuple[int, ...],
    layout: str | None,
    fail_on: str,
    as_json: bool,
) -> int:
    """Test what must hold in the recording at PATH: finite log probs, advantages of the rewards, equal replicas ..."""
    if list_checks:
        return _list(as_json)
    if path is None:
        raise UsageError("check needs a recording", "rldbg check RUN, or rldbg check --list")
    from rldbg.analysis import check
    from rldbg.recording import open as open_recording

    report = check(open_recording(path, layout=layout), only=only, steps=steps or None)
    if as_json:
        print_json(report.to_dict())
    else:
        print_line(
            f"{report.verdict}: {len(report.passed)} checks hold, {len(report.not_applicable)} could not be made, "
            f"over {len(report.steps)} steps"
        )
        if report.findings:
            print_findings(report.findings)
        for name, reason in report.not_applicable.items():
            print_line(f"  - {name}: {reason}")
    if report.verdict == "incomplete":
        return ExitCode.INCOMPLETE
    return ExitCode.FINDING if worst(report.findings) in _FAIL_ON[fail_on] else ExitCode.OK


def _list(as_json: bool) -> int:
    from rldbg.analysis.checks import CHECKS

    rows = [{"id": item.id, "title": item.title, "severity": item.severity.value} for item in CHECKS]
    if as_json:
        print_json({"checks": rows})
        return ExitCode.OK
    from rich.table import Table

    table = Table("check", "what must hold", "severity", box=None, header_style="bold")
    for row in rows:
        table.add_row(row["id"], row["title"], row["severity"])
    print_result(table)
    return ExitCode.OK
