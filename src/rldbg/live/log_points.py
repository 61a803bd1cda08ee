"""What log points say, in RUN/logs/log_points.jsonl: one line a message, with its process and time."""

import json
import time
from collections import deque
from pathlib import Path
from typing import Any

_KEPT = 1000


class LogPoints:
    """Appends to the run's file and remembers the last messages for clients who ask."""

    def __init__(self, run: Path) -> None:
        self.path = run / "logs" / "log_points.jsonl"
        self._recent: deque[dict[str, Any]] = deque(maxlen=_KEPT)

    def add(self, who: str, text: str) -> None:
        if not text.strip():
            return
        line = {"time": time.time(), "who": who, "text": text.rstrip("\n")}
        self._recent.append(line)
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def recent(self) -> list[dict[str, Any]]:
        return list(self._recent)
