"""Events of the tripwire, and the file they are kept in: RECORDING/.watch/events.jsonl, one line per event. What the
process that checks has to say about itself is in notes.jsonl."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from rldbg.core import Finding, Severity
from rldbg.recording import WATCH_FOLDER

EVENTS_FILE = "events.jsonl"
NOTES_FILE = "notes.jsonl"


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
    not_kept: str = ""
    """Which of the steps around it are not pinned, and why."""

    @property
    def message(self) -> str:
        return self._said("; all ranks stop at the end of one of the next steps" if self.stops else "")

    @property
    def reason(self) -> str:
        """The message for a rank that has stopped."""
        return self._said("")

    def _said(self, stop: str) -> str:
        kept = f"; {steps_from_to(self.pinned)} kept" if self.pinned else ""
        kept += f"; {self.not_kept}" if self.not_kept else ""
        again = f"; run it again: {self.rerun}" if self.rerun else ""
        return f"{self.rule} at {self.where}: {self.what}{kept}{stop}; look: {self.look}{again}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"pinned": list(self.pinned), "message": self.message}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        fields = {name: data[name] for name in cls.__slots__ if name in data}
        return cls(**fields | {"pinned": tuple(data["pinned"])})

    def to_finding(self) -> Finding:
        return Finding(f"watch.{self.rule}", Severity.ERROR, self.where, (self.what,), self.cause, (self.look,))


def steps_from_to(steps: Sequence[int]) -> str:
    """ "steps 3 to 5 are", for a sentence."""
    return f"steps {steps[0]} to {steps[-1]} are" if len(steps) > 1 else f"step {steps[0]} is"


def number(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else str(value)


class EventLog:
    """The events of one recording, and notes of the process that checks it, for the one that started it."""

    def __init__(self, recording: Path) -> None:
        self._events = _Lines(recording / WATCH_FOLDER / EVENTS_FILE)
        self._notes = _Lines(recording / WATCH_FOLDER / NOTES_FILE)

    def append(self, event: Event) -> None:
        self._events.append(json.dumps(event.to_dict()))

    def note(self, text: str) -> None:
        self._notes.append(json.dumps(text))

    def new(self) -> list[Event]:
        """The events since the last call."""
        return [Event.from_dict(json.loads(line)) for line in self._events.new()]

    def new_notes(self) -> list[str]:
        """The notes since the last call."""
        return [json.loads(line) for line in self._notes.new()]


class _Lines:
    """A file to which whole lines are appended; a reader continues where it ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_bytes = 0

    def append(self, line: str) -> None:
        """All of the line or, on a full disk, nothing of it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        data = f"{line}\n".encode()
        with self._path.open("ab", buffering=0) as file:
            before = file.tell()
            if file.write(data) != len(data):
                file.truncate(before)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))

    def new(self) -> list[bytes]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._read_bytes)
                text = file.read()
        except OSError:  # none yet, or the disk is away: what is there is read later
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        return whole.splitlines()
