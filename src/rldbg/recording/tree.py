"""The files of a recording, as its layout sees them: names below one root, wherever that root is."""

import os
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Protocol

from rldbg.core import IncompleteDataError, explained_as

# The index of a recording, beside its kinds; never part of what a layout sees.
INDEX_NAME = "index.json"
_MAX_DEPTH = 8


class FileFact(NamedTuple):
    """One file: its name below the root with forward slashes, its size, and what changes when its content does."""

    name: str
    size: int
    stamp: int = 0


class Tree(Protocol):
    """Files below one root. Names that start with a dot are temporary or private, and are not part of it."""

    @property
    def title(self) -> str:
        """The root as people should see it."""

    @property
    def folder(self) -> str:
        """The last part of the root's name, which is the kind when the root is one kind's folder."""

    @property
    def files(self) -> tuple[FileFact, ...]:
        """Every file, sorted by name; listed once."""

    def place(self, name: str) -> str:
        """A file as people should see it."""

    def local(self, name: str) -> Path:
        """A path on this machine that holds the file's content."""


@dataclass(frozen=True)
class LocalTree:
    """A folder on this machine, or some of its files only."""

    root: Path
    only: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return str(self.root / self.only[0]) if len(self.only) == 1 else str(self.root)

    @cached_property
    def folder(self) -> str:
        return self.root.resolve().name

    @cached_property
    def scan(self) -> "Scan":
        if self.only:
            return Scan(self.only, {}, tuple(_fact(self.root, name) for name in sorted(self.only)))
        return _walk(self.root)

    @property
    def files(self) -> tuple[FileFact, ...]:
        return self.scan.files

    def place(self, name: str) -> str:
        return str(self.root / name)

    def local(self, name: str) -> Path:
        return self.root / name


class Scan(NamedTuple):
    """One walk through a folder: what lies directly in it, when each folder below it last changed, and its files."""

    names: tuple[str, ...]
    folders: dict[str, int]
    files: tuple[FileFact, ...]
    began_ns: int = 0


def head(tree: Tree, name: str, size: int = 1 << 16) -> bytes:
    """The first bytes of a file; empty when it cannot be read, which the reader of the whole file will explain."""
    try:
        with tree.local(name).open("rb") as file:
            return file.read(size)
    except (OSError, IncompleteDataError):
        return b""


def _fact(root: Path, name: str) -> FileFact:
    with explained_as(IncompleteDataError, OSError, str(root / name), "give the path of a file you may read"):
        status = (root / name).stat()
    return FileFact(name, status.st_size, status.st_mtime_ns)


def top_names(root: Path) -> tuple[str, ...]:
    """What lies directly in a folder, without temporary files and the index."""
    with os.scandir(root) as listing:
        names = (item.name for item in listing)
        return tuple(sorted(name for name in names if not name.startswith(".") and name != INDEX_NAME))


def _walk(root: Path) -> Scan:
    """A folder reached twice through links is listed once, by its own name, so that a loop of links ends.

    A folder's time is taken before its entries are read: what changes it afterwards can be seen by its time.
    """
    began_ns = time.time_ns()
    folders: dict[str, int] = {}
    files: list[FileFact] = []
    names: list[str] = []
    pending = [("", 0)]
    linked: list[tuple[str, int]] = []  # followed when everything that has a name of its own is listed
    seen: set[tuple[int, int]] = set()
    while pending or linked:
        prefix, depth = pending.pop() if pending else linked.pop(0)
        try:
            status = (root / prefix).stat()
            with os.scandir(root / prefix) as listing:
                items = [item for item in listing if not item.name.startswith(".")]
        except OSError as error:
            if not prefix:
                raise IncompleteDataError(f"{root}: {error.strerror}", "give a folder you may read") from error
            continue
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        if prefix:
            folders[prefix] = status.st_mtime_ns
        else:
            names = sorted(item.name for item in items if item.name != INDEX_NAME)
        for item in items:
            name = prefix + item.name
            if not item.is_dir():
                fact = _entry_fact(name, item)
                if fact is not None and name != INDEX_NAME:
                    files.append(fact)
            elif depth < _MAX_DEPTH:
                (linked if item.is_symlink() else pending).append((name + "/", depth + 1))
    return Scan(tuple(names), folders, tuple(sorted(files)), began_ns)


def _entry_fact(name: str, item: "os.DirEntry[str]") -> FileFact | None:
    """None for what vanished since, dangling links, and sockets or pipes, which must not be opened."""
    try:
        status = item.stat()
        return FileFact(name, status.st_size, status.st_mtime_ns) if item.is_file() else None
    except OSError:
        return None
