"""Bounded host memory that snapshots are copied into and that stays warm between them.

One anonymous mapping, handed out first fit from its low end, so the same pages are used again and again and only the
high-water mark is ever resident. Blocks are taken by one thread at a time and given back by any thread without a lock:
a signal handler that waits for the writers can never wait for a lock that its own thread holds.
"""

import contextlib
import mmap
import platform
import sys
from queue import Empty, SimpleQueue
from typing import NamedTuple

import numpy as np

_ALIGNMENT = 64
_MADV_POPULATE_WRITE = 23  # Linux 5.14; Python has no name for it
# Pages count when they are used, not before: the kernel refuses to fork a process that has reserved more than the
# machine's memory, and neighbouring mappings of several recorders are one to it. Python has the name from 3.13 on.
_ON_KNOWN_LINUX = 0x4000 if (sys.platform, platform.machine()) in (("linux", "x86_64"), ("linux", "aarch64")) else 0
_UNRESERVED = getattr(mmap, "MAP_NORESERVE", _ON_KNOWN_LINUX)


class ArenaRange(NamedTuple):
    """A piece of an arena."""

    start: int
    size: int


class Arena:
    """A first-fit allocator over one mapping of `capacity` bytes."""

    def __init__(self, capacity: int, warm_bytes: int = 0) -> None:
        self.capacity = -(-capacity // mmap.PAGESIZE) * mmap.PAGESIZE
        try:
            self._mapping = mmap.mmap(-1, self.capacity, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _UNRESERVED)
        except OSError as error:
            reason = f"{error.strerror}: {self.capacity} bytes for a buffer; set buffer_bytes to less"
            raise OSError(error.errno, reason) from error
        self.memory: np.ndarray = np.frombuffer(self._mapping, dtype=np.uint8)
        self._free = [ArenaRange(0, self.capacity)]
        self._returned: SimpleQueue[ArenaRange] = SimpleQueue()
        self._advise(min(warm_bytes, self.capacity))

    def _advise(self, warm_bytes: int) -> None:
        # Both are hints: a kernel without them costs page faults in the first snapshots, nothing else.
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):
                self._mapping.madvise(mmap.MADV_HUGEPAGE)
        if warm_bytes:
            with contextlib.suppress(OSError, ValueError):
                self._mapping.madvise(_MADV_POPULATE_WRITE, 0, warm_bytes)

    def take(self, size: int) -> ArenaRange | None:
        """A block of at least `size` bytes, or None while there is no room. One thread at a time."""
        self._collect()
        size = _aligned(size)
        for index, hole in enumerate(self._free):
            if hole.size == size:
                return self._free.pop(index)
            if hole.size > size:
                self._free[index] = ArenaRange(hole.start + size, hole.size - size)
                return ArenaRange(hole.start, size)
        return None

    def has_room(self, size: int) -> bool:
        """Whether take() would succeed now. Only for the thread that may take."""
        self._collect()
        return any(hole.size >= _aligned(size) for hole in self._free)

    def give_back(self, block: ArenaRange) -> None:
        """Makes a block free again; from any thread, at any time."""
        self._returned.put(block)

    def wait_for_room(self, timeout_s: float) -> None:
        """Returns when something was given back, or after the timeout. Only for the thread that may take."""
        with contextlib.suppress(Empty):
            self._release(self._returned.get(timeout=timeout_s))

    def view(self, block: ArenaRange) -> np.ndarray:
        """The block's bytes."""
        return self.memory[block.start : block.start + block.size]

    def free_bytes(self) -> int:
        """What could be taken if it were in one piece. Only for the thread that may take."""
        self._collect()
        return sum(hole.size for hole in self._free)

    def close(self) -> None:
        """Returns the memory, or leaves that to the last view of it. Only for the thread that may take."""
        self.memory = self.memory[:0].copy()
        self._free = []
        with contextlib.suppress(BufferError):
            self._mapping.close()

    def _collect(self) -> None:
        while not self._returned.empty():
            self._release(self._returned.get())

    def _release(self, block: ArenaRange) -> None:
        """Puts a block back in address order and joins it with its neighbours."""
        holes = self._free
        low, high = 0, len(holes)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if holes[middle].start < block.start else (low, middle)
        if low < len(holes) and block.start + block.size == holes[low].start:
            block = ArenaRange(block.start, block.size + holes.pop(low).size)
        if low > 0 and holes[low - 1].start + holes[low - 1].size == block.start:
            holes[low - 1] = ArenaRange(holes[low - 1].start, holes[low - 1].size + block.size)
        else:
            holes.insert(low, block)


def _aligned(size: int) -> int:
    return max(_ALIGNMENT, -(-size // _ALIGNMENT) * _ALIGNMENT)
