"""Ends an evaluation that does not end by itself: a rank must not hang because somebody looked at it."""

import ctypes
import sys
from types import FrameType

from .stacks import chain

# Where a stopped thread is while it evaluates something for a debugger: in pydevd, or in our own adapter.
_EVALUATING = (("pydevd_comm.py", "do_it"), ("post_mortem_adapter.py", "handle"))
# Where it is while the value is there and only its text is still to come.
_SHOWING = (("values.py", "describe"),)


class TookTooLong(Exception):
    """Raised in the middle of the evaluation."""

    def __str__(self) -> str:
        return "interrupted: it did not finish in time"


def interrupt_evaluations(*, showing_only: bool) -> int:
    """How many threads were told; code that is in C hears of it when it comes back to Python."""
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
