"""Whether a `rldbg.breakpoint(...)` means this process and this hit; the same inside a run and outside of one."""

import threading
from types import FrameType
from typing import Any

from .selection import Subject, parse_selection


class BreakpointConditions:
    """Counts the hits of each place, those for which `ranks` and `when` hold."""

    def __init__(self) -> None:
        self._hits: dict[tuple[str, int], int] = {}
        self._counting = threading.Lock()

    def is_meant(
        self,
        frame: FrameType,
        who: dict[str, Any],
        *,
        ranks: str = "",
        when: bool = True,
        nth: int | None = None,
        every: int | None = None,
    ) -> bool:
        """`who` is the process as `describe_process` says it."""
        if not when or (ranks and not parse_selection(ranks).matches(_subject(who))):
            return False
        place = (frame.f_code.co_filename, frame.f_lineno)
        with self._counting:
            self._hits[place] = hits = self._hits.get(place, 0) + 1
        return (nth is None or hits == nth) and (every is None or hits % every == 0)

    def forget_lock(self) -> None:
        """In a forked child: another thread of the parent may have held it."""
        self._counting = threading.Lock()


def _subject(who: dict[str, Any]) -> Subject:
    name = f"{who['role']}/{who['rank']}" if who["rank"] is not None else who["role"]
    return Subject(name, who["role"], who["rank"], who["coordinates"], who["pid"])
