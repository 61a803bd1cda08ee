"""Work whose exception is only in its future or task: what it would have done after that for those who wait."""

import ast
from collections.abc import Iterable, Iterator, Sequence

from ..calls.looking import shared_key
from ..code.called import calls_ahead
from ..code.origins import own_nodes
from ..code.places import is_users
from ..code.resolving import resolve, texts_of
from ..code.source import SETTING, Sources
from ..reading.kernel import Facts
from ..reading.objects import Frame, Object, exception_text, is_a

_MOST_LOOKED_AT, _MOST_TOLD = 200, 8


def failed_futures(stacks: Sequence[Sequence[Frame]], sources: Sources) -> list[Facts]:
    """What exceptions have ended of the work that the variables of current functions have the futures of, each kind
    once: what was raised and where, what one of the futures is called, and how many there are."""
    found: dict[tuple[str, str, int], Facts] = {}
    for future, name in futures_of(frame for frames in stacks for frame in frames if is_users(frame.file)):
        error = future.get("_exception")
        if error is None or not is_a(error, "BaseException") or is_a(error, "CancelledError"):
            continue
        own = [frame for frame in error.raised_in() if is_users(frame.file)]
        place = {"file": own[0].file, "line": own[0].line, "function": own[0].function} if own else None
        told = exception_text(error)
        key = (told, own[0].file, own[0].line) if own else (told, "", 0)
        if key in found:
            found[key]["count"] += 1
        elif len(found) < _MOST_TOLD:
            left_out = {"skips": list(_skipped(own, sources)), "sets": _keys_skipped(own, sources)}
            found[key] = {"kind": "future", "count": 1, "name": name, "raised": told, "place": place} | left_out
    return list(found.values())


def futures_of(frames: Iterable[Frame]) -> Iterator[tuple[Object, str]]:
    """Futures in the variables of functions and in what these consist of, and what they are called."""
    seen: set[int] = set()
    named = [(value, name) for frame in frames for name, value in frame.locals().items()]
    kept = [(inner, f"{name}.{part}") for value, name in named for part, inner in value.attributes().items()]
    for value, name in (*named, *kept):
        elements = [(each, f"one of `{name}`") for each in value.elements()[:_MOST_LOOKED_AT]]
        for each, called in ((value, f"future `{name}`"), *elements):
            if is_a(each, "Future") and each.address not in seen:
                seen.add(each.address)
                yield each, called


def _calls_skipped(frames: Sequence[Frame], sources: Sources) -> Iterator[tuple[Frame, ast.Call]]:
    """Calls that functions which an exception has left would have made after it; frames are innermost first."""
    for frame, inner in zip(frames, (None, *frames), strict=False):
        function = sources.function(frame)
        tries = [node for node in own_nodes(function) if isinstance(node, ast.Try)] if function is not None else []
        run = {id(node) for each in tries for last in each.finalbody for node in ast.walk(last)}
        for place, call in calls_ahead(frame, inner, sources):
            if id(call) not in run and (place is not frame or _line_of(call) > frame.line):
                yield place, call


def _line_of(call: ast.Call) -> int:
    """Of what is only handed on, or is an assignment, that of its method."""
    return int(getattr(call, "lineno", 0) or getattr(call.func, "lineno", 0) or 0)


def _skipped(frames: Sequence[Frame], sources: Sources) -> Iterator[Facts]:
    for place, call in _calls_skipped(frames, sources):
        value = resolve(call.func.value, place) if isinstance(call.func, ast.Attribute) else None
        if value is not None and isinstance(call.func, ast.Attribute):
            keys = [f"{value.address:#x}", *filter(None, [shared_key(value)])]
            line = {"file": place.file, "line": _line_of(call), "function": place.function}
            yield {"keys": keys, "method": call.func.attr, "place": line}


def _keys_skipped(frames: Sequence[Frame], sources: Sources) -> dict[str, Facts]:
    """Keys of torch.distributed stores that would have been set, and where."""
    found: dict[str, Facts] = {}
    for place, call in _calls_skipped(frames, sources):
        setter = call.func if isinstance(call.func, ast.Attribute) and call.args else None
        if setter is not None and setter.attr in SETTING and is_a(resolve(setter.value, place), "Store"):
            line = {"file": place.file, "line": _line_of(call), "function": place.function}
            found |= {key: line for key in texts_of(call.args[0], place) if key not in found}
    return found
