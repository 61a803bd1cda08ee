"""What became of one worker's profile: a small file in the run's books, always whole, rewritten at each change.

`rldbg profile` waits for tickets that are open, makes the manifest from them, and says from the last state of a ticket
why a profile is missing.
"""

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

TICKETS = "tickets"
OPEN_STATES = ("recording", "finishing")


class Ticket:
    """States: armed (the window has not begun), recording, finishing (being written), done, failed."""

    def __init__(self, books: str | Path, worker: str, pattern: str, tool: str) -> None:
        self.path = Path(books) / TICKETS / f"{socket.gethostname()}_{os.getpid()}_{time.monotonic_ns()}.json"
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


def is_open_inside(ticket: dict[str, Any]) -> bool:
    """Whether the process itself still has something to write; under nsys a supervisor has."""
    return ticket["state"] in OPEN_STATES and ticket["supervisor"] == ticket["pid"]


def read_tickets(books: Path) -> list[dict[str, Any]]:
    """Every ticket, oldest file name first."""
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted((books / TICKETS).glob("*.json"))]
