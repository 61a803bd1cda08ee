"""What a layout must answer: does it recognise these files, which records are in them, and how one is read."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from rldbg.core import Finding
from rldbg.recording.records import Record, RecordKey
from rldbg.recording.tree import FileFact, Tree

UNCOUNTED = -1

# Key of Record.extra under which a layout says how it made sample ids the framework does not write: such ids
# follow the order of the file, so two recordings with equal ids need not mean the same response by them.
IDS_FROM = "_ids_from"

# Rollouts made for evaluation: fields of a trajectory, but never what a step was trained on.
VALIDATION = "validation"


class Entry(NamedTuple):
    """One record as the index knows it, without having read it.

    `part` tells records of one file apart (a line, a micro-batch); its meaning is private to the layout.
    `rows` is the number of samples, UNCOUNTED where only reading the file would tell.
    """

    kind: str
    step: int
    rank: int
    micro: int
    epoch: int
    mini_batch: int
    file: str
    size_bytes: int
    part: int = 0
    rows: int = UNCOUNTED

    @property
    def key(self) -> RecordKey:
        return RecordKey(*self[:6])


@dataclass(frozen=True, slots=True)
class Listing:
    """All records of a tree in the order of their keys, problems met while listing, and files that are not part of
    it."""

    entries: tuple[Entry, ...]
    findings: tuple[Finding, ...] = ()
    unread: tuple[str, ...] = ()


class Layout(ABC):
    """One framework's way to lay out dumps. Stateless.

    A file is loaded once and may hold several records: `load` gives the file's content, `record` one record of it.
    Both raise IncompleteDataError or Malformed with the reason when the file is not valid.
    """

    name: ClassVar[str]
    looks_for: ClassVar[str]
    """What it is recognised by, for the message that lists what was looked for."""
    files: ClassVar[re.Pattern[str]]
    """The names of its files, where one of them is enough to recognise it."""
    grows: ClassVar[bool] = False
    """Whether the framework appends to files that are already visible."""
    is_regular: ClassVar[bool] = False
    """Whether every step should have the same ranks, and every rank its micro-batches without holes."""

    def recognises(self, tree: Tree) -> bool:
        """Whether these files are of this layout, by names and first bytes only."""
        return any(True for _ in matches(tree, self.files))

    @abstractmethod
    def survey(self, tree: Tree) -> Listing:
        """Every record; unreadable files become findings, never exceptions."""

    @abstractmethod
    def load(self, tree: Tree, file: str) -> Any:
        """A file's content."""

    @abstractmethod
    def record(self, content: Any, entry: Entry) -> Record:
        """One record of a loaded file."""

    def count_rows(self, tree: Tree, entry: Entry) -> int:
        """How many samples a record has that `survey` left uncounted."""
        return len(self.record(self.load(tree, entry.file), entry).samples)

    def verify(self, tree: Tree, listing: Listing) -> Sequence[Finding]:
        """What is wrong beyond what `survey` found and beyond what reading every record shows."""
        return ()


def matches(tree: Tree, pattern: re.Pattern[str]) -> Iterator[tuple[FileFact, re.Match[str]]]:
    """Files whose name, with the root's own name before it, matches: a root may itself be a kind's or step's folder."""
    for fact in tree.files:
        found = pattern.search(f"{tree.folder}/{fact.name}")
        if found:
            yield fact, found


def listing_of(tree: Tree, entries: Sequence[Entry], findings: Sequence[Finding] = (), ignored: str = "") -> Listing:
    """Entries in order; every file that none of them names is unread, except those that `ignored` matches."""
    used = {entry.file for entry in entries}
    expected = re.compile(ignored) if ignored else None
    unread = tuple(
        fact.name for fact in tree.files if fact.name not in used and not (expected and expected.search(fact.name))
    )
    return Listing(tuple(sorted(entries)), tuple(findings), unread)
