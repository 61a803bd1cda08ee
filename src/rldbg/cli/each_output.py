"""How the outcome of steering several processes looks, one line a process."""

from typing import Any

from rldbg.cli.output import print_json, print_line
from rldbg.core import ExitCode


def print_each(processes: list[dict[str, Any]], done: str, *, as_json: bool) -> int:
    """Prints what happened to each and returns the exit code."""
    if as_json:
        print_json({"processes": processes})
    else:
        for process in processes:
            where = f" at {process['file']}:{process['line']}" if process["state"] == "stopped" else ""
            print_line(f"{process['who']}: {done}{where}" if process["ok"] else f"{process['who']}: {process['error']}")
    return ExitCode.OK if all(process["ok"] for process in processes) else ExitCode.FINDING
