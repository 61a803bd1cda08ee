"""The agent of one process: stops it, describes it, and records its crash.

`breakpoint()`, uncaught exceptions and the broker's requests all end here. Errors of the agent itself are printed once
on stderr and never reach the user's program.
"""

import contextlib
import importlib
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from . import collectives
from .choice import BreakpointConditions
from .debugger import Debugger, NoDebugger
from .framing import Message
from .halt import call_here, can_be_called_here
from .identity import ancestors, describe_process
from .link import REDIAL_S, SILENCE_S, Link, NoBroker
from .post_mortem import PostMortem
from .redaction import load_redact
from .said_errors import SaidErrors
from .settings import Settings, has_breakpoints, say
from .stacks import chain, frame_facts, mark_as_ours, thread_stacks
from .terminal import blocked_loop_note, has_own_terminal, prompt_here

_PROGRAM_BEGINS = frozenset({"cpython.run_file", "cpython.run_module", "cpython.run_command", "cpython.run_stdin"})
# What forks for subprocess.Popen(preexec_fn=...).
_BEFORE_EXEC = ("subprocess", "_execute_child")
# Longer than it takes to load a debugger on a host where hundreds of processes do so at once.
_BREAKPOINTS_S = 60.0
# Where a stopped thread is while it evaluates something for a debugger: in pydevd, or in our own adapter.
_EVALUATING = (("pydevd_comm.py", "do_it"), ("post_mortem_adapter.py", "handle"))
# Where it is while only the repr of the value is still being computed.
_SHOWING = (("values.py", "describe"),)


