"""Ends an evaluation that does not end by itself: a rank must not hang because somebody looked at it."""

import ctypes
import sys
from types import FrameType

from .stacks import chain

# Where a stopped thread is while it evaluates something for a debugger: in pydevd, or in our own adapter.
_EVALUATING = (("pydevd_comm.py", "do_it"), ("dead_frames.py", "handle"))


class TookTooLong(Exception):
    """Raised in the middle of the evaluation."""

    def __str__(self) -> str:
        return "it did not end in time and was interrupted"


def interrupt_evaluations() -> int:
    """How many threads were told; code that is in C hears of it when it comes back to Python."""
    told = 0
    for ident, frame in sys._current_frames().items():
        if _is_evaluating(frame):
            told += ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(TookTooLong))
    return told


def _is_evaluating(frame: FrameType) -> bool:
    return any(
        each.f_code.co_name == function and each.f_code.co_filename.endswith(file)
        for each in chain(frame)
        for file, function in _EVALUATING
    )
