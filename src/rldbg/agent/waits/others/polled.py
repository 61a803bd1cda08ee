"""What a loop looks at again and again, and what changes that: assignments to an attribute, methods of a container, of
a queue or of an event; and where nobody is about to do so, the functions that would, and what led past it in them."""

import ast
import zlib
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from ..calls.looking import shared_key
from ..code.called import Function, assignment
from ..code.origins import FUNCTIONS, last_name, own_nodes
from ..code.places import is_users
from ..code.resolving import holds, plain_text, resolve, values_in
from ..code.source import Sources, nodes_ahead
from ..code.ways_out import has_deadline, leaves_loop
from ..reading.kernel import Facts
from ..reading.objects import Frame, Object, is_a
from .skipped import ways_around

_Assigning = ast.Assign | ast.AugAssign
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


@dataclass(frozen=True)
class Tested:
    """The condition of a loop, whether it runs "while" or "until" it holds, and the frame whose variables it names."""

    test: ast.expr | None
    word: str
    frame: Frame

    def text(self) -> str:
        return f"{self.word} `{ast.unparse(self.test)[:100]}`{values_in(self.test, self.frame)}" if self.test else ""


def loop_condition(place: Frame, frames: Sequence[Frame], sources: Sources) -> Tested:
    """That of the loop around a line; of a helper that is given what to look at, what its caller has given it."""
    test, word = sources.polled_test(place)
    if isinstance(test, ast.Call) and isinstance(test.func, ast.Name) and not test.args and place in frames:
        outer = next((each for each in frames[list(frames).index(place) + 1 :] if is_users(each.file)), None)
        given = [each for each in sources.on_line(outer) if isinstance(each, ast.Lambda)] if outer is not None else []
        if outer is not None and len(given) == 1:
            inner = given[0].body
            negated = isinstance(inner, ast.UnaryOp) and isinstance(inner.op, ast.Not)
            if negated and isinstance(inner, ast.UnaryOp):
                return Tested(inner.operand, "while" if word == "until" else "until", outer)
            return Tested(inner, word, outer)
    return Tested(test, word, place)


def only_paces(wait: Facts, place: Frame, sources: Sources) -> bool:
    """Whether an event that nothing sets is only the pause between two looks at something else."""
    test, _ = sources.polled_test(place)
    name = str(wait.get("name") or "")
    if wait["kind"] != "event" or not wait.get("timeout") or test is None or not name or name in ast.unparse(test):
        return False
    return not sources.functions_calling(place, name, frozenset({"set"}))


def ends_by_itself(wait: Facts, place: Frame, sources: Sources) -> bool:
    """Whether a condition is waited for with a time limit, in a loop that itself changes what it looks at, as one does
    that counts a quota anew: it needs no notification."""
    test, _ = sources.polled_test(place)
    if wait["kind"] != "condition" or not wait.get("timeout") or test is None:
        return False
    loop = sources.loops_around(place)[-1]
    return not _looked_at(test).isdisjoint(_assigned(loop.body))


def progresses(place: Frame, sources: Sources) -> bool:
    """Whether the loop around a line changes itself what it looks at, as one does that collects until it has enough."""
    test, _ = sources.polled_test(place)
    if test is None:
        return False
    nodes = list(own_nodes(sources.loops_around(place)[-1]))
    calls = [node.func for node in nodes if isinstance(node, ast.Call)]
    grown = {ast.unparse(call.value) for call in calls if isinstance(call, ast.Attribute) and call.attr in _GROWING}
    targets = [node.target for node in nodes if isinstance(node, ast.AugAssign)]
    return not _looked_at(test).isdisjoint(grown | {ast.unparse(target) for target in targets})


def has_time_limit(wait: Facts, place: Frame, sources: Sources) -> bool:
    """Whether a condition is waited for until some time, after which its loop is left."""
    loops = sources.loops_around(place)
    return wait["kind"] == "condition" and bool(wait.get("timeout")) and bool(loops) and has_deadline(loops[-1])


def _looked_at(test: ast.expr) -> set[str]:
    return {ast.unparse(node) for node in ast.walk(test) if isinstance(node, ast.Name | ast.Attribute)} - {"self"}


def _assigned(body: Sequence[ast.stmt]) -> Iterator[str]:
    """What statements assign, without those that come right before the end of their loop."""
    for node in body:
        if isinstance(node, ast.If) and leaves_loop(node):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AugAssign | ast.AnnAssign) else targets
        yield from (ast.unparse(each) for target in targets for each in getattr(target, "elts", [target]))
        for part in ("body", "orelse", "finalbody"):
            yield from _assigned(getattr(node, part, []))


def variable_key(file: str, name: str) -> int:
    """What stands for a variable that functions of a file share, where objects have their addresses."""
    return -1 - zlib.crc32(f"{file}:{name}".encode())


