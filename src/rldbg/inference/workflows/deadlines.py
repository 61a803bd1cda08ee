"""Time limits that do not count the time in a debugger."""

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")

_MOST_TICK_S = 5.0
_GRACE_S = 1.0
_DEBUGGERS = frozenset({"pdb", "bdb", "ipdb", "pudb", "pydevd", "_pydevd_bundle", "_pydevd_frame_eval", "debugpy"})


async def within(limit_s: float, work: Coroutine[Any, Any, T], *, is_paused: Callable[[], bool] = lambda: False) -> T:
    """The result of the work, or TimeoutError after `limit_s` seconds in which this loop was running.

    If the loop was stopped between two ticks (a breakpoint, a stopped process), only one tick counts. Work
    that ignores its cancellation is left behind after a second.
    """
    task = asyncio.ensure_future(work)
    left_s, tick_s = limit_s, min(max(limit_s / 100, 0.25), _MOST_TICK_S)
    try:
        while True:
            started = time.monotonic()
            await asyncio.wait({task}, timeout=min(tick_s, left_s))
            if task.done():
                return task.result()
            if not is_paused():
                left_s -= min(time.monotonic() - started, tick_s)
            if left_s <= 0:
                raise TimeoutError
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=_GRACE_S)


def in_debugger(thread_id: int) -> bool:
    """Whether that thread is at the prompt of a debugger, found by the modules on its stack."""
    frame: FrameType | None = sys._current_frames().get(thread_id)
    while frame is not None:
        root = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if root in _DEBUGGERS or frame.f_globals.get("__name__") == "rldbg.agent.debugger":
            return True
        frame = frame.f_back
    return False


_BEAT_S = 0.25
# Ignored unless it is handled, and not used by Python itself: timeouts of reward functions use SIGALRM.
_SIGNAL = signal.SIGURG


class EpisodeBlocked(TimeoutError):
    """Raised in the user's code, at the line that blocks."""


class Watchdog:
    """Raises EpisodeBlocked in the main thread when its loop has not run for `limit_s` seconds.

    It ends what blocks that thread: a coroutine that never awaits, a plain function that never returns. Nothing inside
    a blocked loop can run, so a thread watches its heartbeat. Time at the prompt of a debugger does not count. Only the
    main thread can be signalled; elsewhere it does nothing.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._main = threading.main_thread()
        self._beats = 0
        self._ended = threading.Event()
        self._armed = False

    async def __aenter__(self) -> "Watchdog":
        if threading.current_thread() is self._main:
            self._before = signal.signal(_SIGNAL, self._raise)
            self._heart = asyncio.ensure_future(self._beat())
            threading.Thread(target=self._watch, name="rldbg-watchdog", daemon=True).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ended.set()
        if threading.current_thread() is self._main:
            self._heart.cancel()
            signal.signal(_SIGNAL, self._before)

    async def _beat(self) -> None:
        while True:
            self._beats += 1
            await asyncio.sleep(_BEAT_S)

    def _watch(self) -> None:
        blocked_s, seen, last = 0.0, -1, time.monotonic()
        while not self._ended.wait(_BEAT_S):
            # A process that was stopped as a whole (by an editor's debugger, by ^Z) has not been blocked.
            passed_s, last = min(time.monotonic() - last, 4 * _BEAT_S), time.monotonic()
            if self._beats != seen:
                blocked_s, seen = 0.0, self._beats
            elif self._main.ident is not None and not in_debugger(self._main.ident):
                blocked_s += passed_s
            if blocked_s >= self._limit_s and self._main.ident is not None:
                # Code that swallows the exception and blocks again is interrupted again.
                blocked_s, self._armed = 0.0, True
                signal.pthread_kill(self._main.ident, _SIGNAL)

    def _raise(self, _number: int, frame: FrameType | None) -> None:
        """In the main thread. Only code that runs for a task is interrupted, never the loop itself."""
        if self._armed and asyncio.current_task() is not None:
            self._armed = False
            raise EpisodeBlocked(f"blocked the event loop for {self._limit_s:g} s")
