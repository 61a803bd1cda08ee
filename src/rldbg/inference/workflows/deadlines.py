"""Time limits that do not run while somebody looks: at a breakpoint a process stands still, and so must its clocks."""

import asyncio
import sys
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

    A loop that stood still between two ticks (a breakpoint, a stopped process) has one tick counted, no more. Work
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
