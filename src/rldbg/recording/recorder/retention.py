"""How much of a recording stays on disk: a byte budget, the newest steps, and the pinned ones. Bookkeeping only."""

import threading
from collections.abc import Iterable
from typing import NamedTuple

from rldbg.recording.recorder.checked_steps import CheckedSteps

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
        checks: CheckedSteps | None = None,
    ) -> None:
        self._budget_bytes = budget_bytes
        self._keep_last = keep_last
        self._pinned = set(pinned_steps)
        self.checks = checks
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
            return self._taken(self._old(self._keep_last))

    def left(self) -> dict[int, list[str]]:
        """Old steps that are still there because they are not checked yet, or pinned."""
        with self._lock:
            old = sorted(self._steps)[: -self._keep_last] if self._keep_last and self.checks else []
            return {step: [file.name for file in self._steps[step]] for step in old if step not in self._pinned}

    def checked_since(self) -> list[str]:
        """Names what may be removed at the end."""
        with self._lock:
            checked = self.checks.read() if self.checks and self._keep_last else None
            if self._keep_last is None or checked is None:
                return []
            old = [step for step in sorted(self._steps)[: -self._keep_last] if step not in self._pinned]
            return self._taken(step for step in old if step <= checked.upto and step not in checked.pinned)

    def _taken(self, steps: Iterable[int]) -> list[str]:
        gone = [file for step in steps for file in self._steps.pop(step)]
        self._bytes -= sum(file.size for file in gone)
        return [file.name for file in gone]

    def _old(self, keep_last: int) -> list[int]:
        """The steps that may be removed, without those that `rldbg watch` has not checked yet, or has pinned."""
        old = [step for step in sorted(self._steps)[:-keep_last] if step not in self._pinned]
        checked = self.checks.read() if self.checks and old else None
        if self.checks is None or checked is None:
            return old
        behind = set(sorted(self._steps)[: -keep_last * _MOST_BEHIND]) - self._pinned - checked.pinned
        too_late = {step for step in behind if step > checked.upto}
        if too_late:
            self.checks.remove_unchecked(sorted(too_late))
            checked = self.checks.read() or checked
        return [step for step in old if step not in checked.pinned and (step <= checked.upto or step in too_late)]
