"""Switching a debugger's tracing on and off in threads that are already running.

Python 3.12 and later have `sys.monitoring`, which pydevd uses and which sees all threads; there only the leftovers
of a session must be cleared. On Python 3.11 tracing belongs to a thread and can be set by that thread alone, and
pydevd's native helper for other threads exists for x86-64 only; here the interpreter's own (exported) function
`_PyEval_SetTrace` puts a callback into each thread that runs at its next event and lets the thread set its own trace.
"""

import gc
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any


class PerThreadTracing:
    """Python 3.11: `arm` makes every other thread call `enable` itself, `disarm` makes them run untraced again."""

    def __init__(self) -> None:
        # Loaded when first needed: most processes are never debugged.
        import ctypes

        self._ctypes = ctypes
        self._api = ctypes.pythonapi
        for name in ("PyInterpreterState_Get", "PyInterpreterState_ThreadHead", "PyThreadState_Next"):
            getattr(self._api, name).restype = ctypes.c_void_p
        self._api.PyThreadState_Get.restype = ctypes.c_void_p
        # Interpreters call the callback through its address: it must outlive every thread that was given it.
        self._callbacks: list[Any] = []

    def arm(self, enable: Callable[[], None]) -> None:
        def at_next_event(_self: int, _frame: int, _event: int, _argument: int) -> int:
            enable()
            return 0

        pointer, number = self._ctypes.c_void_p, self._ctypes.c_int
        callback = self._ctypes.PYFUNCTYPE(number, pointer, pointer, number, pointer)(at_next_event)
        self._callbacks.append(callback)
        for state in self._other_threads():
            self._api._PyEval_SetTrace(pointer(state), callback, None)

    def disarm(self) -> None:
        for state in self._other_threads():
            self._api._PyEval_SetTrace(self._ctypes.c_void_p(state), None, None)

    def _other_threads(self) -> Iterator[int]:
        mine = self._api.PyThreadState_Get()
        pointer = self._ctypes.c_void_p
        head = self._api.PyInterpreterState_ThreadHead(pointer(self._api.PyInterpreterState_Get()))
        states = []
        while head:
            states.append(head)
            head = self._api.PyThreadState_Next(pointer(head))
        return (state for state in states if state != mine)


class Monitoring:
    """Python 3.12 and later: pydevd's events see all threads by themselves; `disarm` clears what they leave behind."""

    def arm(self, enable: Callable[[], None]) -> None:
        """Nothing to do: monitoring is not per thread."""

    def disarm(self) -> None:
        """Functions that had a breakpoint keep their local events, and with them half their speed, unless cleared."""
        monitoring: Any = getattr(sys, "monitoring")  # noqa: B009 - mypy checks for 3.11, which lacks it
        tool = monitoring.DEBUGGER_ID
        if monitoring.get_tool(tool) is None:
            return
        for code in _all_code():
            if monitoring.get_local_events(tool, code):
                monitoring.set_local_events(tool, code, 0)


def thread_tracing() -> PerThreadTracing | Monitoring:
    return Monitoring() if sys.version_info >= (3, 12) else PerThreadTracing()


def _all_code() -> Iterator[CodeType]:
    """Code of every function alive; code objects themselves are not known to the garbage collector."""
    pending = [item.__code__ for item in gc.get_objects() if type(item) is FunctionType]
    pending += [frame.f_code for frame in sys._current_frames().values()]
    while pending:
        code = pending.pop()
        yield code
        pending += [constant for constant in code.co_consts if type(constant) is CodeType]
