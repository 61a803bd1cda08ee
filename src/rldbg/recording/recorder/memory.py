"""The memory of one snapshot: taken piece by piece, given back as a whole when the record has been written."""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from rldbg.recording.recorder.arena import Arena, ArenaRange

_LOOK_AGAIN_S = 0.5


class NoRoom(Exception):
    """The buffer is full and the policy is to drop, or the recorder has stopped."""


class TooLarge(Exception):
    """The snapshot is larger than the whole buffer."""


class SnapshotMemory(Protocol):
    """Where a snapshot's bytes lie."""

    @property
    def size(self) -> int:
        """Bytes held."""

    def take(self, size: int) -> np.ndarray:
        """That many writable bytes."""

    def undo(self) -> None:
        """Gives the piece taken last back."""

    def release(self) -> None:
        """Gives everything back, from any thread."""


class ArenaMemory:
    """Blocks of the arena. `on_full` is called whenever there is no room; it raises NoRoom to give up waiting."""

    __slots__ = ("_arena", "_blocks", "_on_full")

    def __init__(self, arena: Arena, on_full: Callable[[], None]) -> None:
        self._arena = arena
        self._on_full = on_full
        self._blocks: list[ArenaRange] = []

    @property
    def size(self) -> int:
        return sum(block.size for block in self._blocks)

    def take(self, size: int) -> np.ndarray:
        while (block := self._arena.take(size)) is None:
            if self._holds_all_that_is_in_use(size):
                raise TooLarge(f"{self.size + size} bytes do not fit into a buffer of {self._arena.capacity}")
            self._on_full()
            self._arena.wait_for_room(_LOOK_AGAIN_S)
        self._blocks.append(block)
        return self._arena.view(block)[:size]

    def _holds_all_that_is_in_use(self, size: int) -> bool:
        """Whether waiting is useless. Memory given back since the last check may be enough."""
        return self._arena.free_bytes() + self.size == self._arena.capacity and not self._arena.has_room(size)

    def undo(self) -> None:
        self._arena.give_back(self._blocks.pop())

    def release(self) -> None:
        while self._blocks:
            self._arena.give_back(self._blocks.pop())


class HeapMemory:
    """Ordinary memory, for a snapshot larger than the arena; its caller waits until it has been written."""

    def __init__(self) -> None:
        self._pieces: list[np.ndarray] = []

    @property
    def size(self) -> int:
        return sum(piece.nbytes for piece in self._pieces)

    def take(self, size: int) -> np.ndarray:
        self._pieces.append(np.empty(size, dtype=np.uint8))
        return self._pieces[-1]

    def undo(self) -> None:
        self._pieces.pop()

    def release(self) -> None:
        self._pieces.clear()
