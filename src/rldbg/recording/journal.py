"""Journals: what was handed over, written, dropped, deleted. One file per writer process, never rewritten.

docs/recording.md says what each line means. What a reader can rely on after kill -9: every record handed over has an
intent line, every file that has its name and was finished in order has a done line with its size and checksum. A torn
last line is what a kill leaves; any other line that is not JSON is damage and is reported.
"""

import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from rldbg.core import Identity, IncompleteDataError
from rldbg.recording.formats.malformed import reading
from rldbg.recording.records import SCHEMA_VERSION, RecordKey
from rldbg.recording.tree import Tree

FOLDER = "journal/"

_ENCODE = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
_encoded_kind = lru_cache(maxsize=256)(_ENCODE)


class JournalWriter:
    """The journal of one process: an append-only file of JSON lines, each written whole by one call."""

    def __init__(self, directory: Path, identity: Identity, format: str) -> None:
        folder = directory / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        host = re.sub(r"[^A-Za-z0-9._-]", "_", identity.host) or "host"
        self.writer = f"{host}-{os.getpid()}-{time.time_ns()}"
        self.path = folder / f"{self.writer}.jsonl"
        self._before = ""
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._line(
            {
                "event": "open",
                "schema_version": SCHEMA_VERSION,
                "time": time.time(),
                "identity": identity.to_dict(),
                "format": format,
            }
        )

    def intent(self, ids: Sequence[int], key: RecordKey, rows: int) -> None:
        """One line per record; the micro-batch numbers of those after the first follow that of the key."""
        # Formatted by hand: this is written on the training thread.
        before = f'"key":[{_encoded_kind(key.kind)},{key.step},{key.rank}'
        after = f'{key.epoch},{key.mini_batch}],"rows":{rows}}}'
        lines = (f'{{"event":"intent","id":{id},{before},{key.micro + n},{after}' for n, id in enumerate(ids))
        self._write("\n".join(lines))

    def done(self, ids: Sequence[int], file: str, size: int, crc32: int) -> None:
        numbers = ",".join(map(str, ids))
        self._write(f'{{"event":"done","ids":[{numbers}],"file":{_ENCODE(file)},"size":{size},"crc32":{crc32}}}')

    def drop(self, ids: Sequence[int], reason: str) -> None:
        self._line({"event": "drop", "ids": ids, "reason": reason})

    def delete(self, file: str, reason: str) -> None:
        self._line({"event": "delete", "file": file, "reason": reason})

    def stop(self, reason: str) -> None:
        self._line({"event": "stop", "reason": reason})

    def close(self, *, release: bool) -> None:
        """Writes the last line. The file is closed only if no thread can be about to write to it: file descriptors are
        reused."""
        self._line({"event": "close", "time": time.time()})
        if release:
            os.close(self._descriptor)
            self._descriptor = -1

    def _line(self, event: dict[str, Any]) -> None:
        self._write(_ENCODE(event))

    def _write(self, text: str) -> None:
        line = (self._before + text + "\n").encode("utf-8", "backslashreplace")
        written = os.write(self._descriptor, line)
        self._before = ""
        if written != len(line):
            self._before = "\n"  # so that the next line is whole, if there is room for one
            raise OSError(f"only {written} of {len(line)} bytes fitted into {self.path.name}")


def note_deleted(recording: Path, journal: str, files: Sequence[str], reason: str) -> None:
    """Lines for files that were removed after their writer had closed."""
    lines = "".join(f"{_ENCODE({'event': 'delete', 'file': file, 'reason': reason})}\n" for file in files)
    with (recording / FOLDER / journal).open("ab", buffering=0) as file:
        file.write(lines.encode("utf-8", "backslashreplace"))


class Intent(NamedTuple):
    """A record that was handed over, and by which writer."""

    key: RecordKey
    rows: int
    journal: str


class Done(NamedTuple):
    """A file that got its name: what it must look like, and the records in it."""

    size: int
    crc32: int
    records: tuple[Intent, ...]
    journal: str


class Drop(NamedTuple):
    record: Intent
    reason: str


@dataclass(slots=True)
class Writer:
    """One journal: its process, and whether it ended in order."""

    journal: str
    identity: Mapping[str, Any] = field(default_factory=dict)
    started_s: float = 0.0
    is_closed: bool = False
    stopped: str | None = None
    is_torn: bool = False
    """Whether the last line is cut off, as a kill in the middle of a write leaves it."""
    damaged_lines: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Journals:
    """All journals of a recording."""

    writers: list[Writer] = field(default_factory=list)
    files: dict[str, Done] = field(default_factory=dict)
    never_written: list[Intent] = field(default_factory=list)
    drops: list[Drop] = field(default_factory=list)
    deleted: dict[str, str] = field(default_factory=dict)
    unreadable: list[IncompleteDataError] = field(default_factory=list)


def read_journals(tree: Tree) -> Journals:
    journals = Journals()
    for fact in tree.files:
        if fact.name.startswith(FOLDER) and fact.name.endswith(".jsonl"):
            try:
                with reading(fact.name):
                    text = tree.local(fact.name).read_bytes()
            except IncompleteDataError as error:
                journals.unreadable.append(error)
                continue
            _Reading(journals, fact.name).read(text)
    return journals


def _parsed(lines: Sequence[bytes]) -> list[Any]:
    """The value of each line, None for what is not JSON: all at once, or one by one when a line is damaged."""
    try:
        values = json.loads(b"[" + b",".join(line or b"null" for line in lines) + b"]")
        if len(values) == len(lines):
            return list(values)
    except (ValueError, RecursionError):
        pass
    return [_parsed_line(line) for line in lines]


def _parsed_line(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


class _Reading:
    """One journal, line by line, into the whole."""

    def __init__(self, journals: Journals, name: str) -> None:
        self._all = journals
        self._writer = Writer(name)
        self._open: dict[int, Intent] = {}

    def read(self, text: bytes) -> None:
        lines = text.split(b"\n")
        for number, (line, event) in enumerate(zip(lines, _parsed(lines), strict=True), start=1):
            if not line:
                continue
            try:
                self._event(event)
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
                if number < len(lines):
                    self._writer.damaged_lines.append(number)
                else:
                    self._writer.is_torn = True
        self._all.writers.append(self._writer)
        self._all.never_written.extend(self._open.values())

    def _event(self, event: Any) -> None:
        name = event["event"]
        if name == "intent":
            kind, *numbers = event["key"]
            key = RecordKey(str(kind), *(int(number) for number in numbers))
            self._open[event["id"]] = Intent(key, int(event.get("rows", -1)), self._writer.journal)
        elif name == "done":
            records = self._close(event["ids"])
            done = Done(int(event["size"]), int(event["crc32"]), records, self._writer.journal)
            self._all.files[str(event["file"])] = done
        elif name == "drop":
            self._all.drops.extend(Drop(intent, str(event.get("reason", ""))) for intent in self._close(event["ids"]))
        elif name == "delete":
            self._all.deleted[str(event["file"])] = str(event.get("reason", ""))
        elif name == "stop":
            self._writer.stopped = str(event.get("reason", ""))
        elif name == "open":
            self._writer.identity = dict(event.get("identity") or {})
            self._writer.started_s = float(event.get("time") or 0)
        elif name == "close":
            self._writer.is_closed = True

    def _close(self, ids: Sequence[int]) -> tuple[Intent, ...]:
        return tuple(intent for id in ids if (intent := self._open.pop(id, None)) is not None)
