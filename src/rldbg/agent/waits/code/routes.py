"""By which lines of the source a rank comes to where it is, and by which it could have passed that by: conditions,
loops, early returns and handled exceptions. Ranks that are elsewhere are compared with it by `live.diagnosis`."""

import ast
from collections.abc import Iterator, Sequence

from ..reading.kernel import Facts
from ..reading.objects import Frame
from .origins import FUNCTIONS, last_name, own_nodes
from .places import is_users
from .resolving import holds, number_of, resolve, values_in
from .source import WITH, Sources

_SHOWN = 80
_MOST_FRAMES, _MOST_TESTS = 12, 60
_COUNTING = frozenset({"range", "enumerate", "count", "trange"})
_COLLECTIVES = frozenset(
    {
        *("all_reduce", "broadcast", "barrier", "all_gather", "all_gather_object", "reduce", "gather", "scatter"),
        *("reduce_scatter", "all_to_all", "broadcast_object_list", "all_gather_into_tensor", "reduce_scatter_tensor"),
        *("gather_object", "scatter_object_list", "all_to_all_single", "monitored_barrier"),
    }
)
_TRANSFERS = frozenset({"send", "recv", "isend", "irecv"})
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_Loop = ast.For | ast.AsyncFor | ast.While


def route(frames: Sequence[Frame], sources: Sources) -> list[Facts]:
    """The user's frames, outermost first: how the current line of each could have been passed by (`escapes`; None where
    that is not clear), the loops around it with the number of their round, and of what was tested before the values,
    whether it would `hold` now, and each `break` whose condition would `fail`."""
    own = [frame for frame in reversed(frames) if is_users(frame.file)][-_MOST_FRAMES:]
    called = [frame.function.rpartition(".")[2] for frame in own]
    return [_step(frame, calls, sources) for frame, calls in zip(own, [*called[1:], ""], strict=False)]


def lines_entering(frames: Sequence[Frame], sources: Sources) -> dict[str, list[Facts]]:
    """Where functions in the files of current ones call collectives, by the names of these."""
    found: dict[str, list[Facts]] = {}
    for file in dict.fromkeys(frame.file for frame in frames if is_users(frame.file)):
        for name, function in sources.definitions(file).items():
            for call in (node for node in own_nodes(function) if isinstance(node, ast.Call)):
                op, peer = last_name(call.func), _peer(call)
                if op in _COLLECTIVES or peer:
                    line = {"file": file, "line": call.lineno, "function": name, "peer": peer}
                    found.setdefault(op, []).append(line)
    return found


def _peer(call: ast.Call) -> str:
    """The other side of a send or receive as it is written; empty for other calls, as those of a socket are."""
    told = [word.value for word in call.keywords if word.arg in ("src", "dst")]
    if isinstance(call.func, ast.Attribute) and last_name(call.func.value) in ("dist", "distributed"):
        told += call.args[1:2]
    return _short(told[0]) if told and last_name(call.func) in _TRANSFERS else ""


def _step(frame: Frame, calls: str, sources: Sources) -> Facts:
    function = sources.function(frame)
    statements = _around(frame, sources)
    plain = function is not None and _is_plain(statements, calls)
    escapes = list(_escapes(statements, function, frame)) if plain and function is not None else None
    loops = [loop for loop in statements if isinstance(loop, _LOOPS) and _is_in(loop.body, frame.line)]
    return {
        "file": frame.file,
        "line": frame.line,
        "function": frame.function,
        "escapes": escapes,
        "rounds": [[loop.lineno, loop.end_lineno, _round(loop, frame)] for loop in loops],
        "tested": dict(_tested(function, frame)) if function is not None else {},
        "hold": [node.lineno for node in _above(function, frame) if _would_hold(node, frame)],
        "fail": list(_breaks_not_due(function, frame)),
        "untrue": [
            node.lineno
            for node in _above(function, frame)
            if isinstance(node, ast.If | ast.While) and holds(node.test, frame) is False
        ],
    }


def _around(frame: Frame, sources: Sources) -> list[ast.stmt]:
    """The statements of the frame's function that the line is in, outer ones first."""
    inside = list(sources.on_line(frame))
    within = max((n for n, node in enumerate(inside) if isinstance(node, (*FUNCTIONS, ast.Lambda))), default=-1)
    return [node for node in inside[within + 1 :] if isinstance(node, ast.stmt)]


