"""The JSON behind the pages of a live run: ranks, stacks, breakpoints, crash files, what `rldbg doctor` finds; and the
actions of a debugger, which need the token of the run or of the printed URL."""

import hmac
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rldbg.core import IncompleteDataError, RldbgError, UnreachableError, UsageError
from rldbg.live import (
    BrokerClient,
    BrokerDebuggee,
    CrashFile,
    break_place,
    broadcast,
    broker_token,
    explain_run,
    group_stacks,
    is_alive,
    last_recorded,
    members,
    source_lines,
    source_place,
)
from rldbg.ui.guard import Access
from rldbg.ui.jobs import Jobs
from rldbg.ui.opened_run import OpenedRun

_STEP_S = 20.0
_MAX_CRASHES = 50
_AROUND = 40


class RefusedError(RldbgError):
    """A debug action without the token."""

    kind = "refused"


def ranks_page(run: OpenedRun) -> dict[str, Any]:
    """Who runs, is stopped or has crashed, the breakpoints, and the crash files; also of a run that has ended."""
    folder = run.run_folder("processes")
    crashes = [_crash(file) for file in sorted((folder / "crashes").glob("*.json"))[:_MAX_CRASHES]]
    if not is_alive(folder):
        return {"alive": False, "processes": [], "breaks": [], "log": [], "crashes": crashes}
    with BrokerClient(folder) as client:
        processes = client.request("ps")["processes"]
        breaks = client.request("break_list")
    return {
        "alive": True,
        "processes": processes,
        "breaks": breaks["breaks"],
        "log": breaks["log"][-50:],
        "crashes": crashes,
    }


def stacks_page(run: OpenedRun, jobs: Jobs, number: int) -> dict[str, Any]:
    """Stacks grouped and the hang explained, as `rldbg stacks --diagnose`; each number is a new look."""

    def work() -> dict[str, Any]:
        with BrokerClient(_live(run)) as client:
            stacks, causes = explain_run(client)
        return {
            "findings": [cause.to_finding().to_dict() for cause in causes],
            "verdicts": [cause.verdict for cause in causes],
            "groups": [group.to_dict() for group in group_stacks(stacks)],
        }

    return jobs.ask(("stacks", run.name), number, work)


def doctor_page(run: OpenedRun, jobs: Jobs) -> dict[str, Any]:
    """What `rldbg doctor RUN` finds in the run's logs."""
    run.run_folder("processes")
    return jobs.ask(("doctor", run.name), int(time.time()) // 30, lambda: doctor_of(run))


def doctor_of(run: OpenedRun) -> dict[str, Any]:
    from rldbg.doctor import diagnose

    found = diagnose((run.run_folder("processes"),))
    return found.to_dict() | {"headline": found.headline}


def debug_action(run: OpenedRun, body: Any, shown: Iterable[str], access: Access) -> dict[str, Any]:
    """One action on the ranks that `who` selects. Refused without the token of the run or of this server's URL."""
    folder = _live(run)
    own = broker_token(folder)
    tokens = [text for text in shown if text]
    if not access.has_token(tokens) and not any(hmac.compare_digest(text.encode(), own.encode()) for text in tokens):
        raise RefusedError(
            "debug actions need the token of the run",
            f"open the URL that `rldbg ui` printed, or give the token in {folder}/broker.json",
        )
    action = _ACTIONS.get(str(body.get("action"))) if isinstance(body, dict) else None
    if action is None:
        raise UsageError("unknown action", f"one of: {', '.join(_ACTIONS)}")
    with BrokerClient(folder) as client:
        return action(client, str(body.get("who") or "all"), str(body.get("text") or ""))


def _command(client: BrokerClient, who: str, text: str) -> dict[str, Any]:
    """A pdb command on stopped ranks: answers that are the same once."""
    result = broadcast(client, who, text, wait_s=_STEP_S)
    groups = [{"text": group.text, **group.to_dict()} for group in result.groups]
    spread = result.spread.to_dict() if result.spread else None
    return {"groups": groups, "spread": spread, "not_stopped": list(result.not_stopped), "ok": result.ok}


def _set_break(client: BrokerClient, who: str, text: str) -> dict[str, Any]:
    place, _, condition = text.partition(" if ")
    file, line = break_place(place)
    wanted: dict[str, Any] = {"file": file, "line": line, "ranks": who, "if": condition.strip() or None}
    return {"break": client.request("break_set", **wanted)}


def _clear_break(client: BrokerClient, who: str, text: str) -> dict[str, Any]:
    return dict(client.request("break_clear", ids=[int(text)] if text.isdigit() else []))


def _source(client: BrokerClient, who: str, text: str) -> dict[str, Any]:
    """The lines around FILE:LINE as the stopped process sees them."""
    file, line = source_place(text)
    first = max(line - _AROUND, 1)
    with _stopped(client, who) as debuggee:
        lines, total = source_lines(debuggee, file, first, line + _AROUND, debuggee.top_frame)
    return {"file": file, "line": line, "first": first, "lines": lines, "total": total}


def _members(client: BrokerClient, who: str, text: str) -> dict[str, Any]:
    """What the value of an expression is made of in the frame of the stop; without one, its local variables
    and which samples the process recorded last."""
    with _stopped(client, who) as debuggee:
        found = {"expression": text, **members(debuggee, text, debuggee.top_frame)}
        return found if text else found | {"recorded": last_recorded(debuggee, debuggee.top_frame)}


@contextmanager
def _stopped(client: BrokerClient, who: str) -> Iterator[BrokerDebuggee]:
    debuggee = BrokerDebuggee(client, who, stop=False)
    try:
        yield debuggee
    finally:
        debuggee.leave()


_ACTIONS: dict[str, Callable[[BrokerClient, str, str], dict[str, Any]]] = {
    "continue": lambda client, who, text: dict(client.request("continue", who=who)),
    "pause": lambda client, who, text: dict(client.request("pause", who=who)),
    "command": _command,
    "break": _set_break,
    "clear": _clear_break,
    "source": _source,
    "members": _members,
}


def _crash(file: Path) -> dict[str, Any]:
    try:
        crash = CrashFile(file)
    except IncompleteDataError as error:
        return {"file": file.name, "error": error.message}
    errors = [
        {name: error.get(name) for name in ("type", "message", "relation")} | {"frames": error.get("frames", [])[:60]}
        for error in crash.record["exceptions"]
    ]
    return {"file": file.name, "path": str(file), **crash.facts, "exceptions": errors}


def _live(run: OpenedRun) -> Path:
    folder = run.run_folder("processes")
    if not is_alive(folder):
        raise UnreachableError(f"{folder} is not running: it has no live broker", "start a job: rldbg run -- COMMAND")
    return folder
