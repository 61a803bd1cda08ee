"""Breakpoints in workflows of which many run at once: one thread has the prompt, the others wait for theirs."""

import pdb
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from rldbg.core import Environment


class _OnePrompt(pdb.Pdb):
    """pdb that holds a lock from its first prompt until the user resumes the program."""

    def __init__(self, lock: threading.Lock, on_pause: Callable[[bool], None]) -> None:
        super().__init__(nosigint=True)
        self._lock = lock
        self._on_pause = on_pause
        self._held = False

    def interaction(self, *arguments: Any, **named: Any) -> None:
        self._take()
        super().interaction(*arguments, **named)

    def set_continue(self) -> None:
        super().set_continue()
        self._give_back()

    def set_quit(self) -> None:
        super().set_quit()
        self._give_back()

    def _take(self) -> None:
        if not self._held:
            self._lock.acquire()
            self._held = True
            self._on_pause(True)

    def _give_back(self) -> None:
        if self._held:
            self._held = False
            self._on_pause(False)
            self._lock.release()


@contextmanager
def one_prompt(on_pause: Callable[[bool], None] = lambda _: None) -> Iterator[None]:
    """`breakpoint()` is ours inside, unless the user has chosen a debugger; `on_pause` hears when a prompt opens."""
    if sys.breakpointhook is not sys.__breakpointhook__ or Environment().text("PYTHONBREAKPOINT"):
        yield
        return
    lock = threading.Lock()

    def stop(*_arguments: Any, **_named: Any) -> None:
        frame: FrameType = sys._getframe(1)
        _OnePrompt(lock, on_pause).set_trace(frame)

    sys.breakpointhook = stop
    try:
        yield
    finally:
        sys.breakpointhook = sys.__breakpointhook__


def post_mortem(error: BaseException, on_pause: Callable[[bool], None] = lambda _: None) -> None:
    """pdb where the exception was raised; returns when the user leaves it."""
    on_pause(True)
    try:
        pdb.post_mortem(error.__traceback__)
    finally:
        on_pause(False)
