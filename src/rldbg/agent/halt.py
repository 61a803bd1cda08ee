"""The only place in the agent's code where a thread may be stopped: if breakpoint() is the last statement of its
function, there is no later line to stop at, so the stop happens here, with that function as the caller. A main thread
that waits in `ray.get`, a sleep or a lock executes no line either: a signal handler brings it here.
"""

import contextlib
import dis
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

# Ignored by default, and not sent unless a socket asks for it.
_SIGNAL = signal.SIGURG


def is_last_statement(frame: FrameType) -> bool:
    """Whether the frame returns after its current instruction without reaching another line."""
    current = frame.f_lineno
    for instruction in dis.get_instructions(frame.f_code):
        if instruction.offset <= frame.f_lasti:
            continue
        if _line_of(instruction) not in (None, current) or "JUMP" in instruction.opname:
            return False
        if instruction.opname.startswith("RETURN"):
            return True
    return True


def _line_of(instruction: dis.Instruction) -> int | None:
    """Python 3.13 renamed what earlier versions call starts_line."""
    line: int | None = getattr(instruction, "line_number", instruction.starts_line)
    return line


def can_be_called_here() -> bool:
    """Prepares the main thread for `call_here`, unless the program uses that signal itself."""
    is_free = threading.current_thread() is threading.main_thread() and signal.getsignal(_SIGNAL) is signal.SIG_DFL
    # Only the main interpreter may have handlers.
    with contextlib.suppress(ValueError):
        if is_free:
            signal.signal(_SIGNAL, _on_signal)
    return signal.getsignal(_SIGNAL) is _on_signal


def call_here() -> bool:
    """Makes the main thread execute a line of this file, also during a wait in C that checks for signals."""
    ident = threading.main_thread().ident
    if ident is None or signal.getsignal(_SIGNAL) is not _on_signal:
        return False
    signal.pthread_kill(ident, _SIGNAL)
    return True


def _on_signal(_signal: int, _frame: FrameType | None) -> None:
    """The first event makes Python 3.11 switch this thread's tracing on; the next function is seen by the debugger."""
    _stand_if_told()


def _stand_if_told() -> None:
    return  # the line on which the thread stands


def stand_here(suspend_at: Callable[[FrameType], None]) -> None:
    """Debuggers do not enter the agent's files, except for this one."""
    suspend_at(sys._getframe())
    return  # the line on which the thread stands