class Agent:
    """One per process; made by `start`, found again through `find_agent`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._chosen: dict[str, Any] = {}
        # Of a process of multiprocessing to which the program gave one.
        self.process_name = ""
        self._started_by = ancestors(os.getppid())
        self._stops = 0
        self._choice = BreakpointConditions()
        self.said = SaidErrors(wake=lambda: self._link.wake())
        self._counting = threading.Lock()
        self._link = self._new_link()
        self._debugger = Debugger(
            settings,
            dial=self._dial,
            redial=self._redial,
            why_none=lambda lost_at: self._link.why_none(lost_at),
            ended=self._session_ended,
        )
        self._post_mortem = self._new_post_mortem()

    def start(self) -> None:
        os.register_at_fork(
            before=self._before_fork, after_in_parent=self._after_fork, after_in_child=self._after_fork_in_child
        )
        can_be_called_here()
        self._link.start()
        if has_breakpoints(self.settings.run):
            self._await_breakpoints_before_the_program()

    def _await_breakpoints_before_the_program(self) -> None:
        """The program's first line may be the one to stop at. Not here: while `site` is being imported, other threads
        cannot import what they need to set a breakpoint."""
        is_waiting = True

        def at_audit_event(event: str, _arguments: tuple[Any, ...]) -> None:
            nonlocal is_waiting
            if is_waiting and event in _PROGRAM_BEGINS:
                is_waiting = False
                self._await_breakpoints()

        sys.addaudithook(at_audit_event)

    def _await_breakpoints(self) -> None:
        if not has_breakpoints(self.settings.run) or not (self._link.wait_connected() or self._link.wait_for_next()):
            return
        try:
            reason = self._link.insist("await_breakpoints", {}, timeout_s=_BREAKPOINTS_S).get("reason")
        except NoBroker as error:
            reason = str(error)
        if reason:
            say(f"this process starts without its breakpoints: {reason}")

    def identify(self, **facts: Any) -> None:
        """Sets the identity of this process as the program gives it: role, rank, coordinates."""
        self._chosen.update(facts)
        self._link.tell("identity", self.identity())

    def identity(self) -> dict[str, Any]:
        return describe_process(self.settings, self._chosen)

    # Stopping.

    def stop_if(self, frame: FrameType, *, timeout_s: float | None = None, **chosen: Any) -> None:
        """`rldbg.breakpoint`: stops in `frame` when this rank, this condition and this hit are meant."""
        if self._choice.is_meant(frame, self.identity(), **chosen):
            self.stop(frame, timeout_s=timeout_s)

    def stop(self, frame: FrameType, *, timeout_s: float | None = None) -> None:
        """Stops the calling thread in `frame` until a client resumes it."""
        facts = frame_facts(frame)
        where = f"{facts['file']}:{facts['line']}"
        if has_own_terminal():
            prompt_here(frame)
            return
        if not self._link.wait_connected(SILENCE_S) and not self._link.wait_for_next():
            say(f"breakpoint skipped: no broker is reachable ({self._link.refusal or self.settings.run}) at {where}")
            return
        number = self._new_stop()
        facts |= {
            "function": frame.f_code.co_name,
            "stop": number,
            "thread": threading.current_thread().name,
            "notes": blocked_loop_note(),
            "timeout_s": timeout_s,
            "identity": self.identity(),
        }
        try:
            who, suspend = self._announced_stop(frame, facts)
            say(f"{who} stopped at {where}: Task paused, waiting for debugger to attach...")
            # Without the lock: the thread may be stopped inside this call, and another thread must be able to resume
            # it.
            suspend()
        except KeyboardInterrupt:
            # It came while the debugger was being loaded, and is shown where the program waits for that.
            self._link.tell("stop_failed", {"stop": number, "reason": "it was interrupted (Ctrl-C)"})
            raise KeyboardInterrupt from None
        except Exception as error:  # noqa: BLE001 - a stop that fails must not fail the program
            self._link.tell("stop_failed", {"stop": number, "reason": f"{type(error).__name__}: {error}"})
            say(f"cannot stop at {where}: {error}; continuing")

    def _announced_stop(self, frame: FrameType, facts: Message) -> tuple[str, Callable[[], None]]:
        """The name that the broker gives this process, and what stops the thread; if the broker is killed meanwhile,
        asks the next one."""
        lost_at = 0.0
        while True:
            answer = self._link.insist("stopping", facts, timeout_s=SILENCE_S)
            try:
                with self._debugger.lock:
                    self._open_debugger(stop=int(facts["stop"]))
                    return str(answer.get("who")), self._debugger.suspension(frame, facts)
            except NoBroker:
                lost_at = lost_at or time.monotonic()
                if self._link.why_none(lost_at):
                    raise
                time.sleep(REDIAL_S)

    def _new_stop(self) -> int:
        with self._counting:
            self._stops += 1
            return self._stops

    # Crashes.

    def crashed(self, error: BaseException, where: str) -> None:
        self._post_mortem.report(error, where)

    # Answering the broker.

    def _handle(self, op: str, body: Message) -> Any:
        operations: dict[str, Callable[[], Any]] = {
            "identity": lambda: self.identity(),
            "stacks": lambda: self._stacks(body),
            "hold": lambda: collectives.raise_timeouts(),
            "debug": self._open_session,
            "close_debug": lambda: self._close_session(int(body["stops"])),
            "resolve": lambda: {"path": resolve_file(str(body["path"]))},
            "line_to_stop_at": lambda: {"line": _line_to_stop_at(str(body["path"]), int(body["line"]))},
            "farewell": lambda: self._link.farewell(),
            "call_main": lambda: {"called": call_here()},
            "interrupt": lambda: self._interrupt(showing_only=bool(body.get("showing_only"))),
            # Loaded only for a profile.
            "profile": lambda: importlib.import_module(".profiling", __package__).answer(body),
            "spy": lambda: spy_on(int(body["pid"]), list(body.get("options") or [])),
        }
        if op not in operations:
            raise ValueError(f"unknown request: {op!r}")
        return operations[op]()

    def _interrupt(self, *, showing_only: bool) -> dict[str, Any]:
        return {"interrupted": _interrupt_evaluations(showing_only=showing_only)}

    def _stacks(self, body: Message) -> dict[str, Any]:
        stacks: dict[str, Any] = {
            "threads": thread_stacks(with_locals=bool(body.get("locals")), collective_of=collectives.collective_of),
            "groups": collectives.groups(),
        }
        if body.get("waits"):
            # Loaded only on request.
            stacks = importlib.import_module(".waits", __package__).add_own_waits(stacks)
            stacks |= {"said": self._said_errors(), "started_by": list(self._started_by)}
        if body.get("flight_record"):
            record = collectives.flight_record()
            stacks["flight_record"] = record.hex() if record else ""
        return stacks

    def _said_errors(self) -> list[dict[str, Any]]:
        redact = load_redact() if self.settings.redact else None
        return self.said.facts(redact) if redact or not self.settings.redact else []

    def _tell_new_said(self) -> None:
        """In the thread of the link: when the process has ended, nobody can ask it."""
        if self.said.is_untold:
            self.said.is_untold = False
            self._tell_said()

    def tell_said_at_end(self) -> None:
        """All of it: the thread of the link may be about to tell it, and ends with the process."""
        if self.said.is_any and self._link.wait_connected(silence_s=0.0):
            self._tell_said()

    def _tell_said(self) -> None:
        about = {"process_name": self.process_name, "started_by": list(self._started_by)}
        self._link.tell("said", about | {"errors": self._said_errors()})

    def _open_session(self) -> dict[str, Any]:
        """In a thread of its own: pydevd traces the thread that starts it, and this one must stay free."""
        mark_as_ours(threading.Thread(target=self._open_and_report, name="rldbg-open", daemon=True)).start()
        return {"opening": True}

    def _open_and_report(self) -> None:
        try:
            self._open_debugger()
        except (NoBroker, NoDebugger) as error:
            self._link.tell("debug_failed", {"reason": str(error)})

    def _open_debugger(self, stop: int | None = None) -> None:
        """Opened means that every thread sees breakpoints; only then may the broker say that they are set, and know
        in which session an announced stop will come."""
        session = self._debugger.open()
        self._link.tell("debug_ready", {"session": session, "stop": stop})

    def _close_session(self, stops: int) -> dict[str, Any]:
        """Closes the session only if the broker has seen every stop of this process; else one is about to arrive and
        needs it."""
        with self._debugger.lock:
            if stops < self._stops:
                return {"closed": False}
            self._debugger.close()
        return {"closed": True}

    def _dial(self, session: int) -> Any:
        return self._link.dial_debug_channel(session)

    def _redial(self, session: int, state: Message) -> Any:
        """A channel to the next broker, which takes the session over; None while there is none."""
        try:
            channel = self._link.dial_debug_channel(session, taken_over=state)
        except NoBroker:
            return None
        self._link.tell("debug_ready", {"session": session, "stop": None})
        return channel

    def _new_link(self) -> Link:
        return Link(self.settings, about=self.identity, handle=self._handle, woken=self._tell_new_said)

    def _new_post_mortem(self) -> PostMortem:
        return PostMortem(
            self.settings,
            link=lambda: self._link,
            identity=self.identity,
            new_stop=self._new_stop,
            new_session=self._debugger.new_number,
        )

    def _session_ended(self, session: int) -> None:
        self._link.tell("debug_closed", {"session": session})

    # Forking.

    def _before_fork(self) -> None:
        self._link.pause()

    def _after_fork(self) -> None:
        self._link.start()

    def _after_fork_in_child(self) -> None:
        self._counting = threading.Lock()
        self._choice.forget_lock()
        self._stops = 0
        self.said.forget()
        self._post_mortem = self._new_post_mortem()
        self._link.abandon()
        self._link = self._new_link()
        self._debugger.forget_in_child()
        caller = sys._getframe().f_back
        if caller is not None and (caller.f_globals.get("__name__"), caller.f_code.co_name) == _BEFORE_EXEC:
            return  # another program takes its place at once
        # Later it has another parent, if this one ends.
        self._started_by = ancestors(os.getppid())
        self._link.start()
        self._await_breakpoints()

    def tell_far_nodes(self, address: str) -> None:
        """Ray has other nodes: processes there must reach the broker, at this host's address in the cluster."""
        if self._link.wait_connected():
            self._link.tell("far_nodes", {"address": address})

    def finish(self) -> None:
        """At the interpreter's exit: tells the broker, so that it can distinguish an exit from a lost connection."""
        with contextlib.suppress(OSError):
            self.tell_said_at_end()
            self._link.tell("bye", {})


