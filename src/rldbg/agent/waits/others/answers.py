"""What a thread or task does for others with each item that it takes in a loop: the items that it hands on, the answers
that it sends, the futures that it completes. What makes it leave that out for an item, and who gives it the items."""

import ast
import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

from ..calls.looking import shared_key
from ..code.called import called_function
from ..code.origins import FUNCTIONS, given_to, last_name, own_nodes, parsed
from ..code.places import is_users, users_place
from ..code.reasons import guarded
from ..code.resolving import holds, resolve, values_in
from ..code.source import Sources, methods_in
from ..code.starters import TOO_COMMON
from ..code.ways_out import takes_each
from ..reading.kernel import Facts
from ..reading.objects import Frame, Object
from .lookups import lookup
from .skipped import ways_around

_SHOWN, _DEPTH, _MOST_CALLED = 80, 3, 40
_NEXT_ROUND, _ANY_EXIT = frozenset({"continue"}), frozenset({"return", "break", "continue"})
_Loop = ast.While | ast.For | ast.AsyncFor
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp)
# A way past a step that depends on a condition.
_CONDITION = re.compile(r"`if (.*): \w+`")
_ITERATED = (ast.For, ast.AsyncFor)


@dataclass(frozen=True)
class _Omitted:
    """What leads past a step: exits, or conditions on which it depends; and their values for the last item."""

    left_by: tuple[str, ...] = ()
    only_if: str = ""
    values: str = ""

    def __bool__(self) -> bool:
        return bool(self.left_by or self.only_if)


def steps_for_each(frames: Sequence[Frame], methods: Set[str], sources: Sources) -> list[Facts] | None:
    """Calls of these methods that a thread makes for each item which it takes in a loop, itself or in functions that it
    calls: on what (`keys`, and descriptors that it `writes`; `may` be on others in other rounds), in which function and
    line, from which table by which key (`lookup`), and what leads past it. None where it is in no such loop."""
    user = users_place(frames)
    frame = frames[user] if user is not None else None
    loops = [loop for loop in sources.loops_around(frame) if _takes(loop, frame)] if frame is not None else []
    if frame is None or not loops:
        return None
    steps = _Steps(methods, sources)
    return list(steps.of(frame, loops[-1], frame.line, _NEXT_ROUND, _Omitted()))


def _takes(loop: _Loop, frame: Frame) -> bool:
    """One that takes item after item; so does `for line in connection`, while it waits for the next one."""
    return takes_each(loop) or (isinstance(loop, _ITERATED) and loop.lineno == frame.line)


@dataclass(frozen=True)
class _Step:
    """A call of one of the methods, or one that hands it on to be called, and the condition that it depends on."""

    call: ast.Call
    method: ast.Attribute
    test: ast.expr | None


