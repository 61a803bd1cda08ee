"""JSON lines as frameworks write them: one object per line, bare NaN allowed, lines of any length."""

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from rldbg.core import IncompleteDataError
from rldbg.recording.formats.malformed import Malformed, reading
from rldbg.recording.tree import FileFact, Tree

_LOOKED_INTO = 8


def json_lines(path: Path) -> list[dict[str, Any]]:
    """Every object of the file, in order."""
    rows: list[dict[str, Any]] = []
    with reading(path), path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                end = "" if line.endswith(b"\n") else " and the file ends in the middle of it"
                raise Malformed(f"line {number} is not JSON{end}: {str(error)[:100]}") from error
            if not isinstance(row, dict):
                raise Malformed(f"line {number} is not a JSON object")
            rows.append(row)
    return rows


def first_line(tree: Tree, name: str, limit: int = 1 << 24) -> bytes:
    """The first line, to see which keys a file has; empty when it cannot be read."""
    try:
        with tree.local(name).open("rb") as file:
            return file.readline(limit)
    except (OSError, IncompleteDataError):
        return b""


def first_lines(tree: Tree, files: Iterable[tuple[FileFact, object]]) -> Iterator[bytes]:
    """The first lines of the first few files that hold anything: what a framework's files start with."""
    filled = (fact for fact, _ in files if fact.size)
    return (first_line(tree, fact.name) for fact in islice(filled, _LOOKED_INTO))


def count_lines(path: Path) -> int:
    """Lines that are not empty, without parsing them."""
    with reading(path), path.open("rb") as file:
        return sum(1 for line in file if line.strip())
