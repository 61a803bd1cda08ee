"""Where and why a process halted."""

import time
from dataclasses import dataclass, field
from typing import Any

from rldbg.agent import Message
from rldbg.live.own_frames import NOT_THE_USERS


@dataclass
class Stop:
    """Where and why a process halted."""

    file: str = ""
    line: int = 0
    function: str = ""
    thread: str = ""
    thread_id: int = 0
    reason: str = "breakpoint"
    since: float = field(default_factory=time.time)
    notes: list[str] = field(default_factory=list)
    frame_id: int | None = None
    counted: bool = False
    # Whether the previous broker has seen it, so that its breakpoint has counted it.
    is_taken_over: bool = False
    # The debug session in which an announced stop will arrive; None until the agent reports it.
    session: int | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "file": self.file,
            "line": self.line,
            "function": self.function,
            "thread": self.thread,
            "thread_id": self.thread_id,
            "reason": self.reason,
            "notes": self.notes,
        }


def fill_stop(stop: Stop, frames: list[Message]) -> None:
    """The user's innermost frame; frames of a debugger or of this tool above it are skipped."""
    for frame in frames:
        path = str((frame.get("source") or {}).get("path", ""))
        if not any(part in path for part in NOT_THE_USERS):
            stop.file, stop.line, stop.function = path, int(frame.get("line", 0)), str(frame.get("name", ""))
            stop.frame_id = frame.get("id")
            return
