"""Processes of a run: the table of `rldbg ps`, and what happened to those that were paused or resumed."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from rldbg.reports.tables import Table

ProcessFacts = Mapping[str, Any]
_STYLE = {"stopped": "bold yellow", "crashed": "bold red", "exited": "dim"}
_COLUMNS = ("who", "state", "where", "function", "host", "pid", "since", "attached by")


def to_terminal(processes: Sequence[ProcessFacts]) -> RenderableType:
    if not processes:
        return Text("no processes found")
    table = Table(box=None, pad_edge=False)
    for title in _COLUMNS:
        table.add_column(title, overflow="fold")
    for process in processes:
        where = f"{process['file']}:{process['line']}" if process["file"] else ""
        since = f"{process['since_s']:.0f} s" if process["since_s"] is not None else ""
        state = "lost" if process.get("lost") else process["state"]
        cells = (where, process["function"] or "", process["host"] or "", str(process["pid"]), since)
        table.add_row(
            Text(process["who"], "bold"),
            Text(state, _STYLE.get(process["state"], "")),
            *map(Text, cells),
            Text(", ".join(process["attached_by"])),
        )
    return table


def workers_to_terminal(workers: Sequence[ProcessFacts]) -> RenderableType:
    """All workers of a Ray cluster that rldbg did not start."""
    if not workers:
        return Text("no Ray workers found")
    table = Table(box=None, pad_edge=False)
    for title in ("worker", "kind", "state", "task", "node", "pid"):
        table.add_column(title, overflow="fold")
    for worker in workers:
        asked = f"asks for {worker['asks_for']}" if worker["asks_for"] else ""
        cells = (worker["kind"], worker["state"], worker["task"] or asked, worker["host"], str(worker["pid"] or ""))
        table.add_row(Text(worker["who"], "bold"), *map(Text, cells))
    return table


def notes(processes: Sequence[ProcessFacts]) -> Iterator[str]:
    """What cannot be protected while a process is stopped, and where crashes are recorded."""
    for process in processes:
        yield from (f"{process['who']}: {note}" for note in process["notes"] if note != process["message"])
        if process.get("message"):
            first_line = str(process["message"]).partition("\n")[0]
            command = f" (rldbg attach {process['crash_file']})" if process["crash_file"] else ""
            yield f"{process['who']}: {first_line}{command}"
        if process.get("hold"):
            yield f"{process['who']}: {_hold(process)}"


def _hold(process: ProcessFacts) -> str:
    """How long it is still held; else why not, and what is left for others."""
    left_s = process.get("hold_left_s")
    if left_s is None:
        return str(process["hold"])
    left = f"{left_s:.0f} s are left for all exceptions of this run"
    if process["reason"] != "exception":
        return f"no longer held; {left}"
    return f"held; {left}" if left_s else "held as long as somebody is attached"


def outcome_lines(processes: Sequence[ProcessFacts], done: str) -> Iterator[str]:
    """One line per process that was to be `done`: paused, resumed."""
    for process in processes:
        where = f" at {process['file']}:{process['line']}" if process["state"] == "stopped" else ""
        yield f"{process['who']}: {done}{where}" if process["ok"] else f"{process['who']}: {process['error']}"
