"""pydevd on demand: nothing is imported, traced or opened until this process is to be stopped.

`open` connects pydevd to the broker, `suspension` halts the calling thread in a frame, `close` leaves the process as
fast as it was before. All three may be called again and again, from any thread. Sessions are numbered, because a
message about one may reach the broker when the next is already open.
"""

import contextlib
import functools
import importlib
import importlib.util
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from .framing import Message
from .halt import is_last_statement, stand_here
from .peer import Connection
from .relay import Relay
from .settings import Settings
from .stacks import mark_as_ours
from .tracing import Monitoring, PerThreadTracing, thread_tracing

_OLDEST = (1, 8, 0)
_SWEEPS_S = (0.01, 0.05, 0.2, 1.0)


class NoDebugger(Exception):
    """debugpy cannot be used in this process; the text says why."""


class Debugger:
    """The debug session of this process, if there is one. `lock` orders opening, stopping and closing."""

    def __init__(
        self,
        settings: Settings,
        *,
        dial: Callable[[int], Connection],
        redial: Callable[[int, Message], Connection | None],
        why_none: Callable[[float], str],
        ended: Callable[[int], None],
    ) -> None:
        self._settings = settings
        self._dial = dial
        self._redial = redial
        self._why_none = why_none
        self._ended = ended
        self._relay: Relay | None = None
        self._last_number = 0
        self.lock = threading.RLock()

    @functools.cached_property
    def _tracing(self) -> PerThreadTracing | Monitoring:
        return thread_tracing()

    def new_number(self) -> int:
        with self.lock:
            self._last_number += 1
            return self._last_number

    def open(self) -> int:
        """The session's number, when the broker has attached. Raises NoDebugger or link.NoBroker."""
        with self.lock:
            if self._relay is not None:
                return self._relay.number
            debugpy = load_debugpy(self._settings.debugpy)
            _forget_orders()
            number = self.new_number()
            relay = Relay(
                self._dial(number),
                number=number,
                ended=lambda: self._lost(relay),
                redial=lambda state: self._redial(number, state),
                why_none=self._why_none,
            )
            self._relay = relay
            relay.start()
            try:
                with _hooks_kept():
                    debugpy.configure(subProcess=False)
                    debugpy.connect(relay.address, access_token=relay.secret)
            except BaseException as error:
                # Also Ctrl-C: a program that goes on after it can be stopped again.
                self._relay = None
                relay.close()
                if isinstance(error, OSError | RuntimeError):
                    raise NoDebugger(f"debugpy could not connect: {error}") from error
                raise
            self._tracing.arm(_trace_this_thread)
            return number

    def suspension(self, frame: FrameType, facts: Message) -> Callable[[], None]:
        """A callable that stops the calling thread at its next line in `frame`, or immediately without one; `facts`
        describes the stop to this broker, and to the next one if necessary."""
        if self._relay is not None:
            self._relay.stops.announce(facts)

        def suspend_at(target: FrameType) -> None:
            if _pydevd_instance() is None:
                # Without a session pydevd would try to connect to a port of its own choice.
                raise NoDebugger("the debug session ended before the stop")
            with _hooks_kept():
                sys.modules["pydevd"].settrace(
                    suspend=True, trace_only_current_thread=True, patch_multiprocessing=False, stop_at_frame=target
                )
            self._leave_no_trace()

        if is_last_statement(frame):
            return lambda: stand_here(suspend_at)
        return lambda: suspend_at(frame)

    def _leave_no_trace(self) -> None:
        """A thread that was stopped inside pydevd's settrace is traced again when it returns, even if the session is
        over."""
        with self.lock:
            if self._relay is None:
                with _hooks_kept():
                    sys.modules["pydevd"].stoptrace()

    def close(self, only: Relay | None = None) -> None:
        """Ends the session, unless it is no longer the one of `only`; every thread continues untraced."""
        with self.lock:
            relay = self._relay
            if relay is None or only not in (None, relay):
                return
            self._relay = None
            debugger = _pydevd_instance()
            if debugger is not None:
                # A thread that is on its way out of this session would switch its tracing on again.
                debugger.enable_tracing = lambda *_args, **_kwargs: None
            self._tracing.disarm()
            with _hooks_kept():
                sys.modules["pydevd"].stoptrace()
            relay.close()
        mark_as_ours(threading.Thread(target=self._sweep, name="rldbg-sweep", daemon=True)).start()
        self._ended(relay.number)

    def _sweep(self) -> None:
        """On a busy host a thread may leave pydevd long after the session has ended, and enable its tracing again."""
        for delay_s in _SWEEPS_S:
            time.sleep(delay_s)
            with self.lock:
                if self._relay is not None:
                    return
                self._tracing.disarm()

    def forget_in_child(self) -> None:
        """After a fork: the child has the parent's tracing but none of its threads; it starts clean."""
        relay, self._relay = self._relay, None
        self.lock = threading.RLock()
        pydevd = sys.modules.get("pydevd")
        if relay is None or pydevd is None:
            return
        relay.abandon()
        with _hooks_kept():
            pydevd.settrace_forked(setup_tracing=False)
            self._tracing.disarm()
            pydevd.stoptrace()

    def _lost(self, relay: Relay) -> None:
        """A relay ended: the broker closed the session, or was killed and no other took over. No thread may stay
        stopped."""
        if self._relay is not relay:
            return
        debugger = _pydevd_instance()
        if debugger is not None:
            # pydevd waits for its configuration without a time limit; a broker that died meanwhile sends none.
            debugger.ready_to_run = True
        self.close(relay)


