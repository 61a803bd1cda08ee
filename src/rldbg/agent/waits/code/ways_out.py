"""What ends a loop that is left from within, and loops that only an item ends."""

import ast
from collections.abc import Iterator

from .origins import FUNCTIONS, last_name

_LOOPS = (ast.While, ast.For, ast.AsyncFor)
_CLOCKS = frozenset({"time", "monotonic", "perf_counter", "now"})
_ENDS = (ast.Break, ast.Return, ast.Raise)
_MOST_WAYS, _MOST_STEPS = 3, 3


def exit_test(loop: ast.While | ast.For | ast.AsyncFor) -> ast.expr | None:
    """The condition under which the loop ends. Of several, that of the only `break`, else all, if the loop does little
    besides; a deadline is not what is waited for. None where there are none or many."""
    every = list(_leaving(loop.body, within=True))
    ways = [way for way in every if not _is_deadline(way.test)] or every
    breaks = [way for way in ways if isinstance(way.body[-1], ast.Break)]
    tests = [way.test for way in (breaks if len(breaks) == 1 else ways)]
    if not 0 < len(tests) <= _MOST_WAYS or (len(every) > 1 and not _only_looks(loop)):
        return None
    return tests[0] if len(tests) == 1 else ast.copy_location(ast.BoolOp(ast.Or(), tests), tests[0])


def _leaving(body: list[ast.stmt], *, within: bool) -> Iterator[ast.If]:
    """Branches that end with leaving the loop. A `break` in a loop inside of it ends that one."""
    for node in body:
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            continue
        if isinstance(node, ast.If) and isinstance(node.body[-1], (ast.Break, ast.Return) if within else ast.Return):
            yield node
        for part in ("body", "orelse", "finalbody"):
            yield from _leaving(getattr(node, part, []), within=within and not isinstance(node, _LOOPS))
        for handler in getattr(node, "handlers", []):
            yield from _leaving(handler.body, within=within)


def _only_looks(loop: ast.While | ast.For | ast.AsyncFor) -> bool:
    others = [node for node in loop.body if not isinstance(node, ast.If)]
    return len(others) <= _MOST_STEPS and all(isinstance(node, ast.Expr | ast.Assign) for node in others)


def _is_deadline(test: ast.expr) -> bool:
    called = [node.func for node in ast.walk(test) if isinstance(node, ast.Call)]
    return any(isinstance(each, ast.Attribute) and each.attr in _CLOCKS for each in called)


def lasts_by_clock(loop: ast.AST) -> bool:
    """`while time.monotonic() < end`: it is over at that time, whatever happens."""
    return isinstance(loop, ast.While) and isinstance(loop.test, ast.Compare) and _is_deadline(loop.test)


def has_deadline(loop: ast.While | ast.For | ast.AsyncFor) -> bool:
    """Whether a branch leaves the loop by the clock, or by what was computed from it in the loop."""
    assigned = [node for node in ast.walk(loop) if isinstance(node, ast.Assign) and _is_deadline(node.value)]
    times = {target.id for node in assigned for target in node.targets if isinstance(target, ast.Name)}
    ways = [node for node in ast.walk(loop) if isinstance(node, ast.If) and isinstance(node.body[-1], _ENDS)]
    return any(
        _is_deadline(way.test) or any(isinstance(node, ast.Name) and node.id in times for node in ast.walk(way.test))
        for way in ways
    )


def leaves_loop(node: ast.If) -> bool:
    """Whether the branch ends the loop around it."""
    return bool(node.body) and isinstance(node.body[-1], ast.Break | ast.Return)


def takes_each(loop: ast.AST) -> bool:
    """A loop that takes one item after the other, until it is given a special one or is left from within:
    `while True`, `while item := take()`, `for item in iter(take, None)`."""
    if isinstance(loop, ast.For) and isinstance(loop.iter, ast.Call):
        return last_name(loop.iter.func) == "iter" and len(loop.iter.args) > 1
    tested = ast.walk(loop.test) if isinstance(loop, ast.While) else ()
    return is_unconditional(loop) or any(isinstance(node, ast.NamedExpr) for node in tested)


def is_unconditional(loop: ast.AST) -> bool:
    """`while True`: it is left from within, if at all."""
    return isinstance(loop, ast.While) and isinstance(loop.test, ast.Constant)
