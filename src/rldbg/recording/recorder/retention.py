"""How much of a recording stays on disk: a byte budget, the newest steps, and the pinned ones. Bookkeeping only."""

import threading
from collections.abc import Iterable
from typing import NamedTuple


class _File(NamedTuple):
    name: str
    size: int


class Retention:
    """What this process has on disk, by step."""

    def __init__(self, budget_bytes: int | None, keep_last: int | None, pinned_steps: Iterable[int]) -> None:
        self._budget_bytes = budget_bytes
        self._keep_last = keep_last
        self._pinned = set(pinned_steps)
        self._steps: dict[int, list[_File]] = {}
        self._bytes = 0
        self._lock = threading.Lock()

    def pin(self, step: int) -> None:
        """This step is never removed; from any thread."""
        self._pinned.add(step)

    def admits(self, size: int) -> bool:
        """Whether a file of this size is within the budget; if so, its bytes count from now on."""
        with self._lock:
            if self._budget_bytes is not None and self._bytes + size > self._budget_bytes:
                return False
            self._bytes += size
            return True

    def added(self, step: int, name: str, size: int) -> list[str]:
        """Takes note of a file and names those to be removed now."""
        if self._keep_last is None:
            return []
        with self._lock:
            self._steps.setdefault(step, []).append(_File(name, size))
            old = sorted(self._steps)[: -self._keep_last]
            gone = [file for step in old if step not in self._pinned for file in self._steps.pop(step)]
            self._bytes -= sum(file.size for file in gone)
            return [file.name for file in gone]
