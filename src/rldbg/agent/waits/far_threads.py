"""Threads of another process, read from its memory."""

from .far_objects import FarFrame
from .memory import Memory

_THREADS = 20_000


def threads_of(memory: Memory) -> "list[FarThread]":
    """Every thread that runs Python code; the one that was started last comes first."""
    state = memory.word(memory.interpreter() + memory.layout["threads"])
    found: list[FarThread] = []
    while state and len(found) < _THREADS:
        found.append(FarThread(memory, state))
        # Thread states are a list: each begins with the previous and the next one.
        state = memory.word(state + 8)
    return found


class FarThread:
    """A thread of another process: identity and frames, innermost first."""

    def __init__(self, memory: Memory, state: int) -> None:
        self._memory = memory
        self._state = state
        self.ident = memory.word(state + memory.layout["thread_ident"])
        self.native = memory.word(state + memory.layout["thread_native"])

    def frames(self) -> list[FarFrame]:
        memory, layout = self._memory, self._memory.layout
        holder = self._state if layout["frame_holder"] < 0 else memory.word(self._state + layout["frame_holder"])
        address = memory.word(holder + layout["current_frame"])
        found: list[FarFrame] = []
        while address and len(found) < 500:
            frame = FarFrame(memory, address)
            if frame.file:
                found.append(frame)
            address = memory.word(address + layout["frame_previous"])
        return found
