"""Waits that are meant to last: for a signal that ends the program, or for something that nobody else can have."""

import ast

from .objects import Frame
from .source import Sources

_MADE_HERE = frozenset({"Event", "Condition", "Future", "create_future"})
_HANDLERS = frozenset({"signal", "add_signal_handler"})


def is_nobody_elses(frame: Frame, sources: Sources) -> bool:
    """Whether the line waits for an object that it makes itself (`await asyncio.Event().wait()`): so do programs that
    only serve, and stay until they are ended."""
    for node in sources.on_line(frame):
        if isinstance(node, ast.Await) and _makes(node.value):
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _makes(node.func.value):
            return True
    return False


def _makes(expression: ast.expr) -> bool:
    return isinstance(expression, ast.Call) and _last_name(expression.func) in _MADE_HERE


def ended_by_signal(frame: Frame, name: str, functions: list[str], methods: frozenset[str], sources: Sources) -> bool:
    """Whether the handler of a signal ends the wait: one of these functions (as `name:line`), or a method of what is
    waited for."""
    last, ending = name.rpartition(".")[2], {each.partition(":")[0] for each in functions}
    tree = sources.tree(frame.file)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)] if tree is not None else []
    given = [each for call in calls if _last_name(call.func) in _HANDLERS for each in call.args]
    for node in (inner for each in given for inner in ast.walk(each)):
        if isinstance(node, ast.Attribute) and node.attr in methods and _last_name(node.value) == last:
            return True
        if isinstance(node, ast.Name | ast.Attribute) and _last_name(node) in ending:
            return True
    return False


def _last_name(expression: ast.expr) -> str:
    if isinstance(expression, ast.Attribute):
        return expression.attr
    return expression.id if isinstance(expression, ast.Name) else ""
