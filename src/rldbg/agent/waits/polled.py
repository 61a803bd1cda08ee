"""What a loop looks at again and again, and what changes that: assignments to an attribute, methods of a container, of
a queue or of an event."""

import ast
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from .called import assignment
from .kernel import Facts
from .objects import Frame, Object, is_a
from .resolving import resolve
from .source import Sources

_CONTAINERS = ("list", "dict", "set", "deque")
_GROWING = frozenset({"append", "appendleft", "extend", "insert", "add", "update", "setdefault", "__setitem__"})
_SHRINKING = frozenset({"pop", "popleft", "popitem", "remove", "discard", "clear"})
_FILLING, _TAKING = frozenset({"put", "put_nowait"}), frozenset({"get", "get_nowait"})
# What is asked of an object that knows whether something has happened, and what makes it happen.
_MAKES_TRUE = {
    "is_set": frozenset({"set", "clear"}),
    "empty": _FILLING | _TAKING,
    "qsize": _FILLING | _TAKING,
    "full": _TAKING,
}


@dataclass(frozen=True)
class LookedAt:
    """An object, the methods of others that change what the loop sees of it, and what the loop calls it."""

    address: int
    changed_by: frozenset[str]
    name: str


def changers(
    entry: Facts, place: Frame, reached: Sequence[tuple[Facts, Mapping[int, Set[str]]]], sources: Sources
) -> Iterator[Facts]:
    """Who else would change what the loop around the line looks at, by the methods that each will call on objects."""
    for seen in looked_at(place, sources):
        for other, objects in reached:
            if other is not entry and objects.get(seen.address, frozenset()) & seen.changed_by:
                yield {"who": other.get("thread") or other["key"], "name": seen.name}


def looked_at(frame: Frame, sources: Sources) -> Iterator[LookedAt]:
    """What the condition of the loop around the line depends on."""
    test, _ = sources.polled_test(frame)
    nodes = list(ast.walk(test)) if test is not None else []
    asked = [node.func for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    for each in asked:
        value = resolve(each.value, frame)
        if value is not None and each.attr in _MAKES_TRUE:
            yield LookedAt(value.address, _MAKES_TRUE[each.attr], ast.unparse(each.value))
    methods = {id(each) for each in asked}
    for node in nodes:
        if isinstance(node, ast.Attribute) and id(node) not in methods:
            owner = resolve(node.value, frame)
            if owner is not None:
                yield LookedAt(owner.address, frozenset({assignment(node.attr)}), ast.unparse(node))
        if isinstance(node, ast.Name | ast.Attribute) and _is_container(value := resolve(node, frame)):
            yield LookedAt(value.address if value is not None else 0, _GROWING | _SHRINKING, ast.unparse(node))


def _is_container(value: Object | None) -> bool:
    return is_a(value, *_CONTAINERS)
