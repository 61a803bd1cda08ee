"""Whether what writes a recording still runs: run.json says when a run has ended, unless the run was killed. Then the
processes decide: the one that started the run, and those that have written journals."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rldbg.core import RldbgError, is_running
from rldbg.recording.journal import FOLDER as JOURNAL
from rldbg.recording.locating import locate
from rldbg.recording.tree import LocalTree

_LAST_LINE_BYTES = 4096


class _Process(NamedTuple):
    host: str
    pid: int
    known_since: float


class RunLife:
    """One run, asked again and again. Of each journal the first line is read once, and the last one where its process
    is of another host."""

    def __init__(self, path: Path) -> None:
        """`path` is a run or its recording; it may not exist yet."""
        self._path = path
        self._writers: dict[Path, _Process | None] = {}
        self._note = ""
        self._said = {""}

    @property
    def has_ended(self) -> bool:
        """Whether the run has said so, or all its processes are gone. Where that cannot be told of one, because it is
        of another host and has not closed its journal, or where none is known: not."""
        try:
            located = locate(self._path)
            facts = located.run.read() if located.run is not None else {}
        except (RldbgError, OSError):  # it does not exist yet, or run.json is incomplete
            return False
        if facts.get("ended_at") is not None:
            return True
        root = located.tree.root if isinstance(located.tree, LocalTree) else self._path
        gone: set[int] = set()
        elsewhere: set[str] = set()
        for process, is_closed in [*_of_run(facts), *self._of_journals(root / JOURNAL)]:
            if process.host != os.uname().nodename and not is_closed:
                elsewhere.add(process.host)
            elif process.host == os.uname().nodename and is_running(process.pid, process.known_since):
                return False
            else:
                gone.add(process.pid)
        self._note = _said(self._path, sorted(gone), sorted(elsewhere))
        return bool(gone) and not elsewhere

    def new_note(self) -> str:
        """Why it has ended although run.json does not say so, or why its end cannot be seen: each once, else empty."""
        note = "" if self._note in self._said else self._note
        self._said.add(note)
        return note

    def _of_journals(self, folder: Path) -> Iterator[tuple[_Process, bool]]:
        for journal in sorted(folder.glob("*.jsonl")) if folder.is_dir() else ():
            process = self._writers.get(journal) or _writer_of(journal)
            self._writers[journal] = process
            if process is not None:
                yield process, process.host != os.uname().nodename and _is_closed(journal)


def _of_run(facts: dict[str, Any]) -> Iterator[tuple[_Process, bool]]:
    host, pid, since = next(iter(facts.get("hosts") or []), None), facts.get("pid"), facts.get("started_at")
    if isinstance(host, str) and isinstance(pid, int) and isinstance(since, float):
        yield _Process(host, pid, since), False


def _writer_of(journal: Path) -> _Process | None:
    """None while the first line is not complete, or where it names no process."""
    try:
        with journal.open("rb") as file:
            event = json.loads(file.readline())
        identity = event["identity"]
        return _Process(str(identity["host"]), int(identity["pid"]), float(event["time"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is_closed(journal: Path) -> bool:
    try:
        with journal.open("rb") as file:
            file.seek(max(journal.stat().st_size - _LAST_LINE_BYTES, 0))
            return bool(json.loads(file.read().splitlines()[-1])["event"] == "close")
    except (OSError, ValueError, KeyError, TypeError, IndexError):  # torn
        return False


def _said(path: Path, gone: list[int], elsewhere: list[str]) -> str:
    if elsewhere:
        return (
            f"{path} is written on {', '.join(elsewhere)}: this host cannot tell whether that process still runs; "
            "follow it there, or press Ctrl-C when it has ended"
        )
    if not gone:
        return f"nothing says which process writes {path}: press Ctrl-C when it has ended"
    named = ", ".join(map(str, gone[:4])) + (f" and {len(gone) - 4} more" if len(gone) > 4 else "")
    return f"{path} has ended: its processes run no longer ({named})"
