"""Who gives work to a thread that takes one item after the other."""

import ast
from collections.abc import Iterator, Sequence

from .called import called_function
from .kernel import Facts
from .objects import Frame
from .origins import last_name, own_nodes
from .places import is_users
from .source import Sources
from .starters import TOO_COMMON


def feeders(
    names: set[str], file: str, others: Sequence[tuple[Facts, Sequence[Frame]]], sources: Sources
) -> list[Facts]:
    """Others whose current functions call a function of the file that has one of these names: where, and whether that
    line comes after the one where they are."""
    found = []
    for entry, frames in others if names else ():
        for frame in (frame for frame in frames if is_users(frame.file)):
            call = next(_calls_of(names, file, frame, sources), None)
            if call is not None:
                who = str(entry.get("thread") or entry.get("key"))
                place = {"file": frame.file, "line": call.lineno, "function": frame.function}
                found.append(place | {"who": who, "calls": last_name(call.func)})
                break
    return found


def _calls_of(names: set[str], file: str, frame: Frame, sources: Sources) -> Iterator[ast.Call]:
    function = sources.function(frame)
    for node in own_nodes(function) if function is not None else ():
        if isinstance(node, ast.Call) and last_name(node.func) in names:
            called = called_function(node, frame, sources)
            # A name that many functions have proves nothing by itself.
            if called.file == file if called is not None else last_name(node.func) not in TOO_COMMON:
                yield node
