"""What this process has in use, as its allocators count it: malloc's bytes and Python's blocks.

Resident memory says what the process holds of the machine: what one phase frees stays resident, and another phase
takes it. What is in use belongs to the phase that keeps it.
"""

import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

_SHARE = 200
"""Reading walks the lists of free memory, microseconds or, in a torn heap, milliseconds: 1 / _SHARE of the time at
most, after half a second that the first steps may take."""
_AT_ONCE_NS = 500 * 10**6
_FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class InUse(NamedTuple):
    malloc_kib: int
    """Also what malloc took from the kernel for one large block each: arrays, tensors on the CPU."""
    blocks: int
    """Of Python's own allocator: objects of at most 512 bytes, which malloc does not count."""


class _Budget:
    def __init__(self) -> None:
        self._began = time.monotonic_ns()
        self._spent = 0

    def allows(self, now: int) -> bool:
        return self._spent <= (now - self._began) // _SHARE + _AT_ONCE_NS

    def spend(self, nanoseconds: int) -> None:
        self._spent += nanoseconds


_budget = _Budget()
_question: Callable[[], Any] | None = None
_is_known = True


def in_use(*, always: bool = False) -> InUse | None:
    """None where the C library cannot tell (before glibc 2.33), and while reading would cost too much, unless `always`:
    a phase that was read at entry is read at exit."""
    global _question, _is_known
    started = time.monotonic_ns()
    if not _is_known or not (always or _budget.allows(started)):
        return None
    if _question is None:
        _question = _mallinfo2()
        _is_known = _question is not None
        if _question is None:
            return None
        started = time.monotonic_ns()
    said = _question()
    found = InUse((said.uordblks + said.hblkhd) // 1024, sys.getallocatedblocks())
    _budget.spend(time.monotonic_ns() - started)
    return found


def _mallinfo2() -> Callable[[], Any] | None:
    try:
        import ctypes

        class Mallinfo2(ctypes.Structure):
            _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS.split()]

        # PyDLL keeps the interpreter's lock: to get it back would take longer than the question.
        question: Any = ctypes.PyDLL(None).mallinfo2
        question.restype, question.argtypes = Mallinfo2, []
    except (ImportError, OSError, AttributeError):
        return None
    answer: Callable[[], Any] = question
    return answer