def variables_changed(frames: Sequence[Frame], sources: Sources) -> Iterator[int]:
    """The variables of the module, or of a function around, that the current functions will assign."""
    for frame in (each for each in frames if is_users(each.file)):
        function = sources.function(frame)
        nodes = list(own_nodes(function)) if function is not None else []
        shared = {name for node in nodes if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names}
        for node in nodes_ahead(frame, sources):
            targets = node.targets if isinstance(node, ast.Assign) else []
            targets = [node.target] if isinstance(node, ast.AugAssign) else targets
            for target in (each for each in targets if isinstance(each, ast.Name)):
                if target.id in shared or isinstance(function, ast.Module) or target.id in _handed_in(function):
                    yield variable_key(frame.file, target.id)


def _handed_in(function: ast.AST | None) -> set[str]:
    """Variables of a function that the functions inside of it use too."""
    inner = [node for node in ast.walk(function) if isinstance(node, FUNCTIONS)] if function is not None else []
    return {node.id for each in inner if each is not function for node in ast.walk(each) if isinstance(node, ast.Name)}


def changers(entry: Facts, tested: Tested, reached: Sequence[tuple[Facts, Mapping[int, Set[str]]]]) -> Iterator[Facts]:
    """Who else would change what a loop looks at, by the methods that each will call on objects."""
    for seen in looked_at(tested):
        if seen.shared:
            yield {"shared": seen.shared, "by": sorted(seen.changed_by), "name": seen.name}
        for other, objects in reached:
            if other is not entry and objects.get(seen.address, frozenset()) & seen.changed_by:
                yield {"who": other.get("thread") or other["key"], "name": seen.name}


def looked_at(tested: Tested) -> Iterator[LookedAt]:
    """What the condition of a loop depends on."""
    test, frame = tested.test, tested.frame
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
        if isinstance(node, ast.Name) and id(node) not in methods and not _is_container(resolve(node, frame)):
            yield LookedAt(variable_key(frame.file, node.id), frozenset({assignment("")}), node.id)
        if isinstance(node, ast.Name | ast.Attribute) and _is_container(value := resolve(node, frame)):
            yield LookedAt(value.address if value is not None else 0, _GROWING | _SHRINKING, ast.unparse(node))


def only_looks(place: Frame, asked: Tested, sources: Sources) -> bool:
    """Whether the loop around the line does nothing but look and wait, and what it looks at does not let it end now."""
    test, _ = sources.polled_test(place)
    loops = sources.loops_around(place)
    if test is None or asked.test is None or holds(asked.test, asked.frame) is not (asked.word == "while"):
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
    steps_of = {node.attr: _changing(node.attr, frame.file, sources) for node in looked}
    # What nobody assigns is a setting.
    looked = [node for node in looked if steps_of[node.attr]]
    value = resolve(looked[0], frame) if len(looked) == 1 else None
    if value is None:
        return {}
    changed = steps_of[looked[0].attr]
    functions = [f"{function.name}:{steps[-1].lineno}" for function, steps in changed]
    found: Facts = {"name": ast.unparse(looked[0]), "functions": functions}
    for function, steps in changed:
        given = [_given(step) for step in steps]
        first, last = steps[0], steps[-1]
        if given[0] == plain_text(value) and given[-1] not in ("", given[0]):
            ways = ways_around(function, [last], first.lineno)
            lines = {"to": given[0], "from": first.lineno, "back_to": given[-1], "line": last.lineno}
            found |= {"skipped": {"function": function.name, "left_by": ways} | lines} if ways else {}
    return found


def _changing(attribute: str, file: str, sources: Sources) -> list[tuple[Function, list[_Assigning]]]:
    """The functions of a file that assign an attribute of this name, with the lines that do, but for the first time."""
    functions = (function for function in sources.functions(file) if function.name != "__init__")
    return [(function, steps) for function in functions if (steps := _assignments(function, attribute))]


def _assignments(function: ast.AST, attribute: str) -> list[_Assigning]:
    """Assignments to an attribute of this name, in the order of their lines."""
    every = [node for node in own_nodes(function) if isinstance(node, ast.Assign | ast.AugAssign)]
    found = [
        node
        for node in every
        if any(isinstance(each, ast.Attribute) and each.attr == attribute for each in _targets(node))
    ]
    return sorted(found, key=lambda node: node.lineno)


def _targets(node: _Assigning) -> Iterator[ast.expr]:
    for target in [node.target] if isinstance(node, ast.AugAssign) else node.targets:
        yield from target.elts if isinstance(target, ast.Tuple | ast.List) else [target]


def _given(step: _Assigning) -> str:
    """The constant that is assigned, as Python prints it."""
    is_plain = isinstance(step, ast.Assign) and isinstance(step.value, ast.Constant)
    return repr(step.value.value) if is_plain and isinstance(step.value, ast.Constant) else ""


def _is_container(value: Object | None) -> bool:
    return is_a(value, *_CONTAINERS)
