"""Loops that go round without progress: what they can reach is the same in two looks, and they have made rounds in
between. What they keep, and under which conditions it would be taken out, says why."""

import ast
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..code.origins import own_nodes
from ..code.places import is_users, users_place
from ..code.resolving import values_in
from ..code.source import Sources
from ..reading.kernel import Facts
from ..reading.objects import Frame, Object, path_text, quoted
from .backlog import NO_OWNERS, TAKING, tables_left

_DEPTH, _MOST_PARTS, _MOST_ELEMENTS = 4, 3000, 64
_MOST_TESTS, _MOST_SHOWN, _SHOWN = 3, 4, 80
_TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.In: ast.NotIn,
    ast.Eq: ast.NotEq,
    ast.Lt: ast.GtE,
    ast.Gt: ast.LtE,
}
_TURNED |= {opposite: own for own, opposite in _TURNED.items()}
_JUMPS = (ast.Continue, ast.Break, ast.Return)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def current_round(frames: Sequence[Frame], sources: Sources) -> Facts:
    """Of the outermost `while` loop that has something to work through: its line, everything that it can reach as plain
    values, and whether it is where a round passes at once (it asks a queue and does not wait). Empty without a loop."""
    user = users_place(frames)
    for frame in (frame for frame in reversed(frames) if is_users(frame.file)):
        loops = [each for each in sources.loops_around(frame) if isinstance(each, ast.While)]
        lasting = _lasting(frame, loops[-1]) if loops else {}
        kept = [each for each in tables_left(frame, sources) if each[0].partition(".")[0] in lasting] if lasting else []
        if kept and user is not None:
            name, table = kept[0]
            taken = _taken(frame, name, table, sources)
            told = {"table": name, "size": table.length(), "first": _entry(table), "taken": taken}
            place = {"file": frame.file, "line": frame.line, "function": frame.function, "loop": loops[-1].lineno}
            state = hashlib.sha256("\n".join(_plain_parts(lasting)).encode()).hexdigest()
            return place | told | {"state": state, "instant": _asks_at_once(frames[user], sources)}
    return {}


def in_vain(before: Facts, after: Facts, *, woken: bool) -> Facts:
    """The loop of a thread that has made rounds between two looks and has changed nothing that it can reach."""
    old, new = before.get("round") or {}, after.get("round") or {}
    same = all(old.get(name) == new.get(name) for name in ("file", "function", "loop", "state"))
    if not new or not same:
        return {}
    round_again = new["line"] < old["line"] or (old["instant"] and new["instant"])
    asleep = after["wait"]["kind"] == "sleep" and woken and new["line"] == old["line"]
    return {name: each for name, each in new.items() if name != "state"} if round_again or asleep else {}


def _asks_at_once(frame: Frame, sources: Sources) -> bool:
    """Whether the function only takes what is there."""
    function = sources.function(frame)
    nodes = own_nodes(function) if function is not None else ()
    calls = [node.func for node in nodes if isinstance(node, ast.Call)]
    return any(isinstance(call, ast.Attribute) and call.attr.endswith("_nowait") for call in calls)


def _lasting(frame: Frame, loop: ast.While) -> dict[str, Object]:
    """The variables of a function that a round of its loop does not set anew; what it adds to lasts."""
    set_anew = {name for node in own_nodes(loop) for name in _names_set(node)}
    return {name: value for name, value in frame.locals().items() if name not in set_anew}


def _names_set(node: ast.AST) -> Iterator[str]:
    targets = node.targets if isinstance(node, ast.Assign) else []
    if isinstance(node, ast.For | ast.NamedExpr | ast.AnnAssign | ast.comprehension):
        targets = [node.target]
    if isinstance(node, ast.withitem) and node.optional_vars is not None:
        targets = [node.optional_vars]
    # Those of attributes and elements change what their owner has.
    parts = [part for target in targets for part in (target.elts if isinstance(target, ast.Tuple) else [target])]
    yield from (part.id for part in parts if isinstance(part, ast.Name))
    if isinstance(node, ast.ExceptHandler) and node.name:
        yield node.name


