"""`rldbg ps`: who is there, who is stopped, and where."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rldbg.cli.application import verb
from rldbg.cli.live_target import open_target, target_options
from rldbg.cli.output import console, print_json, print_line, print_note, print_result, visible

if TYPE_CHECKING:
    from rich.console import RenderableType

_STYLE = {"stopped": "bold yellow", "crashed": "bold red", "exited": "dim"}


@verb("ps", short_help="Who is there, who is stopped, and where.")
@target_options
@click.option("--all", "everything", is_flag=True, help="Also idle Ray workers and processes that have ended.")
@click.option("--watch", is_flag=True, help="Again every second, until interrupted.")
def command(run_dir: Path | None, ray_url: str | None, everything: bool, watch: bool, as_json: bool) -> int:
    """Who is there, who is stopped, and where.

    \b
    Processes are named ROLE/RANK. Every live verb selects them alike:
      all   0   1,3   0:8:2   policy/0   *policy*   dp=0,tp=1:3   @PID
    """
    with open_target(run_dir, ray_url) as client:
        while True:
            answer = client.request("ps", all=everything)
            if watch and not as_json:
                # On a terminal the table stays in its place; elsewhere this does nothing.
                console().clear()
            _show(answer, as_json)
            if not watch:
                return 0
            time.sleep(1.0)


def _show(answer: dict[str, Any], as_json: bool) -> None:
    processes = answer["processes"]
    if as_json:
        print_json({"processes": processes, "advice": answer.get("advice", [])})
        return
    if processes:
        print_result(_table(processes))
    else:
        print_line("no process is there")
    for process in processes:
        for note in process["notes"]:
            if note != process["message"]:
                print_note(f"{process['who']}: {note}")
        if process.get("crash_file"):
            first_line = str(process["message"]).partition("\n")[0]
            print_note(f"{process['who']}: {first_line} (rldbg attach {process['crash_file']})")
    for line in answer.get("advice", []):
        print_note(line)


def _table(processes: list[dict[str, Any]]) -> "RenderableType":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for title in ("who", "state", "where", "function", "host", "pid", "since", "attached by"):
        table.add_column(title, overflow="fold")
    for process in processes:
        where = f"{process['file']}:{process['line']}" if process["file"] else ""
        since = f"{process['since_s']:.0f} s" if process["since_s"] is not None else ""
        state = "lost" if process.get("lost") else process["state"]
        cells = (where, process["function"] or "", process["host"] or "", str(process["pid"]), since)
        table.add_row(
            Text(visible(process["who"]), "bold"),
            Text(state, _STYLE.get(process["state"], "")),
            *(Text(visible(cell)) for cell in cells),
            Text(visible(", ".join(process["attached_by"]))),
        )
    return table
