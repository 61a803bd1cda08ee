"""`rldbg ps`: list processes and their state."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rldbg.cli.application import verb
from rldbg.cli.live_target import open_target, target_options
from rldbg.cli.output import console, print_json, print_note, print_result

if TYPE_CHECKING:
    from rldbg.live import BrokerClient


@verb("ps", short_help="List processes and their state.")
@target_options
@click.option("--all", "everything", is_flag=True, help="Include idle Ray workers and processes that have ended.")
@click.option("--watch", is_flag=True, help="Repeat every second until interrupted.")
def command(run_dir: Path | None, ray_url: str | None, everything: bool, watch: bool, as_json: bool) -> int:
    """List processes and their state: running, stopped, crashed or exited, and where.

    \b
    Processes are named ROLE/RANK. All live verbs select them by the same grammar:
      all   0   1,3   0:8:2   policy/0   *policy*   dp=0,tp=1:3   @PID

    With --ray, list all workers of a Ray cluster: drivers, actors, tasks and idle workers, with node, pid and state.

    \b
    rldbg ps              of the newest run with a live broker
    rldbg ps --ray auto   of this machine's Ray cluster
    """
    from rldbg.live import dashboard_url, ray_workers

    url = dashboard_url(ray_url, print_note) if ray_url else None
    with open_target(run_dir, url) as client:
        others = _other_runs(client) if run_dir is None and url is None else []
        while True:
            answer = client.request("ps", all=everything)
            answer["advice"] += others
            if url:
                answer["workers"] = ray_workers(url)
            if watch and not as_json:
                # On a terminal the table stays in its place; elsewhere this does nothing.
                console().clear()
            _show(answer, as_json)
            if not watch:
                return 0
            time.sleep(1.0)


def _other_runs(client: "BrokerClient") -> list[str]:
    """Which of several live runs this is: a command without --run reaches the newest alone."""
    from rldbg.live import live_runs

    others = [str(run) for run in live_runs() if run.resolve() != client.run.resolve()]
    return [f"this is {client.run}; other live runs, for --run: {', '.join(others)}"] if others else []


def _show(answer: dict[str, Any], as_json: bool) -> None:
    from rldbg.reports import processes as report

    processes, advice, workers = answer["processes"], answer.get("advice", []), answer.get("workers")
    if as_json:
        print_json({"processes": processes, "advice": advice} | ({"workers": workers} if workers is not None else {}))
        return
    if processes or workers is None:
        print_result(report.to_terminal(processes))
    if workers is not None:
        print_result(report.workers_to_terminal(workers))
    for line in (*report.notes(processes), *advice):
        print_note(line)
