"""`rldbg profile --attach`: a tool in processes that run already, through their agents, with no restart."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rldbg.agent.profiling import Plan
from rldbg.core import ExitCode, IncompleteDataError, UsageError
from rldbg.live import BrokerClient

ATTACHABLE = ("pyspy", "torch", "memory")
_WRITE_S = 120.0


@dataclass(frozen=True, slots=True)
class Attached:
    """What each process gave."""

    processes: tuple[dict[str, Any], ...]

    @property
    def exit_code(self) -> int:
        return ExitCode.OK if all(process.get("files") for process in self.processes) else ExitCode.FINDING

    def to_dict(self) -> dict[str, Any]:
        return {"processes": list(self.processes)}


def profile_running(
    client: BrokerClient, who: str, *, plan: Plan, seconds: float, say: Callable[[str], None]
) -> Attached:
    """Profiles the processes chosen for some seconds and waits for their files."""
    if plan.tool not in ATTACHABLE:
        raise UsageError(
            f"--tool {plan.tool} cannot attach to a running process", f"use one of {', '.join(ATTACHABLE)}"
        )
    Path(plan.folder).mkdir(parents=True, exist_ok=True)
    body = {"tool": plan.tool, "folder": plan.folder, "books": plan.books, "options": plan.options, "seconds": seconds}
    begun = client.request("profile", who=who, action="record", **body, timeout_s=_WRITE_S)["processes"]
    running = [process for process in begun if process.get("state") == "recording"]
    failed = [process for process in begun if process.get("state") != "recording"]
    say(f"{plan.tool} in {', '.join(process['who'] for process in running) or 'no process'} for {seconds:g} s")
    ended = [_wait_for(client, process, seconds) for process in running]
    return Attached((*ended, *failed))


def _wait_for(client: BrokerClient, process: dict[str, Any], seconds: float) -> dict[str, Any]:
    deadline = time.monotonic() + seconds + _WRITE_S
    while True:
        try:
            answer = client.request("profile", who=f"@{process['pid']}", action="state", timeout_s=_WRITE_S)
        except IncompleteDataError:
            return process | {"state": "gone", "reason": "the process ended while it was being profiled"}
        state = next(each for each in answer["processes"] if each["host"] == process["host"])
        if state.get("state") not in ("recording", "finishing") or time.monotonic() > deadline:
            return dict(state)
        time.sleep(0.1)
