"""Ranks of the policy as threads of one process: the same exchange of tensors as between processes, under any debugger.

Every exchange is a barrier of all ranks: each stores its tensor, all wait, each reads what it needs, and all wait again
before the shared list is reused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")


class ThreadMeeting:
    """The shared state of the ranks of one process."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.table: list[Any] = [None] * size
        self.barrier = threading.Barrier(size)

    def join(self, rank: int, _device: Any) -> ThreadRanks:
        return ThreadRanks(self, rank)

    def each(self, calls: Sequence[Callable[[], Result]]) -> list[Result]:
        """Runs one call per rank at the same time; when one fails, the others stop waiting and its error is raised."""
        with ThreadPoolExecutor(self.size) as threads:
            waiting = [threads.submit(self._guarded, call) for call in calls]
            errors = [error for item in waiting if (error := item.exception()) is not None]
        if errors:
            self.barrier.reset()
            raise min(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError))
        return [item.result() for item in waiting]

    def _guarded(self, call: Callable[[], Result]) -> Result:
        try:
            return call()
        except BaseException:
            self.barrier.abort()
            raise


class ThreadRanks:
    """One rank's access to the exchange."""

    def __init__(self, meeting: ThreadMeeting, rank: int) -> None:
        self._meeting = meeting
        self._rank = rank

    @property
    def size(self) -> int:
        return self._meeting.size

    def gather(self, tensor: Any) -> list[Any]:
        """Every rank's tensor, in rank order."""
        self._meeting.table[self._rank] = tensor
        self._meeting.barrier.wait()
        taken = [item.clone() for item in self._meeting.table]
        self._meeting.barrier.wait()
        return taken

    def add_up(self, tensor: Any) -> None:
        parts = self.gather(tensor)
        tensor.copy_(sum(parts[1:], start=parts[0]))

    def take_from_first(self, tensor: Any) -> None:
        tensor.copy_(self.gather(tensor)[0])

    def leave(self) -> None:
        """Threads hold nothing for each other."""
