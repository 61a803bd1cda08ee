"""The index: a cache of a recording's listing and summary, so that 100,000 files need not be listed again.

It is rebuilt if a folder, a journal or a growing file has changed, if it was made while files were still being written
or by another version, or if its checksum is wrong. A read-only recording is not cached, and an index never replaces a
file that is not an index.

The file is one JSON object. Columns of the listing are strings, which are parsed only when the records themselves are
needed: showing the summary must be cheaper than listing.
"""

import contextlib
import json
import os
import re
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from rldbg.core import Finding
from rldbg.recording.formats.checksum import crc32
from rldbg.recording.journal import FOLDER as JOURNAL
from rldbg.recording.layouts.base import Entry, Layout, Listing
from rldbg.recording.tree import INDEX_NAME, LocalTree, top_names

_VERSION = 1
# The checksum is of all the bytes that follow it.
_HEAD = re.compile(rb'\{"rldbg_index":(\d+),"crc32":(\d+),')
_WORTH_FILES = 512
_WORTH_S = 0.5
# A folder that changed this shortly before it was listed may have changed once more within the clock's grain.
_SETTLED_NS = 2_000_000_000
# In other frameworks' dumps the index is hidden: `index.json` could be a name of theirs.
_HIDDEN_NAME = f".rldbg-{INDEX_NAME}"
_NUMBERS = tuple(name for name in Entry._fields if name not in ("kind", "file"))
_BETWEEN_FILES = "//"  # no name of a file has two slashes in a row


class Cached(NamedTuple):
    """An index that is up to date."""

    layout: str
    summary: dict[str, Any] | None
    columns: dict[str, Any]

    def listing(self) -> Listing | None:
        """The listing; None if the columns are invalid despite a correct checksum."""
        try:
            kinds = self.columns["kinds"]
            numbers = {name: list(map(int, _cut(self.columns[name], ","))) for name in (*_NUMBERS, "kind")}
            columns = numbers | {
                "kind": [kinds[number] for number in numbers["kind"]],
                "file": _cut(self.columns["file"], _BETWEEN_FILES),
            }
            rows = zip(*(columns[name] for name in Entry._fields), strict=True)
            findings = tuple(Finding.from_dict(finding) for finding in self.columns["findings"])
            return Listing(tuple(map(Entry._make, rows)), findings, tuple(self.columns["unread"]))
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError):
            return None


def load(tree: LocalTree, layout: str | None = None) -> Cached | None:
    """The index of a recording (in this layout), if there is one and it is up to date."""
    if tree.only:
        return None
    for name in (INDEX_NAME, _HIDDEN_NAME):
        data = _read(tree.root / name)
        if data is not None and layout in (None, data.get("layout")) and _is_fresh(tree.root, data):
            columns, summary = data.get("columns"), data.get("summary")
            if isinstance(columns, dict) and isinstance(summary, dict | None):
                return Cached(str(data["layout"]), summary, columns)
    return None


def save(tree: LocalTree, layout: Layout, listing: Listing, took_s: float, summary: dict[str, Any] | None) -> None:
    """Writes the index, if it is worthwhile and possible."""
    scan = tree.scan
    if tree.only or (len(scan.files) < _WORTH_FILES and took_s < _WORTH_S):
        return
    if max(scan.folders.values(), default=0) > scan.began_ns - _SETTLED_NS:
        return
    path = tree.root / (INDEX_NAME if layout.name == "rldbg" else _HIDDEN_NAME)
    if path.exists() and _read(path) is None:
        return
    data = {
        "layout": layout.name,
        "folders": scan.folders,
        "names": _hash(scan.names),
        "changing": [list(fact) for fact in scan.files if layout.grows or _is_exposed(fact.name)],
        "summary": summary,
        "columns": _columns(listing),
    }
    body = json.dumps(data, separators=(",", ":"))[1:].encode()
    _replace(path, b'{"rldbg_index":%d,"crc32":%d,' % (_VERSION, crc32(body)) + body)


def _columns(listing: Listing) -> dict[str, Any]:
    kinds = sorted({entry.kind for entry in listing.entries})
    numbers = {kind: str(number) for number, kind in enumerate(kinds)}
    columns = dict(zip(Entry._fields, zip(*listing.entries, strict=True), strict=False))
    return {
        **{name: ",".join(map(str, columns.get(name, ()))) for name in _NUMBERS},
        "kind": ",".join(map(numbers.__getitem__, columns.get("kind", ()))),
        "file": _BETWEEN_FILES.join(columns.get("file", ())),
        "kinds": kinds,
        "findings": [finding.to_dict() for finding in listing.findings],
        "unread": listing.unread,
    }


def _cut(text: str, separator: str) -> list[str]:
    return text.split(separator) if text else []


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name.lstrip('.')}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _read(path: Path) -> dict[str, Any] | None:
    """The content of an index of this version, whole; None for anything else."""
    try:
        content = path.read_bytes()
        head = _HEAD.match(content)
        if head is None or int(head[1]) != _VERSION or crc32(memoryview(content)[head.end() :]) != int(head[2]):
            return None
        data = json.loads(content)
    except (OSError, ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def _is_fresh(root: Path, data: dict[str, Any]) -> bool:
    try:
        unchanged = all((root / name).stat().st_mtime_ns == stamp for name, stamp in data["folders"].items())
        return unchanged and _are_unchanged(root, data["changing"]) and data["names"] == _hash(top_names(root))
    except (OSError, KeyError, TypeError, ValueError, AttributeError):
        return False


def _are_unchanged(root: Path, facts: Sequence[Any]) -> bool:
    for name, size, stamp in facts:
        status = (root / name).stat()
        if (status.st_size, status.st_mtime_ns) != (size, stamp):
            return False
    return True


def _is_exposed(name: str) -> bool:
    """Whether a file can change without a folder's time showing it: journals grow, and the root's time is not used,
    because writing the index itself changes it."""
    return name.startswith(JOURNAL) or "/" not in name


def _hash(names: Sequence[str]) -> str:
    return blake2b("\0".join(names).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
