"""The index: a cache of a recording's listing, so that 100,000 files need not be looked at to say what there is.

It is rebuilt whenever anything speaks against it: a folder changed, a journal or a growing file changed, it was
made while files were still coming, another version made it, or it cannot be read. A recording that cannot be
written to is just not cached, and an index never replaces a file that is not one.
"""

import contextlib
import json
import os
import time
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from rldbg.core import Finding
from rldbg.recording.layouts.base import Entry, Layout, Listing
from rldbg.recording.layouts.journal import FOLDER as JOURNAL
from rldbg.recording.tree import INDEX_NAME, LocalTree, top_names

_MARK = "rldbg_index"
_VERSION = 1
_WORTH_FILES = 512
_WORTH_S = 0.5
# A folder that changed this shortly before it was listed may have changed once more within the clock's grain.
_SETTLED_NS = 2_000_000_000
_COLUMNS = Entry._fields
# In other frameworks' dumps the index is hidden: `index.json` could be a name of theirs.
_HIDDEN_NAME = f".rldbg-{INDEX_NAME}"


def load(tree: LocalTree, layout: str | None = None) -> tuple[str, Listing] | None:
    """The layout's name and the listing, if there is an index (of that layout) and it still tells the truth."""
    if tree.only:
        return None
    for name in (INDEX_NAME, _HIDDEN_NAME):
        data = _read(tree.root / name)
        if data is not None and layout in (None, data.get("layout")) and _is_fresh(tree.root, data):
            listing = _listing(data)
            if listing is not None:
                return str(data["layout"]), listing
    return None


def _listing(data: dict[str, Any]) -> Listing | None:
    try:
        columns = [data["entries"][name] for name in _COLUMNS]
        kinds = data["kinds"]
        columns[0] = [kinds[number] for number in columns[0]]
        return Listing(
            tuple(map(Entry._make, zip(*columns, strict=True))),
            tuple(Finding.from_dict(finding) for finding in data["findings"]),
            tuple(data["unread"]),
        )
    except (KeyError, TypeError, ValueError, IndexError):
        return None


def save(tree: LocalTree, layout: Layout, listing: Listing, took_s: float) -> None:
    """Keeps the listing, if that is worth it and possible; says nothing when it is not."""
    scan = tree.scan
    if tree.only or (len(scan.files) < _WORTH_FILES and took_s < _WORTH_S):
        return
    if max(scan.folders.values(), default=0) > time.time_ns() - int(took_s * 1e9) - _SETTLED_NS:
        return
    path = tree.root / (INDEX_NAME if layout.name == "rldbg" else _HIDDEN_NAME)
    if path.exists() and _read(path) is None:
        return
    kinds = sorted({entry.kind for entry in listing.entries})
    numbers = {kind: number for number, kind in enumerate(kinds)}
    entries = dict(zip(_COLUMNS, map(list, zip(*listing.entries, strict=True)), strict=True)) if listing.entries else {}
    entries = {name: entries.get(name, []) for name in _COLUMNS}
    entries["kind"] = [numbers[kind] for kind in entries["kind"]]
    data = {
        _MARK: _VERSION,
        "layout": layout.name,
        "folders": scan.folders,
        "names": _hash(scan.names),
        "changing": [list(fact) for fact in scan.files if layout.grows or _is_exposed(fact.name)],
        "findings": [finding.to_dict() for finding in listing.findings],
        "unread": listing.unread,
        "kinds": kinds,
        "entries": entries,
    }
    _replace(path, json.dumps(data, separators=(",", ":")))


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name.lstrip('.')}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _read(path: Path) -> dict[str, Any] | None:
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) and data.get(_MARK) == _VERSION else None


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
