"""Which locks a thread or task holds, as far as the source shows: by `with`, by `acquire`, or by a function of the user
that takes them for its caller."""

import ast
import copy
from collections.abc import Mapping, Sequence
from typing import Any

from ..calls.looking import LOCKS, file_key, is_feeder, lock_key
from ..code.origins import FUNCTIONS, last_name, own_nodes
from ..code.places import is_users
from ..code.resolving import resolve
from ..code.source import WITH, Sources, header_end
from ..code.ways_out import is_unconditional
from ..reading.objects import Frame, is_a, path_text

_ENTERING = frozenset({"__enter__", "__aenter__", "acquire"})
_TAKING = frozenset({"acquire", "enter_context", "enter_async_context"})
_DEPTH = 3


def held_locks(
    frames: Sequence[Frame], sources: Sources, wanted: set[str], *, given_back: str = "", libraries: bool = False
) -> list[dict[str, Any]]:
    """Key, name and place of each lock. What is `wanted` is not held by the line that waits for it; waiting for a
    condition gives its own lock back. Frames of libraries are looked at on demand."""
    found: dict[str, dict[str, Any]] = {}
    for number, frame in enumerate(frames):
        if number and is_feeder(frame) and frames[number - 1].file.endswith("multiprocessing/connection.py"):
            key = lock_key(frame.variable("writelock"), "writelock")
            place = {"file": frame.file, "line": frame.line, "function": frame.function}
            found.setdefault(key, place | {"key": key, "name": "", "loops": False, "class": ""})
        if not libraries and not is_users(frame.file):
            continue
        inner = frames[number - 1] if number else None
        for expression in _Taken(frame, sources).held(inner, wanted):
            value, path = resolve(expression, frame), _locked_file(expression, frame, sources)
            if value is None and not path and not isinstance(expression, ast.Name | ast.Attribute):
                continue
            if value is not None and not is_a(value, *LOCKS):
                continue
            name = ast.unparse(expression)
            key = file_key(path) if path else lock_key(value, name)
            if key != given_back:
                line = _taking_line(expression, frame, sources)
                place = {"file": frame.file, "line": line, "function": frame.function}
                more = {"loops": _loops(expression, frame, sources), "class": class_of(frame)}
                found.setdefault(key, place | {"key": key, "name": name} | more)
    return list(found.values())


def _locked_file(expression: ast.expr, frame: Frame, sources: Sources) -> str:
    """The file in `with FileLock(path):`, or of a lock that the function has made so: most keep it for their thread
    alone, where it cannot be read."""
    made = expression if isinstance(expression, ast.Call) else sources.assigned(frame, ast.unparse(expression))
    if made is None or not last_name(made.func).endswith("FileLock"):
        return ""
    path = resolve(made.args[0], frame) if made.args else None
    return (path_text(path) or path.text() or "") if path is not None else ""


def tell_apart(locks: Sequence[dict[str, Any]]) -> None:
    """Gives locks that have the same name, each in an object of its own class, the name of that class."""
    kinds: dict[str, set[str]] = {}
    for lock in locks:
        if lock.get("class"):
            kinds.setdefault(str(lock["name"]), set()).add(str(lock["class"]))
    for lock in locks:
        if lock.get("class") and len(kinds[str(lock["name"])]) > 1:
            lock["name"] = str(lock["name"]).replace("self.", f"{lock['class']}.", 1)


def class_of(frame: Frame) -> str:
    """The class of the object whose method runs."""
    owner = frame.locals().get("self")
    return owner.kind if owner is not None else ""


def _taking_line(expression: ast.expr, frame: Frame, sources: Sources) -> int:
    """The line of the frame's function that takes a lock; where another function takes it, the current one."""
    function, line = sources.function(frame), int(getattr(expression, "lineno", 0))
    first, last = getattr(function, "lineno", 1), getattr(function, "end_lineno", None) or frame.line
    return line if first <= line <= min(last, frame.line) else frame.line


def _loops(expression: ast.expr, frame: Frame, sources: Sources) -> bool:
    """Whether the line is in an endless loop that begins after the lock was taken: it is held through all rounds."""
    begun = getattr(expression, "lineno", 0)
    around = [node for node in sources.on_line(frame) if isinstance(node, ast.While) and _is_endless(node)]
    return any((loop.lineno, loop.col_offset) > (begun, getattr(expression, "col_offset", 0)) for loop in around)


def _is_endless(loop: ast.While) -> bool:
    return is_unconditional(loop) and not any(isinstance(node, ast.Break | ast.Return) for node in own_nodes(loop))


