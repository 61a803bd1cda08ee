"""How long processes are held at exceptions. While one is held, it is not known whether its caller would handle it.

An exception that ends its process is held; of those in tasks, children and threads the first of each kind (type and
raising line). All holds of a run together have one budget of wall-clock time. What exceptions that may be handled took
of it does not count for one that ends a process, up to half of the budget. A killed broker leaves what was spent to the
next one.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rldbg.agent import Message
from rldbg.live.broker.kept_files import KeptFiles
from rldbg.live.broker.processes import Process, ProcessTable

# Between the decision to hold a process and its report that it waits.
_ANNOUNCED_S = 30.0
# An exception so soon after the run was asked to end is a consequence of that; later the program may have continued.
_ENDING_S = 60.0
_KEPT_FOR_FATAL = 0.5


class ExceptionHolds:
    """Decides for each crash and measures the time; holds that overlap count once."""

    def __init__(self, processes: ProcessTable) -> None:
        self._processes = processes
        self._kinds: set[str] = set()
        self._held: set[Process] = set()
        self._since = 0.0
        self._spent_s = 0.0
        self._ending = ("", 0.0)
        # Holds whose exception a caller may handle: since when those that last, and how long the others took.
        self._handled: dict[Process, float] = {}
        self._handled_s = 0.0
        self._file: tuple[Path, KeptFiles, int] | None = None

    def keep_in(self, file: Path, files: KeptFiles, *, owner: int) -> None:
        """Writes what was spent to this file from now on, and begins with what a killed broker of the same owner had
        spent."""
        self._file = (file, files, owner)
        try:
            body = json.loads(file.read_text(encoding="utf-8"))
            if body["owner"] == owner:
                spent_s, handled_s = float(body["spent_s"]), float(body["handled_s"])
                self._kinds, self._spent_s, self._handled_s = set(map(str, body["kinds"])), spent_s, handled_s
        except (OSError, ValueError, KeyError, TypeError):
            # No file, or not one of ours.
            return

    def forget_file(self) -> None:
        """The broker was told to end: the next one begins with the whole budget."""
        if self._file is not None:
            self._file[0].unlink(missing_ok=True)

    def _save(self) -> None:
        if self._file is None:
            return
        file, files, owner = self._file
        spent = {"spent_s": self.spent_s, "handled_s": self._handled_s, "kinds": sorted(self._kinds)}
        body = {"schema_version": 1, "owner": owner} | spent
        files.write(file, json.dumps(body), "a broker that replaces this one holds exceptions anew")

    def note(self, process: Process, crash: Message) -> None:
        """Shows a crash whose decision is to come, unless another one of the process is held or comes first: methods
        of an async actor fail together."""
        shown = process.crash
        is_taken = shown is not None and (process in self._held or bool(shown.get("undecided")))
        crash["undecided"] = True
        if not is_taken or _ends_process(crash):
            process.crash = crash
        process.touch()

    def decide(self, process: Process, crash: Message | None = None) -> Message:
        """`hold_s` if the process shall wait, `held` if it shall wait for other held processes, else `reason`. The
        decision is also reported with the crash, because Ray may not forward what a worker prints.
        """
        crash = (process.crash or {}) if crash is None else crash
        was_held = process in self._held
        decision = self._decide(process, crash)
        crash.pop("undecided", None)
        if left_s := decision.get("hold_s"):
            crash |= _granted(left_s, crash["wait_s"])
        elif reason := decision.get("reason"):
            crash["hold"] = f"not held: {reason}"
        if "hold_s" in decision or not was_held or _ends_process(crash):
            # Of several the one that is held is shown: it is the one that can be inspected.
            process.crash = crash
        process.touch()
        return decision

    def _decide(self, process: Process, crash: Message) -> Message:
        budget_s = float(crash.get("wait_s") or 0.0)
        if not budget_s:
            return {}
        if self._is_handed_on(crash):
            crash["held"] = True
            return {"held": sorted(each.who for each in self._held)} if crash.get("where") == "process" else {}
        signal, since = self._ending
        if signal and time.monotonic() - since < _ENDING_S:
            return {"reason": f"the run was asked to end ({signal})"}
        left_s = self._left_s(crash)
        if left_s < 1.0:
            return {"reason": f"the {budget_s:g} s for all exceptions of this run are used up"}
        kind = str(crash.get("exception"))
        if crash.get("where") != "process" and kind in self._kinds:
            return {"reason": f"the first {kind} of this run was held"}
        self._kinds.add(kind)
        crash["held"] = True
        self._hold(process, crash, left_s)
        return {"hold_s": left_s}

    def _hold(self, process: Process, crash: Message, left_s: float) -> None:
        if not self._held:
            self._since = time.monotonic()
        self._held.add(process)
        crash["spent_at_end_s"] = self.spent_s + left_s
        if crash.get("where") != "process":
            self._handled[process] = time.monotonic()
        self._save()

    async def take_over(self, process: Process) -> None:
        """Continues a hold of a killed broker with the remaining time."""
        crash = process.crash or {}
        left_s, budget_s = float(crash["held_again_s"]), float(crash["wait_s"])
        self._spent_s = max(self._spent_s, budget_s - left_s)
        self._kinds.add(str(crash.get("exception")))
        crash["held"] = True
        crash |= _granted(left_s, budget_s)
        self._hold(process, crash, left_s)
        await self.follow(process)

    def run_is_to_end(self, signal: str) -> list[Process]:
        """Processes whose hold ends: those held without an attached client."""
        self._ending = (signal, time.monotonic())
        return [process for process in self._held if not process.attached]

    def _left_s(self, crash: Message) -> float:
        budget_s = float(crash["wait_s"])
        kept_s = 0.0
        if crash.get("where") == "process":
            handled_s = self._handled_s + sum(time.monotonic() - since for since in self._handled.values())
            kept_s = min(budget_s * _KEPT_FOR_FATAL, handled_s)
        return max(min(budget_s + kept_s - self.spent_s, budget_s), 0.0)

    @property
    def spent_s(self) -> float:
        return self._spent_s + (time.monotonic() - self._since if self._held else 0.0)

    def facts(self, process: Process) -> dict[str, Any]:
        """The process with the time that is left for its hold and for all later ones; none if it was never held."""
        crash = process.crash or {}
        left_s = max(crash["spent_at_end_s"] - self.spent_s, 0.0) if "granted_s" in crash else None
        return process.to_dict() | {"hold_left_s": left_s}

    async def follow(self, process: Process) -> None:
        """The time from the decision until the hold is over."""
        await process.wait_until(lambda: _is_at_exception(process) or not process.is_alive, _ANNOUNCED_S)
        await process.wait_until(lambda: not _is_at_exception(process), None)
        self._spent_s = self.spent_s
        self._since = time.monotonic()
        self._held.discard(process)
        if process in self._handled:
            self._handled_s += time.monotonic() - self._handled.pop(process)
        self._save()
        process.touch()

    async def ended(self, whose: Sequence[str] = ()) -> Message:
        """Waits until no process is held. Those in `whose` were held by a killed broker and may not have reported to
        this one yet."""
        deadline = time.monotonic() + _ANNOUNCED_S
        while not self._held and self._may_come(whose) and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
        while self._held:
            process = next(iter(self._held))
            await process.wait_until(lambda process=process: process not in self._held, None)  # type: ignore[misc]
        return {}

    def _may_come(self, whose: Sequence[str]) -> bool:
        """Whether one of them has not connected yet, or has not reported its state; never for our own holds."""
        known = {each.who: each for each in self._processes}
        return any(who not in known or (known[who].is_alive and known[who].crash is None) for who in whose)

    def _is_handed_on(self, crash: Message) -> bool:
        """Whether Ray forwarded the error from a process where it was already held."""
        held = [(each, each.crash) for each in self._processes if each.crash and each.crash.get("held")]
        if origins := crash.get("origins"):
            # Processes of two nodes may have the same id.
            return any([str(each.facts.get("pid")), theirs.get("node_address")] in origins for each, theirs in held)
        forwards = crash.get("forwards")
        return bool(forwards) and any(_first_line(theirs.get("message")) == forwards for _, theirs in held)


def _granted(left_s: float, budget_s: float) -> Message:
    words = f"held for up to {left_s:.0f} s; all exceptions of this run share {budget_s:g} s"
    return {"granted_s": left_s, "hold": words}


def _ends_process(crash: Message) -> bool:
    return crash.get("where") in ("process", "child")


def _first_line(message: object) -> str:
    return str(message).partition("\n")[0]


def _is_at_exception(process: Process) -> bool:
    return process.stop is not None and process.stop.reason == "exception"
