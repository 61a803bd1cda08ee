"""Events of the tripwire, and the file they are kept in: RECORDING/.watch/events.jsonl, one line per event."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from rldbg.core import Finding, Severity
from rldbg.recording import WATCH_FOLDER

_FILE = "events.jsonl"


@dataclass(frozen=True, slots=True)
class Event:
    """What fired, where, and the command that looks at it."""

    rule: str
    step: int
    where: str
    what: str
    cause: str
    look: str
    pinned: tuple[int, ...] = ()
    stops: bool = False
    rerun: str = ""
    """The command that runs the step again, where it has a capsule."""

    @property
    def message(self) -> str:
        kept = f"; steps {self.pinned[0]} to {self.pinned[-1]} are kept" if self.pinned else ""
        stop = "; ranks stop at the end of the step" if self.stops else ""
        again = f"; run it again: {self.rerun}" if self.rerun else ""
        return f"{self.rule} at {self.where}: {self.what}{kept}{stop}; look: {self.look}{again}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"pinned": list(self.pinned), "message": self.message}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        fields = {name: data[name] for name in cls.__slots__}
        return cls(**fields | {"pinned": tuple(fields["pinned"])})

    def to_finding(self) -> Finding:
        return Finding(f"watch.{self.rule}", Severity.ERROR, self.where, (self.what,), self.cause, (self.look,))


def number(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else str(value)


class EventLog:
    """The events of one recording. Whole lines are appended; a reader continues where it ended."""

    def __init__(self, recording: Path) -> None:
        self.path = recording / WATCH_FOLDER / _FILE
        self._read_bytes = 0

    def append(self, event: Event) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(event.to_dict()) + "\n")

    def new(self) -> list[Event]:
        """The events since the last call."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._read_bytes)
                text = file.read()
        except FileNotFoundError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        return [Event.from_dict(json.loads(line)) for line in whole.splitlines()]