def _is_plain(statements: Sequence[ast.stmt], calls: str) -> bool:
    """Whether nothing but whole statements decides if the line makes its call: no `a and b()`, no `case`."""
    if not statements or any(isinstance(each, ast.Match | ast.ClassDef) for each in statements):
        return False
    last = statements[-1]
    parts = own_nodes(last) if not hasattr(last, "body") else ()
    chosen = [each for node in parts for part in _chosen(node) for each in ast.walk(part) if isinstance(each, ast.Call)]
    return not any(not calls or last_name(call.func) in (calls, "") for call in chosen)


def _chosen(node: ast.AST) -> Sequence[ast.AST]:
    """The parts of an expression that are not evaluated in any case."""
    if isinstance(node, ast.IfExp):
        return node.body, node.orelse
    if isinstance(node, ast.BoolOp):
        return node.values[1:]
    return (node,) if hasattr(node, "generators") else ()


def _escapes(statements: Sequence[ast.stmt], function: ast.AST, frame: Frame) -> Iterator[Facts]:
    """How the line is passed by. Who is between `from` and `to` has not done so in this way; who is `aside` is in the
    other branch, and may come to a call like it there."""
    line = frame.line
    for node in statements:
        if isinstance(node, ast.If) and not _is_in([node.test], line):
            body, word = (node.body, "did not hold") if _is_in(node.body, line) else (node.orelse, "held")
            other = node.orelse if body is node.body else node.body
            yield _escape("test", f"`{_short(node.test)}`", word, node.lineno, body) | {"aside": _span(other)}
        elif isinstance(node, _LOOPS) and _is_in(node.body, line):
            yield from _left(node, line)
        elif isinstance(node, ast.Try) and _is_in(node.body, line):
            for handler in node.handlers:
                caught = f" (`except {_short(handler.type)}`)" if handler.type is not None else ""
                yield _escape("except", "an exception, which is handled", caught, handler.lineno, node.body)
        elif isinstance(node, WITH) and any(_suppresses(item.context_expr) for item in node.items):
            yield _escape("except", "an exception, which is suppressed", "", node.lineno, node.body)
    yield from _returns(statements, function, line)


def _left(loop: _Loop, line: int) -> Iterator[Facts]:
    """The end of a loop, or what leaves it or its round."""
    if not isinstance(loop, ast.While) and not _is_constant(loop.iter):
        header = f"`for {_short(loop.target)} in {_short(loop.iter)}`"
        yield _escape("loop", header, "ended after fewer rounds", loop.lineno, loop.body)
    elif isinstance(loop, ast.While) and not isinstance(loop.test, ast.Constant):
        yield _escape("test", f"`while {_short(loop.test)}`", "did not hold any more", loop.lineno, loop.body)
    for node, test in _jumps(loop.body, None):
        under = f" under `{_short(test)}`" if test is not None else ""
        if isinstance(node, ast.Break):
            yield _escape("break", "it took `break`", under, node.lineno, loop.body)
        elif node.lineno < line:
            yield _escape("continue", "it took `continue`", under, node.lineno, loop.body)


def _returns(statements: Sequence[ast.stmt], function: ast.AST, line: int) -> Iterator[Facts]:
    """Returns before the line, or anywhere in a loop around it; not those of a branch that was not taken anyway."""
    loops = [node for node in statements if isinstance(node, _LOOPS)]
    other = [part for node in statements if isinstance(node, ast.If) for part in (node.body, node.orelse)]
    passed = [part for part in other if part and not _is_in(part, line)]
    for node, test in _jumps(getattr(function, "body", []), None, returns=True):
        reached = node.lineno < line or any(_is_in(loop.body, node.lineno) for loop in loops)
        if reached and not any(_is_in(part, node.lineno) for part in passed):
            under = f" under `{_short(test)}`" if test is not None else ""
            yield _escape("return", "it took `return`", under, node.lineno, [])