def load_debugpy(fallback: str) -> Any:
    """The process's own debugpy, else the one that came with rldbg, loaded by path so that sys.path stays as it is."""
    # pydevd warns about frozen modules in every process unless told not to; we suppress the warning.
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    # If variables take long to show, pydevd resumes the other threads: inspecting must not resume anything.
    os.environ.setdefault("PYDEVD_UNBLOCK_THREADS_ON_VARIABLES_TIMEOUT", "-1")
    path_before = list(sys.path)
    try:
        with _hooks_kept():
            debugpy = _import_debugpy(fallback)
            version = tuple(int(part) for part in debugpy.__version__.split("+")[0].split(".")[:3] if part.isdigit())
            if version < _OLDEST:
                raise NoDebugger(f"debugpy {debugpy.__version__} is too old: 1.8.0 is needed (pip install -U debugpy)")
            importlib.import_module("debugpy.server.api")
            _answer_whatever_is_raised(sys.modules["_pydevd_bundle.pydevd_vars"])
            _survive_conditions(sys.modules["pydevd"].PyDB)
    finally:
        sys.path[:] = path_before
    return debugpy


def _answer_whatever_is_raised(module: Any) -> None:
    """pydevd never answers when an expression raises SystemExit, as `exit()` does, or another BaseException."""
    original = module.evaluate_expression
    if getattr(original, "_rldbg", False):
        return

    @functools.wraps(original)
    def evaluate_expression(py_db: Any, frame: FrameType, expression: str, is_exec: bool) -> Any:
        try:
            return original(py_db, frame, expression, is_exec)
        except (Exception, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - the user's expression may raise anything
            kind = type(type(error).__name__, (Exception,), {"__module__": type(error).__module__})
            if is_exec:
                raise kind(*error.args) from None
            return module.ExceptionOnEvaluate(kind(*error.args), kind, error.__traceback__)

    setattr(evaluate_expression, "_rldbg", True)  # noqa: B010 - mypy knows no such attribute
    module.evaluate_expression = evaluate_expression


def _survive_conditions(debugger: Any) -> None:
    """pydevd reports what a condition raises, but a SystemExit of it would end the program: report that as well."""
    original = debugger.handle_breakpoint_condition
    if getattr(original, "_rldbg", False):
        return

    @functools.wraps(original)
    def handle_breakpoint_condition(py_db: Any, info: Any, breakpoint_set: Any, frame: FrameType) -> Any:
        try:
            return original(py_db, info, breakpoint_set, frame)
        except (Exception, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - the user's condition may raise anything
            failed = f"Error while evaluating expression in conditional breakpoint: {breakpoint_set.condition}"
            api = sys.modules["_pydevd_bundle.pydevd_api"].PyDevdAPI()
            api.send_error_message(py_db, f"{failed}\n{type(error).__name__}: {error}")
            return False

    setattr(handle_breakpoint_condition, "_rldbg", True)  # noqa: B010 - mypy knows no such attribute
    debugger.handle_breakpoint_condition = handle_breakpoint_condition


def _import_debugpy(fallback: str) -> Any:
    try:
        return importlib.import_module("debugpy")
    except ImportError as error:
        init = Path(fallback) / "__init__.py"
        if not fallback or not init.is_file():
            raise NoDebugger("debugpy is not installed in this process's environment (pip install debugpy)") from error
        spec = importlib.util.spec_from_file_location("debugpy", init, submodule_search_locations=[fallback])
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["debugpy"] = module
        spec.loader.exec_module(module)
        return module


@contextlib.contextmanager
def _hooks_kept() -> Iterator[None]:
    """pydevd takes breakpoint() and the excepthook for itself when it starts; they belong to the agent and the user."""
    import builtins

    kept = (builtins.breakpoint, sys.breakpointhook, sys.excepthook)
    try:
        yield
    finally:
        builtins.breakpoint, sys.breakpointhook, sys.excepthook = kept


def _forget_orders() -> None:
    """When a session ends with its broker, threads keep pending stops and steps of pydevd; clear them."""
    lifecycle = sys.modules.get("_pydevd_bundle.pydevd_thread_lifecycle")
    if lifecycle is None:
        return
    for thread in threading.enumerate():
        if getattr(thread, "additional_info", None) is not None:
            lifecycle.internal_run_thread(thread, lifecycle.set_additional_thread_info)


def _pydevd_instance() -> Any:
    constants = sys.modules.get("_pydevd_bundle.pydevd_constants")
    return constants.get_global_debugger() if constants is not None else None


def _trace_this_thread() -> None:
    """Runs in a thread of the user's, at its next event."""
    tracing = sys.modules["pydevd_tracing"]
    thread = threading.current_thread()
    debugger = _pydevd_instance()
    if debugger is None or getattr(thread, "pydev_do_not_trace", False):
        tracing.SetTrace(None)
    else:
        debugger.enable_tracing()
