"""Why what would end a wait has not happened: a condition around it that does not hold; or that it is meant to last,
until a signal ends the program."""

import ast
from collections.abc import Iterator, Sequence
from typing import TypeGuard

from ..reading.objects import Frame
from .origins import FUNCTIONS, given_to, last_name
from .resolving import values_in
from .source import Sources

_SHOWN = 100
_MADE_HERE = frozenset({"Event", "Condition", "Future", "create_future"})
_ONLY_LOOKS = frozenset({"wait", "is_set"})
_HANDLERS = frozenset({"signal", "add_signal_handler"})


def guard(functions: Sequence[str], name: str, methods: frozenset[str], place: Frame, sources: Sources) -> str:
    """The condition under which a function of the place's file (as `name:line`) ends the wait, with its values where
    they can be read in this frame; empty where one does so in any case, or it is not clear which one will."""
    names, last = {each.partition(":")[0] for each in functions}, name.rpartition(".")[2]
    tests: list[ast.expr | None] = []
    for function in sources.functions(place.file) if len(names) == 1 else ():
        if function.name in names:
            tests += [test for call, test in guarded(function, None) if is_called_on(call, last, methods)]
    test = tests[0] if len(tests) == 1 else None
    return f"`{ast.unparse(test)[:_SHOWN]}`{values_in(test, place)}" if test is not None else ""


def guarded(node: ast.AST, test: ast.expr | None) -> Iterator[tuple[ast.Call, ast.expr | None]]:
    """Calls, each with the innermost condition that it depends on."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (*FUNCTIONS, ast.Lambda, ast.ClassDef)):
            continue
        if isinstance(child, ast.Call):
            yield child, test
        depends = isinstance(node, ast.If) and child in node.body
        yield from guarded(child, node.test if depends and isinstance(node, ast.If) else test)


def is_called_on(call: ast.Call, last: str, methods: frozenset[str]) -> bool:
    function = call.func
    if not isinstance(function, ast.Attribute) or function.attr not in methods:
        return False
    return ast.unparse(function.value).rpartition(".")[2] == last


def is_nobody_elses(frame: Frame, sources: Sources) -> bool:
    """Whether the line waits for an object that it makes itself (`await asyncio.Event().wait()`): so do programs that
    only serve, and stay until they are ended."""
    for node in sources.on_line(frame):
        if isinstance(node, ast.Await) and _makes(node.value):
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _makes(node.func.value):
            return True
    return False


def is_kept_to_itself(name: str, frame: Frame, sources: Sources) -> bool:
    """Whether a function makes an event and only waits for it: so a server may stay; in another program somebody was
    forgotten to be told."""
    function = sources.function(frame)
    made = list(given_to(name, function)) if isinstance(function, FUNCTIONS) else []
    first = made[0] if len(made) == 1 else None
    if function is None or not (_makes(first) and last_name(first.func) == "Event"):
        return False
    nodes = list(ast.walk(function))
    looks = [node.value for node in nodes if isinstance(node, ast.Attribute) and node.attr in _ONLY_LOOKS]
    loads = [n for n in nodes if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)]
    return all(any(load is each for each in looks) for load in loads)


def _makes(expression: ast.expr | None) -> TypeGuard[ast.Call]:
    return isinstance(expression, ast.Call) and last_name(expression.func) in _MADE_HERE


def ended_by_signal(frame: Frame, name: str, functions: list[str], methods: frozenset[str], sources: Sources) -> bool:
    """Whether the handler of a signal ends the wait: one of these functions (as `name:line`), or a method of what is
    waited for."""
    last, ending = name.rpartition(".")[2], {each.partition(":")[0] for each in functions}
    given = [each for call in sources.calls(frame.file) if last_name(call.func) in _HANDLERS for each in call.args]
    for node in (inner for each in given for inner in ast.walk(each)):
        if isinstance(node, ast.Attribute) and node.attr in methods and last_name(node.value) == last:
            return True
        if isinstance(node, ast.Name | ast.Attribute) and last_name(node) in ending:
            return True
    return False
