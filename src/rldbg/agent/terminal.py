"""When the process has a terminal of its own, a breakpoint there is a plain prompt, as without any debugger."""

import os
import sys
from types import FrameType

from .ray_process import is_ray_worker


def has_own_terminal() -> bool:
    """Whether this process has its own interactive terminal; torchrun's ranks share one and do not count."""
    try:
        interactive = sys.stdin.isatty() and sys.stdout.isatty() and os.getpgrp() == os.tcgetpgrp(sys.stdin.fileno())
    except (AttributeError, OSError, ValueError):
        return False
    return interactive and "RANK" not in os.environ and not is_ray_worker()


def prompt_here(frame: FrameType) -> None:
    import pdb

    pdb.Pdb().set_trace(frame)


def blocked_loop_note() -> list[str]:
    """Reports that a stop also blocks an event loop, and with it every other method of an async actor."""
    asyncio = sys.modules.get("asyncio")
    try:
        loop = asyncio.get_running_loop() if asyncio is not None else None
    except RuntimeError:
        loop = None
    if asyncio is None or loop is None:
        return []
    waiting = sum(not task.done() for task in asyncio.all_tasks(loop)) - 1
    others = "1 other task of this process waits" if waiting == 1 else f"{waiting} other tasks of this process wait"
    return [f"the event loop is blocked while stopped: {others}"]
