"""What a loop looks at again and again, and what changes that: assignments to an attribute, methods of a container, of
a queue or of an event; and where nobody is about to do so, the functions that would, and what led past it in them."""

import ast
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from .called import assignment
from .kernel import Facts
from .looking import shared_key
from .objects import Frame, Object, is_a
from .origins import last_name, own_nodes
from .resolving import holds, plain_text, resolve
from .skipped import ways_around
from .source import Sources
from .ways_out import leaves_loop

_CONTAINERS = ("list", "dict", "set", "deque")
# What a loop may call that changes nothing which others look at.
_ONLY_LOOKING = frozenset(
    {"sleep", "wait", "print", "log", "debug", "info", "warning", "error", "len", "format", "str"}
)
_ONLY_LOOKING |= {"time", "monotonic", "perf_counter", "is_set", "empty", "qsize", "full", "round", "min", "max", "int"}
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
    """An object, the methods of others that change what the loop sees of it, and what the loop calls it; `shared` is
    what other processes know it by."""

    address: int
    changed_by: frozenset[str]
    name: str
    shared: str = ""


def changers(
    entry: Facts, place: Frame, reached: Sequence[tuple[Facts, Mapping[int, Set[str]]]], sources: Sources
) -> Iterator[Facts]:
    """Who else would change what the loop around the line looks at, by the methods that each will call on objects."""
    for seen in looked_at(place, sources):
        if seen.shared:
            yield {"shared": seen.shared, "by": sorted(seen.changed_by), "name": seen.name}
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
            yield LookedAt(value.address, _MAKES_TRUE[each.attr], ast.unparse(each.value), shared_key(value))
    methods = {id(each) for each in asked}
    for node in nodes:
        if isinstance(node, ast.Attribute) and id(node) not in methods:
            owner = resolve(node.value, frame)
            if owner is not None:
                changed_by = frozenset({assignment(node.attr)})
                yield LookedAt(owner.address, changed_by, ast.unparse(node), shared_key(owner))
        if isinstance(node, ast.Name | ast.Attribute) and _is_container(value := resolve(node, frame)):
            yield LookedAt(value.address if value is not None else 0, _GROWING | _SHRINKING, ast.unparse(node))


def only_looks(frame: Frame, sources: Sources) -> bool:
    """Whether the loop around the line does nothing but look and wait, and what it looks at does not let it end now."""
    test, word = sources.polled_test(frame)
    loops = sources.loops_around(frame)
    if test is None or holds(test, frame) is not (word == "while"):
        return False
    tested = {id(node) for node in ast.walk(test)}
    leaves = [node for node in loops[-1].body if isinstance(node, ast.If) and leaves_loop(node)]
    if len(leaves) > 1:
        return False
    tested |= {id(node) for each in leaves for inner in each.body for node in ast.walk(inner)}
    own = [node for each in loops[-1].body for node in ast.walk(each) if id(node) not in tested]
    return not any(map(_does_something, own))


def _does_something(node: ast.AST) -> bool:
    """Whether it changes what others may see, or ends the loop in another way."""
    if isinstance(node, ast.Call):
        return last_name(node.func) not in _ONLY_LOOKING
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
    ends = isinstance(node, ast.Raise | ast.Return | ast.Break | ast.Yield | ast.YieldFrom | ast.Delete)
    return ends or any(not isinstance(target, ast.Name) for target in targets)


def unchanged(frame: Frame, sources: Sources) -> Facts:
    """Of an attribute that the loop around the line looks at: its `name`, the functions of the file that assign it (as
    `name:line`), and of one that gives it the value that it has and later another one, what leads past the second."""
    test, _ = sources.polled_test(frame)
    every = [node for node in ast.walk(test) if isinstance(node, ast.Attribute)] if test is not None else []
    looked = [node for node in every if resolve(node, frame) is not None and not _is_container(resolve(node, frame))]
    asked = {id(node.func) for node in ast.walk(test) if isinstance(node, ast.Call)} if test is not None else set()
    looked = [node for node in looked if id(node) not in asked]
    if len(looked) != 1:
        return {}
    name, value = looked[0].attr, resolve(looked[0], frame)
    changed = [
        (function, steps)
        for function in sources.functions(frame.file)
        if function.name != "__init__" and (steps := _assignments(function, name))
    ]
    if not changed or value is None:
        return {}
    functions = [f"{function.name}:{steps[-1].lineno}" for function, steps in changed]
    found: Facts = {"name": ast.unparse(looked[0]), "functions": functions}
    for function, steps in changed:
        given = [_constant(step.value) for step in steps]
        first, last = steps[0], steps[-1]
        if given[0] == plain_text(value) and given[-1] not in ("", given[0]):
            ways = ways_around(function, [last], first.lineno)
            lines = {"to": given[0], "from": first.lineno, "back_to": given[-1], "line": last.lineno}
            found |= {"skipped": {"function": function.name, "left_by": ways} | lines} if ways else {}
    return found


def _assignments(function: ast.AST, attribute: str) -> list[ast.Assign]:
    """Assignments to an attribute of this name, in the order of their lines."""
    every = [node for node in own_nodes(function) if isinstance(node, ast.Assign)]
    found = [
        node
        for node in every
        if any(isinstance(each, ast.Attribute) and each.attr == attribute for each in node.targets)
    ]
    return sorted(found, key=lambda node: node.lineno)


def _constant(value: ast.expr) -> str:
    """A constant as Python prints it."""
    return repr(value.value) if isinstance(value, ast.Constant) else ""


def _is_container(value: Object | None) -> bool:
    return is_a(value, *_CONTAINERS)
