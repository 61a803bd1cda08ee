"""When a process is profiled: the steps it sees, the rank it has, and the tool that is opened and closed by them.

Invariants: the window opens at most once; whatever ends the process in an orderly way closes it and waits until the
files are written; what goes wrong is noted in the status file and never reaches the program.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..settings import say
from ..stacks import mark_as_ours
from .nsys import UnderNsys
from .plan import ChosenWorker, Plan
from .status_file import StatusFile
from .tools import Tool, ToolError, make_tool

MARKS = "steps"
_FOLLOW_S = 0.1
_RANK_S = 60.0


class ProfileWindow:
    """The profile of one chosen process."""

    def __init__(
        self,
        plan: Plan,
        choice: ChosenWorker,
        under: UnderNsys | None,
        *,
        identity: Callable[[], dict[str, Any]],
        opened: Callable[[], None],
        closed: Callable[[], None],
    ) -> None:
        self._plan = plan
        self._choice = choice
        self._under = under
        self._identity = identity
        self._opened = opened
        self._closed = closed
        self._lock = threading.RLock()
        self._tool: Tool | None = None
        self._state = "armed"
        self._steps_seen = 0
        self._has_own_steps = False
        self._is_following = False
        self._is_substitute = False
        """py-spy records instead of torch's profiler, because torch is not imported."""
        self._no_substitute = ""
        self._status_file = None if under else StatusFile(plan.state_folder, choice.name, choice.pattern, plan.tool)
        self._note()

    def facts(self) -> dict[str, Any]:
        """The state and, in the end, the files or the reason why there are none."""
        status = self._status_file.facts if self._status_file is not None else {}
        return {"state": self._state, "files": status.get("files", []), "reason": status.get("reason", "")}

    def begin(self, *, torch_is_here: bool) -> None:
        """At the start of the process, or when torch has been imported: opens what is not bound to steps."""
        plan = self._plan
        if torch_is_here and self._is_substitute:
            self._replace_substitute()
        needs_torch = (plan.tool == "torch" and plan.steps is None) or (
            self._under is not None and self._under.mode == "cuda"
        )
        if self._state != "armed" or self._is_following or (needs_torch and not torch_is_here):
            return
        if plan.steps is None and not plan.ranks and not plan.delay_s:
            if self._under is None or self._under.mode != "whole":
                self._open()
            return
        self._is_following = True
        mark_as_ours(threading.Thread(target=self._follow, name="rldbg-window", daemon=True)).start()

    def expect_steps(self) -> None:
        """This process will have its own steps; do not follow those of others."""
        self._has_own_steps = True

    def enter_step(self, number: int) -> None:
        """This process is in step `number` from here on."""
        self._has_own_steps = True
        self._reach(number)

    def finish(self, reason: str = "") -> None:
        """Closes what is open and waits for the files."""
        with self._lock:
            if self._state == "recording":
                self._close(reason)
            elif self._state == "armed" and self._no_substitute:
                self._fail(ToolError(self._no_substitute))
            elif self._state == "armed" and self._plan.steps is not None:
                self._note(reason=never_began(self._plan.steps[0], self._steps_seen))
            elif self._state == "armed" and self._plan.tool == "torch":
                self._note(reason="it never imported torch: profile it with --tool pyspy, or give --steps")

    def _reach(self, number: int) -> None:
        steps = self._plan.steps
        if steps is None:
            return
        with self._lock:
            if number != self._steps_seen:
                self._steps_seen = number
            start, stop = steps
            if self._state == "armed" and start <= number < stop:
                self._open()
            elif self._state == "recording" and number >= stop:
                self._close()

    def _follow(self) -> None:
        """For processes that see no steps of their own (engines): the first process that has entered the window's
        first and last step leaves a mark each. Delays and ranks are waited for here too."""
        plan = self._plan
        if plan.delay_s:
            time.sleep(plan.delay_s)
        if plan.steps is None:
            deadline = time.monotonic() + _RANK_S
            while plan.ranks and self._identity()["rank"] is None and time.monotonic() < deadline:
                time.sleep(_FOLLOW_S)
            with self._lock:
                if self._state == "armed":
                    self._open()
            return
        if step_mark(plan, plan.steps[1]).exists():
            # The window was over before this process was there.
            return
        for number in plan.steps:
            mark = step_mark(plan, number)
            while not mark.exists():
                if self._has_own_steps or self._state not in ("armed", "recording"):
                    return
                time.sleep(_FOLLOW_S)
            if not self._has_own_steps:
                self._reach(number)

    def _open(self) -> None:
        if not self._plan.wants_rank(self._identity()):
            self._state = "left out"
            self._note(state="left out", reason=f"its rank is not among {self._plan.ranks}")
            return
        try:
            stem = self._plan.stem(self._choice.name, str(os.getpid()))
            Path(self._plan.folder).mkdir(parents=True, exist_ok=True)
            tool = make_tool(self._fitting_plan(), stem, self._under)
            tool.start()
        except Exception as error:  # noqa: BLE001 - a profile that cannot start must not end a training
            if self._is_substitute:  # torch may still come
                self._is_substitute, self._no_substitute = False, f"it has not imported torch, and {error}"
            else:
                self._fail(error)
            return
        self._tool = tool
        self._state = "recording"
        self._note(state="recording")
        self._opened()
        self._outlive_sigterm()

    def _fitting_plan(self) -> Plan:
        """A process without torch when its window begins (a generator, an environment) is looked at by py-spy, until
        torch is imported or the window ends."""
        self._is_substitute = self._plan.tool == "torch" and not torch_is_imported()
        self._note(tool="pyspy" if self._is_substitute else self._plan.tool)
        return replace(self._plan, tool="pyspy", options={}) if self._is_substitute else self._plan

    def _replace_substitute(self) -> None:
        """Torch has come inside the window: its own profiler takes over, and what py-spy saw of the import is removed
        by another thread, because the importing one must not wait for py-spy."""
        with self._lock:
            if self._state != "recording" or not self._is_substitute:
                return
            substitute, self._tool = self._tool, None
            self._is_substitute = False
            self._state = "armed"
            if substitute is not None:
                mark_as_ours(threading.Thread(target=_discard, args=(substitute,), name="rldbg-discard")).start()
            if not self._has_own_steps:
                self._open()

    def _close(self, reason: str = "") -> None:
        tool, self._tool = self._tool, None
        if tool is None:
            return
        self._state = "finishing"
        self._note(state="finishing")
        self._closed()
        try:
            files = tool.stop()
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(error)
            return
        self._state = "done"
        self._note(state="done", files=[str(file) for file in files], reason=reason)

    def _fail(self, error: Exception) -> None:
        text = str(error) if isinstance(error, ToolError) else f"{type(error).__name__}: {error}"
        self._state = "failed"
        self._note(state="failed", reason=text)
        say(f"{self._choice.name} is not profiled: {text}")

    def _note(self, **facts: Any) -> None:
        who = self._identity()
        facts |= {"rank": who["rank"], "steps_seen": self._steps_seen}
        if self._under is not None:
            self._under.note(**facts)
        elif self._status_file is not None:
            self._status_file.update(**facts)

    def _outlive_sigterm(self) -> None:
        """A process with the default SIGTERM handler writes its profile before it ends."""
        if threading.current_thread() is not threading.main_thread():
            return
        with contextlib.suppress(ValueError, OSError):
            if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                signal.signal(signal.SIGTERM, self._terminated)

    def _terminated(self, number: int, _frame: Any) -> None:
        self.finish("the process was ended by SIGTERM inside the window")
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _discard(tool: Tool) -> None:
    """Ends a tool and removes what it wrote."""
    with contextlib.suppress(Exception):  # a profile that is not wanted must not end a training
        for file in tool.stop():
            file.unlink(missing_ok=True)


def never_began(step: int, reached: int) -> str:
    """Why a window was never opened."""
    return f"step {step} never began: " + (
        f"it reached step {reached}"
        if reached
        else "it saw no step; mark them with rldbg.step(), or leave --steps out and use --tool pyspy"
    )


def step_mark(plan: Plan, number: int) -> Path:
    return Path(plan.state_folder) / MARKS / str(number)


def leave_step_marks(plan: Plan, number: int) -> None:
    """Tells followers that the window's first or last step has begun."""
    for edge in plan.steps or ():
        if number >= edge:
            mark = step_mark(plan, edge)
            with contextlib.suppress(OSError):
                mark.parent.mkdir(parents=True, exist_ok=True)
                mark.touch()


def torch_is_imported() -> bool:
    return hasattr(sys.modules.get("torch"), "nn")