class _Steps:
    def __init__(self, methods: Set[str], sources: Sources) -> None:
        self._methods = methods
        self._sources = sources
        self._seen: set[tuple[str, int]] = set()

    def of(self, place: Frame, body: ast.AST, begins: int, words: Set[str], above: _Omitted) -> Iterator[Facts]:
        """Those of a loop or a function, from a line on."""
        calls = [(call, test) for call, test in guarded(body, None) if call.lineno > begins]
        groups: dict[str, list[_Step]] = {}
        for call, test in calls:
            for method in (each for each in methods_in(call) if each.attr in self._methods):
                groups.setdefault(ast.unparse(method.value), []).append(_Step(call, method, test))
        for group in groups.values():
            yield self._told(place, body, group[0], self._omitted(place, body, group, begins, words) or above)
        steps = {id(step.call) for group in groups.values() for step in group}
        for call, test in calls:
            called = called_function(call, place, self._sources) if id(call) not in steps else None
            if called is None or (called.file, called.line) in self._seen or len(self._seen) >= _MOST_CALLED:
                continue
            self._seen.add((called.file, called.line))
            method = ast.Attribute(call.func, "")
            omitted = self._omitted(place, body, [_Step(call, method, test)], begins, words) or above
            yield from self.of(called, called.definition, called.line, _ANY_EXIT, omitted)

    def _omitted(self, place: Frame, body: ast.AST, group: Sequence[_Step], begins: int, words: Set[str]) -> _Omitted:
        calls = [step.call for step in group]
        ways = [*ways_around(_in_block(body), calls, begins, words), *self._caught(body, calls)]
        ways = _likely(ways, place)
        tests = [step.test for step in group if step.test is not None]
        depends = tests if len(tests) == len(group) and not ways else []
        depends = depends or ([] if ways else list(_filters(body, calls)))
        asked = [parsed(found[1]) for way in ways if (found := _CONDITION.match(way))] + depends
        values = values_in(ast.List(asked), place)
        shown = dict.fromkeys(f"`{ast.unparse(test)[:_SHOWN]}`" for test in depends)
        return _Omitted(tuple(ways), " or ".join(shown), values)

    def _caught(self, body: ast.AST, calls: Sequence[ast.Call]) -> Iterator[str]:
        """Handlers in the same loop or function that take an exception of the steps and do not do them instead."""
        for tried in (node for node in own_nodes(body) if isinstance(node, ast.Try)):
            inside = {id(node) for each in tried.body for node in ast.walk(each)}
            for handler in tried.handlers if any(id(call) in inside for call in calls) else ():
                nodes = [inner for each in handler.body for inner in ast.walk(each)]
                acts = any(isinstance(n, ast.Attribute) and n.attr in self._methods for n in nodes)
                if not acts and not any(isinstance(n, ast.Raise | ast.Return | ast.Break) for n in nodes):
                    yield f"an exception (caught in line {handler.lineno})"

    def _told(self, place: Frame, body: ast.AST, step: _Step, omitted: _Omitted) -> Facts:
        receiver = step.method.value
        value = resolve(receiver, place)
        keys = [f"{value.address:#x}", *filter(None, [shared_key(value)])] if value is not None else []
        told = {"function": place.function.rpartition(".")[2], "line": step.call.lineno, "method": step.method.attr}
        told |= {
            "left_by": list(omitted.left_by),
            "only_if": omitted.only_if,
            "values": omitted.values,
            "keys": keys,
            "writes": _written(value),
        }
        # What a variable stands for is another object in each round.
        return told | {"may": not _of_self(receiver), "lookup": lookup(receiver, body, place)}


def _likely(ways: list[str], place: Frame) -> list[str]:
    """Those whose condition held for the last item; else those of which it cannot be told, if there are any."""
    told = [(way, holds(parsed(found[1]), place) if (found := _CONDITION.match(way)) else None) for way in ways]
    held, unknown = ([way for way, each in told if each is state] for state in (True, None))
    return held or unknown or ways


def _filters(body: ast.AST, calls: Sequence[ast.Call]) -> Iterator[ast.expr]:
    """Conditions of what a step is done for each of: `for each in kept: put(each)`, after `kept = [... if good(each)]`
    or `kept = filter(good, ...)`."""
    looped = [node.iter for node in own_nodes(body) if isinstance(node, _ITERATED) and _has(node, calls)]
    for source in (*looped, *(each for call in calls for each in call.args)):
        for made in given_to(source.id, body) if isinstance(source, ast.Name) else (source,):
            for part in made.generators if isinstance(made, _COMPREHENSIONS) else ():
                yield from part.ifs
            if isinstance(made, ast.Call) and last_name(made.func) == "filter" and made.args:
                yield made


def _has(node: ast.AST, calls: Sequence[ast.Call]) -> bool:
    return any(inner is call for inner in ast.walk(node) for call in calls)


def _in_block(body: ast.AST) -> ast.AST:
    """What leaves a loop is found around it."""
    return ast.Module([body], []) if isinstance(body, ast.stmt) and not isinstance(body, FUNCTIONS) else body


def _of_self(receiver: ast.expr) -> bool:
    while isinstance(receiver, ast.Attribute):
        receiver = receiver.value
    return isinstance(receiver, ast.Name) and receiver.id == "self"


def _written(value: Object | None) -> list[int]:
    """The descriptors that a connection, socket or file writes to; those of asyncio's streams are in their
    transport."""
    if value is None:
        return []
    transport = value.get("_transport")
    numbers = [value.get("_handle"), transport.get("_sock_fd") if transport is not None else None]
    found = [value.descriptor(), *(number.number() for number in numbers if number is not None)]
    return [number for number in found if number is not None]


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
