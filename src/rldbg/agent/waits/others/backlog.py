"""What loops have to work through: the tables of requests, samples or jobs that a thread takes entries out of. One that
runs and leaves the same entries there from one look to the next may go round in vain."""

import ast
from collections.abc import Iterator, Sequence

from ..code.places import is_users
from ..code.source import Sources
from ..reading.kernel import Facts
from ..reading.objects import Frame, Object

TAKING = frozenset({"remove", "pop", "popleft", "popitem", "clear"})
NO_OWNERS = frozenset({"module", "type", "function", "method"})
"""What has no entries of its own to work through."""


def backlog(frames: Sequence[Frame], sources: Sources) -> dict[str, list[int]]:
    """The tables with entries that the `while` loops of current functions take from: how many entries, and the address
    of the first."""
    found: dict[str, list[int]] = {}
    for frame in frames:
        if is_users(frame.file) and any(isinstance(loop, ast.While) for loop in sources.loops_around(frame)):
            for name, table in tables_left(frame, sources):
                found.setdefault(name, [table.length() or 0, _first(table) or 0])
    return found


def tables_left(frame: Frame, sources: Sources) -> Iterator[tuple[str, Object]]:
    """Tables with entries of which functions of the frame's file take some out."""
    for name, table in _tables(frame):
        if _first(table) is not None and sources.functions_calling(frame, name, TAKING):
            yield name, table


def untouched(before: Facts, after: Facts) -> dict[str, int]:
    """How many entries the tables have of which two looks at a thread see the same first entry and the same number."""
    old, new = before.get("backlog") or {}, after.get("backlog") or {}
    return {name: seen[0] for name, seen in new.items() if old.get(name) == seen}


def _tables(frame: Frame) -> Iterator[tuple[str, Object]]:
    own = frame.locals()
    yield from own.items()
    for owner, value in own.items():
        if value.kind not in NO_OWNERS:
            yield from ((f"{owner}.{name}", each) for name, each in value.attributes().items())


def _first(table: Object) -> int | None:
    """None where it is no table, or an empty one."""
    if not table.length() or table.text() is not None:
        return None
    pairs = table.pairs()
    entries = [pairs[0][0]] if pairs else table.elements()[:1]
    return entries[0].address if entries else None
