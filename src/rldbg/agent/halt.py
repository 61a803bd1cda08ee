"""The one place of the agent in which a thread may be seen standing: where a breakpoint() is the last thing its
function does, no later line of that function exists to stop at, and the stop happens here, with the function below."""

import dis
import sys
from collections.abc import Callable
from types import FrameType


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


def stand_here(suspend_at: Callable[[FrameType], None]) -> None:
    """Debuggers do not enter the agent's files, except for this one."""
    suspend_at(sys._getframe())
    return  # the line on which the thread stands