class _Taken:
    """What the code of one frame has taken and not given back when it stands at its line."""

    def __init__(self, frame: Frame, sources: Sources) -> None:
        self._frame = frame
        self._sources = sources

    def held(self, inner: Frame | None, wanted: set[str]) -> list[ast.expr]:
        line = self._frame.line
        # Who runs a function of the user from the line has entered the blocks that begin on it.
        entered = inner is not None and is_users(inner.file) and inner.function.rpartition(".")[2] not in _ENTERING
        found: list[ast.expr] = []
        for node in self._sources.on_line(self._frame):
            if not isinstance(node, WITH):
                continue
            contexts = [each for item in node.items for each in self._by_context(item.context_expr)]
            if line > header_end(node) or (entered and node.body[0].lineno <= line):
                found += contexts
            elif node.body[0].lineno <= header_end(node) or len(node.items) > 1:
                before, waits = self._before(contexts, wanted)
                found += before if waits or node.body[0].lineno <= header_end(node) else []
        function = self._sources.function(self._frame)
        taken: dict[str, ast.expr] = {}
        if function is not None:
            self._follow(function, taken, {}, before=line)
        return [*found, *taken.values(), *self._before(self._earlier_on_line(), wanted)[0]]

    def _before(self, expressions: Sequence[ast.expr], wanted: set[str]) -> tuple[list[ast.expr], bool]:
        """Those that come before the one that is waited for, and whether one is."""
        for number, expression in enumerate(expressions):
            if lock_key(resolve(expression, self._frame), ast.unparse(expression)) in wanted:
                return list(expressions[:number]), True
        return list(expressions), False

    def _earlier_on_line(self) -> list[ast.expr]:
        """What statements take that are followed by another one on the same line."""
        line = self._frame.line
        nodes = self._sources.on_line(self._frame)
        statements = [node for node in nodes if isinstance(node, ast.stmt) and node.lineno == node.end_lineno == line]
        single = [node for node in statements if not isinstance(node, (*FUNCTIONS, *WITH, ast.If, ast.For, ast.While))]
        taken: dict[str, ast.expr] = {}
        for statement in sorted(single, key=lambda node: node.col_offset)[:-1]:
            self._follow(ast.Module([statement], []), taken, {}, before=None)
        return list(taken.values())

    def _by_context(self, expression: ast.expr, depth: int = 0) -> list[ast.expr]:
        """What entering a context takes: the lock itself, or what its `__enter__` or generator takes."""
        taken: dict[str, ast.expr] = {}
        if isinstance(expression, ast.Call):
            if (called := self._called(expression)) is not None:
                self._follow(called[0], taken, called[1], before=_first_yield(called[0]), depth=depth + 1)
                around = _around_yield(called[0], called[1]) if depth < _DEPTH else []
                places = [ast.copy_location(copy.copy(each), expression) for each in around]
                taken |= {ast.unparse(lock): lock for each in places for lock in self._by_context(each, depth + 1)}
        elif (value := resolve(expression, self._frame)) is not None and not is_a(value, *LOCKS):
            entering = value.get("__enter__") or value.get("__aenter__")
            if (function := self._sources.definition_of(entering)) is not None:
                names = _bound(function, [expression])
                self._follow(function, taken, names, before=None, depth=depth + 1)
        return [expression, *taken.values()]

    def _follow(
        self,
        function: ast.AST,
        taken: dict[str, ast.expr],
        names: Mapping[str, ast.expr],
        *,
        before: int | None,
        depth: int = 0,
    ) -> None:
        """Keeps account of what is taken and released before a line, also in functions that are called; `names` are
        those of the arguments where the frame stands."""
        nodes = list(own_nodes(function))
        awaited = {id(node.value) for node in nodes if isinstance(node, ast.Await)}
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        for node in sorted(calls, key=lambda call: (call.lineno, call.col_offset)):
            if before is not None and node.lineno >= before:
                continue
            method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            receiver = _named(node.func.value, names) if isinstance(node.func, ast.Attribute) else None
            if method in _TAKING and receiver is not None:
                each = receiver if method == "acquire" or not node.args else _named(node.args[0], names)
                taken[ast.unparse(each)] = each
            elif method == "release" and receiver is not None:
                taken.pop(ast.unparse(receiver), None)
            elif handed := [each for each in node.args if isinstance(each, ast.Attribute) and each.attr == "acquire"]:
                # A thread has taken it for the function that waits for it: `await asyncio.to_thread(lock.acquire)`.
                lock = _named(handed[0].value, names)
                taken |= {ast.unparse(lock): lock} if id(node) in awaited else {}
            elif depth < _DEPTH and (called := self._called(_named(node, names))) is not None:
                runs = isinstance(called[0], ast.FunctionDef) or id(node) in awaited
                self._follow(called[0] if runs else ast.Module([], []), taken, called[1], before=None, depth=depth + 1)

    def _called(self, node: ast.expr) -> tuple[ast.AST, dict[str, ast.expr]] | None:
        """A function of the user that is called, and what its arguments are here."""
        if not isinstance(node, ast.Call):
            return None
        function = self._sources.definition_of(resolve(node.func, self._frame))
        if function is None:
            return None
        method = isinstance(node.func, ast.Attribute) and _takes_self(function)
        owner = [node.func.value] if isinstance(node.func, ast.Attribute) and method else []
        return function, _bound(function, [*owner, *node.args])


def _takes_self(function: ast.AST) -> bool:
    arguments = function.args.args if isinstance(function, FUNCTIONS) else []
    return bool(arguments) and arguments[0].arg == "self"


def _bound(function: ast.AST, arguments: Sequence[ast.expr]) -> dict[str, ast.expr]:
    names = [each.arg for each in function.args.args] if isinstance(function, FUNCTIONS) else []
    return dict(zip(names, arguments, strict=False))


def _first_yield(function: ast.AST) -> int | None:
    return next((node.lineno for node in own_nodes(function) if isinstance(node, ast.Yield)), None)


def _around_yield(function: ast.AST, names: Mapping[str, ast.expr]) -> list[ast.expr]:
    """The contexts in which a generator gives control to its caller, outermost first."""
    place = _first_yield(function)
    blocks = [node for node in own_nodes(function) if isinstance(node, WITH)] if place is not None else []
    inside = [node for node in blocks if node.body[0].lineno <= (place or 0) <= (node.end_lineno or 0)]
    return [_named(item.context_expr, names) for node in inside for item in node.items]


def _named(expression: ast.expr, names: Mapping[str, ast.expr]) -> ast.expr:
    """An expression with the arguments of a function replaced by what they are for its caller."""
    if not names or not any(isinstance(node, ast.Name) and node.id in names for node in ast.walk(expression)):
        return expression
    return _Renaming(names).visit(copy.deepcopy(expression))  # type: ignore[no-any-return]


class _Renaming(ast.NodeTransformer):
    def __init__(self, names: Mapping[str, ast.expr]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._names.get(node.id, node)
