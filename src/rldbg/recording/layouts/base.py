"""What a layout must answer: does it recognise a path, which records lie there, and how one is read."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rldbg.core import Finding
from rldbg.recording.records import Record, RecordKey


@dataclass(frozen=True, slots=True)
class Entry:
    """One record as the index knows it: its key and the file it lies in, without having read it.

    `part` tells records of one file apart (a line number, a micro-batch); what it means is the layout's own affair.
    """

    key: RecordKey
    file: Path
    size_bytes: int
    part: int = 0


@dataclass(frozen=True, slots=True)
class Listing:
    """All entries of a path, and what stood in the way of listing more."""

    entries: tuple[Entry, ...]
    findings: tuple[Finding, ...] = ()


class Layout(Protocol):
    """One framework's way to lay out dumps on disk. Stateless."""

    name: str

    def recognises(self, path: Path) -> bool:
        """Whether this path looks like one of ours, by names and first bytes only."""

    def list(self, path: Path) -> Listing:
        """Every record under the path; unreadable files become findings, never exceptions."""

    def read(self, entry: Entry) -> Record:
        """The record. Raises IncompleteDataError with the reason when the file is damaged."""

    def verify(self, path: Path, entries: Iterable[Entry]) -> Iterable[Finding]:
        """What is wrong beyond what `list` found: missing, truncated, corrupt, never written, dropped."""