def _jumps(
    body: Sequence[ast.stmt], test: ast.expr | None, *, returns: bool = False
) -> Iterator[tuple[ast.stmt, ast.expr | None]]:
    """Each `break` and `continue` of a loop, or `return` of a function, with the innermost condition around it."""
    for node in body:
        if isinstance(node, ast.Return if returns else ast.Break | ast.Continue):
            yield node, test
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)) or (isinstance(node, _LOOPS) and not returns):
            continue
        for name in ("body", "orelse", "finalbody"):
            depends = isinstance(node, ast.If) and name == "body"
            inner = node.test if depends and isinstance(node, ast.If) else test
            # What holds in `else` is not what is written there.
            inner = None if isinstance(node, ast.If) and name == "orelse" else inner
            yield from _jumps(getattr(node, name, []), inner, returns=returns)
        for handler in getattr(node, "handlers", []):
            yield from _jumps(handler.body, test, returns=returns)


def _escape(kind: str, what: str, word: str, line: int, within: Sequence[ast.stmt]) -> Facts:
    first, last = _span(within)
    return {"kind": kind, "what": what, "word": word, "line": line, "from": first, "to": last}


def _span(statements: Sequence[ast.stmt]) -> tuple[int, int]:
    return (statements[0].lineno, statements[-1].end_lineno or 0) if statements else (0, -1)


def _tested(function: ast.AST, frame: Frame) -> Iterator[tuple[str, str]]:
    """Values of the conditions and loops above the line as they are now, by their lines."""
    for node in _above(function, frame):
        if isinstance(node, ast.If | ast.While):
            found = values_in(node.test, frame)
        else:
            counted = ast.Call(ast.Name("len"), [node.iter], [])
            found = values_in(counted if resolve(node.iter, frame) is not None else node.iter, frame)
        if found:
            yield str(node.lineno), found.strip(" ()")


def _above(function: ast.AST | None, frame: Frame) -> list[ast.If | _Loop]:
    nodes = own_nodes(function) if function is not None else ()
    return [node for node in nodes if isinstance(node, (ast.If, *_LOOPS)) and node.lineno < frame.line][-_MOST_TESTS:]


def _would_hold(node: ast.If | _Loop, frame: Frame) -> bool:
    """Whether a condition holds with the values of now, or a loop over a range has rounds left."""
    if isinstance(node, ast.If | ast.While):
        return holds(node.test, frame) is True
    counted = node.iter if isinstance(node.iter, ast.Call) and last_name(node.iter.func) == "range" else None
    if counted is None or not 1 <= len(counted.args) <= 2 or not isinstance(node.target, ast.Name):
        return False
    stop, value = number_of(counted.args[-1], frame), number_of(node.target, frame)
    return stop is not None and value is not None and value + 1 < stop


def _breaks_not_due(function: ast.AST | None, frame: Frame) -> Iterator[int]:
    """Lines of `break` in loops above the line whose condition does not hold with the values of now."""
    for loop in (node for node in _above(function, frame) if isinstance(node, _LOOPS)):
        for node, test in _jumps(loop.body, None) if (loop.end_lineno or 0) < frame.line else ():
            if isinstance(node, ast.Break) and test is not None and holds(test, frame) is False:
                yield node.lineno


def _round(loop: _Loop, frame: Frame) -> int | None:
    """The number of a loop's round, where the loop counts."""
    if isinstance(loop, ast.While):
        return None
    counts = any(isinstance(each, ast.Call) and last_name(each.func) in _COUNTING for each in ast.walk(loop.iter))
    first = loop.target.elts[0] if isinstance(loop.target, ast.Tuple) else loop.target
    value = resolve(first, frame) if counts and isinstance(first, ast.Name) else None
    return value.number() if value is not None else None


def _is_constant(iterated: ast.expr) -> bool:
    """Whether a loop has the same number of rounds in any rank."""
    parts = iterated.args if isinstance(iterated, ast.Call) and last_name(iterated.func) == "range" else None
    parts = iterated.elts if isinstance(iterated, ast.List | ast.Tuple) else parts
    return parts is not None and all(isinstance(each, ast.Constant) for each in parts)


def _suppresses(expression: ast.expr) -> bool:
    return isinstance(expression, ast.Call) and last_name(expression.func) == "suppress"


def _is_in(body: Sequence[ast.AST], line: int) -> bool:
    return any(getattr(node, "lineno", 0) <= line <= (getattr(node, "end_lineno", None) or 0) for node in body)


def _short(expression: ast.expr) -> str:
    return ast.unparse(expression)[:_SHOWN]
