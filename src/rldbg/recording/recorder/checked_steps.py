"""Which steps may be removed beside `rldbg watch`, told through files in RECORDING/.watch.

`judged`, replaced as a whole by the process that checks: the last checked step, and the pinned ones. It is one file so
that whoever sees that a step may be removed also sees that it is pinned.

`unchecked-WRITER`, appended by a recorder: the steps that it removes though they were not checked. It writes them
before it reads the pins a last time, and the process that checks reads them after it has written a pin: one sees the
other.

`left-WRITER`: the old files that a recorder still had when it closed, because they were not checked yet.
"""

import contextlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rldbg.recording.journal import note_deleted

WATCH_FOLDER = ".watch"
"""Folder of `rldbg watch` in a recording. Layouts ignore it."""
_JUDGED = "judged"
_UNCHECKED = "unchecked-"
_LEFT = "left-"


class Checked(NamedTuple):
    """What the process that checks has done with."""

    upto: int
    """No event can pin this step or an earlier one any more."""
    pinned: frozenset[int]


def note_judged(recording: Path, step: int, *, around: int = 0, pinned: Iterable[int] = ()) -> None:
    """Steps up to `step` are checked; an event of a later one can still pin the `around` steps before it."""
    folder = recording / WATCH_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{_JUDGED}"
    text = json.dumps({"step": step, "around": around, "pinned": sorted(set(pinned))})
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(folder / _JUDGED)


def steps_removed_unchecked(recording: Path) -> set[int]:
    """By all recorders so far."""
    files = (recording / WATCH_FOLDER).glob(f"{_UNCHECKED}*")
    return {int(line) for file in files for line in file.read_text(encoding="utf-8").split("\n")[:-1]}


def remove_left(recording: Path) -> None:
    """Removes what recorders that have closed left to the process that checks: what is now checked and not pinned."""
    checked = CheckedSteps(recording, "").read()
    for path in (recording / WATCH_FOLDER).glob(f"{_LEFT}*"):
        left = json.loads(path.read_text(encoding="utf-8"))
        steps = {int(step): names for step, names in left["files"].items()}
        for step, names in steps.items() if checked else ():
            if checked and step <= checked.upto and step not in checked.pinned:
                for name in names:
                    (recording / name).unlink(missing_ok=True)
                note_deleted(recording, left["journal"], names, "retention")
        path.unlink()


def forget_checks(recording: Path) -> None:
    """Ignores what an earlier run was told."""
    folder = recording / WATCH_FOLDER
    for file in [*folder.glob(f"{_UNCHECKED}*"), *folder.glob(f"{_LEFT}*"), folder / _JUDGED]:
        file.unlink(missing_ok=True)


class CheckedSteps:
    """The recorder's side."""

    def __init__(self, recording: Path, writer: str) -> None:
        self._folder = recording / WATCH_FOLDER
        self._writer = writer

    def read(self) -> Checked | None:
        """None where nothing watches."""
        try:
            told = json.loads((self._folder / _JUDGED).read_text(encoding="utf-8"))
            return Checked(told["step"] - told["around"], frozenset(told["pinned"]))
        except (OSError, ValueError, KeyError, TypeError):
            return Checked(-1, frozenset()) if self._folder.is_dir() else None

    def hand_over(self, journal: Path, files: Mapping[int, Sequence[str]]) -> None:
        """Leaves old files of steps that are not checked yet to the process that checks."""
        folder = self._folder
        temporary = folder / f".{_LEFT}{self._writer}"
        left = {"journal": journal.name, "files": {str(step): list(names) for step, names in files.items()}}
        with contextlib.suppress(OSError):  # full disk: they stay
            temporary.write_text(json.dumps(left), encoding="utf-8")
            temporary.replace(folder / f"{_LEFT}{self._writer}")

    def remove_unchecked(self, steps: Iterable[int]) -> None:
        """Says which steps go unchecked; one that is pinned meanwhile stays nevertheless."""
        lines = "".join(f"{step}\n" for step in steps).encode()
        with contextlib.suppress(OSError):  # full disk: the message is lost, not the recording
            file = os.open(self._folder / f"{_UNCHECKED}{self._writer}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                os.write(file, lines)
            finally:
                os.close(file)
