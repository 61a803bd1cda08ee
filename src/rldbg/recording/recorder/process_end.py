"""What is not yet written gets written when the process ends: in order, by SIGTERM, or as a multiprocessing child.

A handler that was there before ours runs after it; a default action still ends the process with its own status.
"""

import os
import signal
import threading
from collections.abc import Callable
from multiprocessing.util import Finalize
from types import FrameType
from typing import Any


class ProcessEnd:
    """Calls `finish` once when the process ends, and `on_signal` when a later handler catches SIGTERM."""

    def __init__(self, *, finish: Callable[[], None], on_signal: Callable[[], None]) -> None:
        self._process = os.getpid()
        self._finish = finish
        self._on_signal = on_signal
        # Unlike atexit this also runs in children of multiprocessing, which leave by os._exit.
        self._finalizer = Finalize(None, self._at_exit, exitpriority=10)
        self._previous: Any = None
        self._installed = False
        self._install()

    def cancel(self) -> None:
        """Restores the handlers that are still ours."""
        self._finalizer.cancel()
        if self._installed and signal.getsignal(signal.SIGTERM) == self._handle and _may_set_handlers():
            signal.signal(signal.SIGTERM, self._previous)
            self._installed = False

    def _install(self) -> None:
        previous = signal.getsignal(signal.SIGTERM)
        # None is a handler set by C code: it could not be called after ours, so it keeps its place.
        if previous is None or not _may_set_handlers():
            return
        self._previous = previous
        self._installed = True
        signal.signal(signal.SIGTERM, self._handle)

    def _at_exit(self) -> None:
        if os.getpid() == self._process:
            self._finish()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        ours = os.getpid() == self._process
        if callable(self._previous):
            if ours:
                self._on_signal()
            self._previous(number, frame)
        elif self._previous == signal.SIG_IGN:
            if ours:
                self._on_signal()
        else:
            if ours:
                self._finish()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


def _may_set_handlers() -> bool:
    return threading.current_thread() is threading.main_thread()
