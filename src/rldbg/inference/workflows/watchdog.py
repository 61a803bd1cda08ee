"""Ends what blocks the main thread: a coroutine that never awaits, a plain function that never returns.

Nothing inside the loop can see that the loop stands still, so a thread watches its heartbeat. Time at the prompt of a
debugger does not count.
"""

import asyncio
import signal
import threading
import time
from types import FrameType

from rldbg.inference.workflows.deadlines import in_debugger

_BEAT_S = 0.25
# Ignored unless it is handled, and not used by Python itself: timeouts of reward functions use SIGALRM.
_SIGNAL = signal.SIGURG


class EpisodeBlocked(TimeoutError):
    """Raised in the user's code, at the line that blocks."""


class Watchdog:
    """Raises EpisodeBlocked in the main thread when its loop has not run for `limit_s` seconds.

    Only in the main thread, which alone can be signalled; elsewhere it does nothing.
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
