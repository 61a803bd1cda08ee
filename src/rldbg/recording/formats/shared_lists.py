"""Lists of numbers that several pickles hold in the same bytes: decoded once.

Two runs that are compared mostly hold the same rollouts, and one run holds a mask for each sample of a group. Reading
the bytes of a list again to see that they are the same is many times faster than decoding them again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

_HEAD_BYTES = 64  # lists that begin alike are compared with each other
_MOST_ALIKE = 16  # of the same beginning, such as the prompt of a group
_MOST_BYTES = 1 << 27


class SharedLists:
    """What was decoded while `in_use` was open: the bytes of each list, and its numbers."""

    def __init__(self) -> None:
        self._lists: list[tuple[bytes, np.ndarray]] = []
        self._alike: dict[bytes, list[int]] = {}
        self._next = 0  # two pickles mostly have the same lists in the same order
        self._bytes = 0

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Pickles that are read meanwhile share their lists."""
        self._next = 0
        token = _IN_USE.set(self)
        try:
            yield
        finally:
            _IN_USE.reset(token)

    def find(self, pickled: bytes, start: int) -> tuple[bytes, np.ndarray] | None:
        """A list whose bytes are those of the pickle from here on."""
        alike = self._alike.get(pickled[start : start + _HEAD_BYTES])
        if alike is None:
            return None
        for number in (self._next, *alike):
            if number < len(self._lists) and pickled.startswith(self._lists[number][0], start):
                self._next = number + 1
                return self._lists[number]
        return None

    def add(self, encoded: bytes, values: np.ndarray) -> None:
        is_known = not values.flags.writeable
        if is_known or len(encoded) < _HEAD_BYTES:
            return
        self._bytes += len(encoded)
        if self._bytes > _MOST_BYTES:
            self._lists, self._alike, self._bytes = [], {}, len(encoded)
        alike = self._alike.setdefault(encoded[:_HEAD_BYTES], [])
        alike[:] = [*alike[1 - _MOST_ALIKE :], len(self._lists)]
        values.flags.writeable = False
        self._lists.append((encoded, values))


_IN_USE: ContextVar[SharedLists | None] = ContextVar("lists that several pickles share", default=None)


def shared_lists() -> SharedLists | None:
    return _IN_USE.get()
