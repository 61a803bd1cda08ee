"""What live verbs share: the options that select a run or a Ray cluster, and how outcomes per process are printed."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rldbg.cli.output import print_line, print_note, show
from rldbg.core import ExitCode

if TYPE_CHECKING:
    from rldbg.live import BroadcastResult, BrokerClient


def target_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --run and --ray."""
    run = click.option(
        "--run",
        "run_dir",
        type=click.Path(path_type=Path, file_okay=False),
        help="Run folder. Default: the run of this process, else the newest run with a live broker.",
    )
    ray = click.option(
        "--ray",
        "ray_url",
        metavar="URL|auto",
        help="Ray cluster that rldbg did not start: its dashboard (http://127.0.0.1:8265), or auto for this machine's.",
    )
    return run(ray(function))


def open_target(run_dir: Path | None, ray_url: str | None) -> "BrokerClient":
    """A client of the broker that holds the selected processes."""
    from rldbg.live import connect_target, dashboard_url

    return connect_target(run_dir, dashboard_url(ray_url, print_note) if ray_url else None)


def print_outcomes(processes: list[dict[str, Any]], done: str, *, as_json: bool) -> int:
    """Prints what happened to each process and returns the exit code."""
    from rldbg.reports.processes import outcome_lines

    show({"processes": processes}, as_json, lambda: outcome_lines(processes, done))
    return ExitCode.OK if all(process["ok"] for process in processes) else ExitCode.FINDING


def tell_delay(client: "BrokerClient", facts: dict[str, Any]) -> None:
    """Reports what a process waits for that runs no Python at the moment and cannot be stopped yet."""
    from rldbg.live import wait_of

    stacks = client.request("stacks", waits=True, timeout_s=120.0)["stacks"]
    reason = wait_of(stacks, facts["pid"], facts["host"])
    who = facts["who"]
    print_note(f"{who} is not in Python code now; it stops at its next line of Python{': ' if reason else ''}{reason}")
    print_note(f"it also stops after this command has ended; `rldbg continue {who}` cancels that")


def print_broadcast(result: "BroadcastResult") -> None:
    from rldbg.reports import broadcast as report

    for line in report.to_lines(result):
        print_line(line)
    for line in report.notes(result):
        print_note(line)
