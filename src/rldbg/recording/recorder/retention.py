"""How much of a recording stays on disk: a byte budget, the newest steps, and the pinned ones. Bookkeeping only."""

import threading
from collections.abc import Callable, Iterable
from typing import NamedTuple

# Steps that `rldbg watch` has not checked yet stay, up to this multiple of the number of kept steps.
_MOST_BEHIND = 8


class _File(NamedTuple):
    name: str
    size: int


class Retention:
    """What this process has on disk, by step."""

    def __init__(
        self,
        budget_bytes: int | None,
        keep_last: int | None,
        pinned_steps: Iterable[int],
        last_judged: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._budget_bytes = budget_bytes
        self._keep_last = keep_last
        self._pinned = set(pinned_steps)
        self._last_judged = last_judged
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
            gone = [file for step in self._old(self._keep_last) for file in self._steps.pop(step)]
            self._bytes -= sum(file.size for file in gone)
            return [file.name for file in gone]

    def _old(self, keep_last: int) -> list[int]:
        """The steps that may be removed, without those that `rldbg watch` has not checked yet."""
        old = [step for step in sorted(self._steps)[:-keep_last] if step not in self._pinned]
        last_judged = self._last_judged() if old else None
        if last_judged is None:
            return old
        too_late = set(sorted(self._steps)[: -keep_last * _MOST_BEHIND])
        return [step for step in old if step <= last_judged or step in too_late]
