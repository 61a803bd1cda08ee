"""Who gives work to a thread that takes one item after the other, and what makes it skip its own part for an item."""

import ast
from collections.abc import Iterator, Sequence

from .called import called_function
from .kernel import Facts
from .looking import shared_key
from .objects import Frame
from .origins import FUNCTIONS, last_name, own_nodes
from .places import is_users, users_place
from .reasons import guarded
from .resolving import resolve
from .skipped import ways_around
from .source import Sources, takes_each
from .starters import TOO_COMMON

_SHOWN = 80


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


def steps_skipped(frames: Sequence[Frame], methods: frozenset[str], sources: Sources) -> list[Facts]:
    """Calls of these methods that a thread makes for each item which it takes in an endless loop, except where a
    `continue` or a condition skips them: on which object, in which line, and what skips it."""
    user = users_place(frames)
    frame = frames[user] if user is not None else None
    function = sources.function(frame) if frame is not None else None
    loops = [loop for loop in sources.loops_around(frame) if takes_each(loop)] if frame is not None else []
    if frame is None or not isinstance(function, FUNCTIONS) or not loops:
        return []
    found = []
    for call, test in guarded(loops[-1], None):
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in methods or call.lineno <= frame.line:
            continue
        value = resolve(call.func.value, frame)
        ways = [each for each in ways_around(function, [call], frame.line) if each.startswith("continue")]
        told = f"which the {' or the '.join(ways)} skips" if ways else ""
        told = told or (f"only if `{ast.unparse(test)[:_SHOWN]}`" if test is not None else "")
        if value is not None and told:
            keys = [f"{value.address:#x}", *filter(None, [shared_key(value)])]
            found.append({"keys": keys, "method": call.func.attr, "line": call.lineno, "skipped": told})
    return found