def _plain_parts(values: Mapping[str, Object]) -> Iterator[str]:
    """Texts, numbers and sizes in what variables lead to, in a fixed order; at most so many."""
    below: list[tuple[str, Object, int]] = [(name, each, 0) for name, each in sorted(values.items())]
    seen: set[int] = set()
    while below and len(seen) < _MOST_PARTS:
        name, value, depth = below.pop(0)
        plain, real = _plain(value), value.real()
        if plain or real is not None:
            yield f"{name} = {plain or real}"
            continue
        if value.address in seen or depth == _DEPTH or value.kind in NO_OWNERS:
            continue
        seen.add(value.address)
        yield f"{name}: {value.kind} {value.length()}"
        parts = [(key.text() or str(key.number()), each) for key, each in value.pairs()[:_MOST_ELEMENTS]]
        parts = parts or [(str(n), each) for n, each in enumerate(value.elements()[:_MOST_ELEMENTS])]
        parts = parts or sorted(value.attributes().items())
        below += [(f"{name}.{part}", each, depth + 1) for part, each in parts]


def _plain(value: Object) -> str:
    """A text, a number, a path or the name of an enumeration's member, as Python prints it; else empty."""
    member = value.get("_name_") if value.number() is None and value.text() is None else None
    if member is not None and (name := member.text()):
        return name
    if path := path_text(value):
        return repr(path[:_SHOWN])
    if text := quoted(value, _SHOWN):
        return text
    number = value.number()
    return "" if number is None else str(bool(number) if value.kind == "bool" else number)


def _entry(table: Object) -> str:
    """The first entry of a table, by its plain parts."""
    pairs = table.pairs()
    first = pairs[0][1] if pairs else next(iter(table.elements()), None)
    if first is None:
        return ""
    if plain := _plain(first):
        return plain
    parts = [(key.text() or "", each) for key, each in first.pairs()] or list(first.attributes().items())
    told = [f"{name} = {plain}" for name, each in parts if (plain := _plain(each))]
    return f"{first.kind}: {', '.join(told[:_MOST_SHOWN])}" if told else ""


@dataclass
class _Inside:
    """A function that takes entries out of a table, with the first of them in its variable."""

    file: str
    line: int
    function: str
    values: dict[str, Object]

    def locals(self) -> dict[str, Object]:
        return self.values

    def variable(self, name: str) -> Object | None:
        return self.values.get(name)


def _taken(frame: Frame, name: str, table: Object, sources: Sources) -> str:
    """Which function takes entries out, and under which conditions, with their values for the first entry."""
    named = sources.functions_calling(frame, name, TAKING)
    function_name, _, line = named[0].partition(":") if named else ("", "", "0")
    for function in (each for each in sources.functions(frame.file) if each.name == function_name):
        if not function.lineno <= int(line) <= (function.end_lineno or 0):
            continue
        owner, first = frame.variable(name.partition(".")[0]), next(iter(table.elements()), None)
        values = {"self": owner} if owner is not None and "." in name else dict(frame.locals())
        loops = [
            each for each in own_nodes(function) if isinstance(each, ast.For) and isinstance(each.target, ast.Name)
        ]
        values |= {each.target.id: first for each in loops if first is not None and isinstance(each.target, ast.Name)}
        inside = _Inside(frame.file, int(line), function_name, values)
        tests = list(_conditions(function.body, int(line)))[:_MOST_TESTS]
        told = [f"{word}`{ast.unparse(test)[:_SHOWN]}`{values_in(test, inside)}" for word, test in tests]
        return f"{function_name} (line {line}) takes one out" + (f" only if {' and '.join(told)}" if told else "")
    return ""


def _conditions(body: Sequence[ast.stmt], line: int) -> Iterator[tuple[str, ast.expr]]:
    """What has to hold, or must not, before a line is reached in a round."""
    for node in body:
        if node.lineno > line:
            return
        inside = line <= (node.end_lineno or 0)
        if isinstance(node, ast.If) and not inside and node.body and isinstance(node.body[-1], _JUMPS):
            yield _opposite(node.test)
        if inside:
            branches = [getattr(node, name, []) for name in ("body", "orelse", "finalbody")]
            if isinstance(node, ast.If) and any(each.lineno <= line <= (each.end_lineno or 0) for each in node.body):
                yield "", node.test
            for branch in branches:
                yield from _conditions(branch, line) if _spans(branch, line) else ()


def _opposite(test: ast.expr) -> tuple[str, ast.expr]:
    """What has to hold where the test must not: `a in b` for `a not in b`."""
    turned = _TURNED.get(type(test.ops[0])) if isinstance(test, ast.Compare) and len(test.ops) == 1 else None
    if turned is not None and isinstance(test, ast.Compare):
        return "", ast.Compare(test.left, [turned()], test.comparators)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return "", test.operand
    return "not ", test


def _spans(body: Sequence[ast.stmt], line: int) -> bool:
    return bool(body) and body[0].lineno <= line <= (body[-1].end_lineno or 0)