def spy_on(pid: int, options: list[str]) -> dict[str, Any]:
    """What py-spy sees of another process of this host, for a broker on another one."""
    # Only here, and not in every process that starts.
    import shutil
    import subprocess

    tool = shutil.which("py-spy", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if tool is None:
        return {"reason": "py-spy is not installed on that host"}
    done = subprocess.run(
        [tool, "dump", "--json", *options, "--pid", str(pid)], capture_output=True, text=True, timeout=15, check=False
    )
    if done.returncode:
        return {"reason": (done.stderr.strip().splitlines() or ["py-spy failed"])[-1]}
    return {"threads": done.stdout}


def resolve_file(name: str) -> str:
    """The path under which this process knows a file that a client names.

    As a loaded module has it, as given, under the working directory, or as a loaded module whose path ends alike (a
    copy in a Ray working directory, a container's mount); also a module's own name. Empty when nothing fits yet."""
    loaded = {str(file) for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))}
    if "/" not in name and not name.endswith(".py"):
        return getattr(sys.modules.get(name), "__file__", None) or ""
    if Path(name).is_file():
        name = str(Path(name).absolute())
        # The same file by another way, a link for instance: debuggers compare names.
        return name if name in loaded else next((file for file in loaded if _is_same(file, name)), name)
    parts = Path(name).parts
    for start in range(1, len(parts)):
        candidate = Path.cwd().joinpath(*parts[start:])
        if candidate.is_file():
            return str(candidate)
    for start in range(1, len(parts)):
        suffix = f"/{Path(*parts[start:])}"
        matches = [file for file in loaded if file.endswith(suffix)]
        if len(matches) == 1:
            return matches[0]
    return ""


def _line_to_stop_at(path: str, line: int) -> int:
    # Loaded where a breakpoint is set: most processes are never debugged.
    from .code_lines import line_to_stop_at

    try:
        return line_to_stop_at(Path(path).read_bytes(), line)
    except OSError:
        return line


def _is_same(one: str, other: str) -> bool:
    try:
        return Path(one).samefile(other)
    except OSError:
        return False


class TookTooLong(Exception):
    """Raised in the middle of the evaluation."""

    def __str__(self) -> str:
        return "interrupted: it did not finish in time"


def _interrupt_evaluations(*, showing_only: bool) -> int:
    """Interrupts evaluations that do not end, so that inspecting a rank cannot hang it.

    Returns how many threads were told; code in C is interrupted when it returns to Python.
    """
    import ctypes  # not at the start of every process: few ever interrupt

    told = 0
    for ident, frame in sys._current_frames().items():
        if _is_in(frame, _EVALUATING) and (not showing_only or _is_in(frame, _SHOWING)):
            told += ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(TookTooLong))
    return told


def _is_in(frame: FrameType, places: tuple[tuple[str, str], ...]) -> bool:
    return any(
        each.f_code.co_name == function and each.f_code.co_filename.endswith(file)
        for each in chain(frame)
        for file, function in places
    )
