"""The state of one worker's profile: a small file in the plan's state folder, always whole, rewritten at each change.

`rldbg profile` waits while one is open, makes the manifest from all of them, and says from the last state why a profile
is missing.
"""

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

STATUS_FILES = "status"
OPEN_STATES = ("recording", "finishing")


class StatusFile:
    """States: armed (the window has not begun), recording, finishing (being written), done, failed."""

    def __init__(self, state_folder: str | Path, worker: str, pattern: str, tool: str) -> None:
        self.path = (
            Path(state_folder) / STATUS_FILES / f"{socket.gethostname()}_{os.getpid()}_{time.monotonic_ns()}.json"
        )
        self.facts: dict[str, Any] = {
            "worker": worker,
            "pattern": pattern,
            "tool": tool,
            "rank": None,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "supervisor": os.getpid(),
            "state": "armed",
            "steps_seen": None,
            "files": [],
            "places": [],
            "reason": "",
        }

    def update(self, **facts: Any) -> None:
        """Never raises: a folder that is gone must not end the training."""
        self.facts |= facts
        self.facts["at"] = time.time()
        temporary = self.path.with_suffix(f".{os.getpid()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(self.facts), encoding="utf-8")
            temporary.replace(self.path)
        except OSError:
            return


def is_open_inside(status: dict[str, Any]) -> bool:
    """Whether the process itself still has something to write; under nsys a supervisor has."""
    return status["state"] in OPEN_STATES and status["supervisor"] == status["pid"]


def read_status_files(state_folder: Path) -> list[dict[str, Any]]:
    """What they contain, by file name."""
    return [
        json.loads(file.read_text(encoding="utf-8")) for file in sorted((state_folder / STATUS_FILES).glob("*.json"))
    ]
