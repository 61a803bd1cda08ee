"""What the current functions will still run: their own code from the current line on, and the functions of the user
that it calls, with the arguments as far as these are known."""

import ast
from collections.abc import Iterator, Sequence

from .objects import Frame, Object, is_a
from .origins import FUNCTIONS, last_name
from .places import is_users
from .resolving import resolve
from .source import Sources, nodes_ahead, nodes_run

_DEPTH = 3
_MOST_CALLED = 60
_WRAPPED = 3
_CALLABLE = ("function", "method", "staticmethod", "classmethod")
Function = ast.FunctionDef | ast.AsyncFunctionDef


class CalledFrame:
    """A function that another one will call: a frame that is not there yet."""

    def __init__(self, file: str, definition: Function, function: Object, given: dict[str, Object]) -> None:
        self.file = file
        self.line = definition.lineno
        self.function = definition.name
        self.definition = definition
        self._around = function.get("__globals__")
        self._values = given

    def locals(self) -> dict[str, Object]:
        return self._values

    def variable(self, name: str) -> Object | None:
        own = self._values.get(name)
        return own if own is not None or self._around is None else dict(self._around.items()).get(name)


def uses_ahead(frame: Frame, inner: Frame | None, sources: Sources) -> Iterator[tuple[Object | None, str]]:
    """Objects that the frame's function can reach, and each method that it will call on them, itself or through others;
    None for what is not known yet. `inner` is the frame that it has called and that has not returned."""
    for value in frame.locals().values():
        yield value, ""
        yield from ((each, "") for each in value.attributes().values())
    for place, call in calls_ahead(frame, inner, sources):
        if isinstance(call.func, ast.Attribute):
            yield resolve(call.func.value, place), call.func.attr


def may_act(frame: Frame, methods: frozenset[str], sources: Sources) -> bool:
    """Whether the frame's function will call one of the methods on something that is not known yet: what it takes out
    of a table, or a variable that has no value so far."""
    if not isinstance(sources.function(frame), FUNCTIONS):
        return False
    called = [node.func for node in nodes_ahead(frame, sources) if isinstance(node, ast.Call)]
    return any(
        isinstance(each, ast.Attribute) and each.attr in methods and resolve(each.value, frame) is None
        for each in called
    )


def later_calls(frames: Sequence[Frame], names: set[str], sources: Sources) -> Iterator[tuple[str, Frame, int]]:
    """Calls of functions of these names that the current functions will make after the line where they are."""
    for frame in (frame for frame in frames if is_users(frame.file)):
        for node in nodes_ahead(frame, sources):
            if isinstance(node, ast.Call) and node.lineno > frame.line and last_name(node.func) in names:
                yield last_name(node.func), frame, node.lineno


def calls_ahead(frame: Frame, inner: Frame | None, sources: Sources) -> Iterator[tuple[Frame, ast.Call]]:
    """Each call that will be made, with the frame that it is made in."""
    below: list[tuple[Frame, list[ast.AST]]] = [(frame, list(nodes_ahead(frame, sources)))]
    repeats = bool(sources.loops_around(frame))
    # What has been called and not returned is a frame of its own, and begins anew only in a loop.
    seen = {_first_line(inner, sources)} if inner is not None and not repeats else set()
    for _ in range(_DEPTH):
        following: list[tuple[Frame, list[ast.AST]]] = []
        for place, nodes in below:
            awaited = {id(node.value) for node in nodes if isinstance(node, ast.Await)}
            for call in (node for node in nodes if isinstance(node, ast.Call)):
                yield place, call
                yield from ((place, ast.Call(each, [], [])) for each in call.args if isinstance(each, ast.Attribute))
                called = _called(call, place, sources)
                # A coroutine that is not awaited here is run by a task of its own.
                if called is None or (isinstance(called.definition, ast.AsyncFunctionDef) and id(call) not in awaited):
                    continue
                if (called.file, called.line) not in seen and len(seen) < _MOST_CALLED:
                    seen.add((called.file, called.line))
                    following.append((called, list(nodes_run(called.definition))))
        below = following


def _first_line(frame: Frame, sources: Sources) -> tuple[str, int]:
    return frame.file, int(getattr(sources.function(frame), "lineno", 0))


def _called(call: ast.Call, place: Frame, sources: Sources) -> CalledFrame | None:
    """The function of the user that a call leads to."""
    function = resolve(call.func, place)
    if function is None or function.kind not in _CALLABLE:
        return None
    for _ in range(_WRAPPED):
        own = function.attributes().get("__wrapped__") if function.kind == "function" else function.get("__func__")
        function = own or function
    code = function.get("__code__") if is_a(function, "function") else None
    file = code.get("co_filename") if code is not None else None
    path = (file.text() if file is not None else "") or ""
    if not path or not is_users(path):
        return None
    definition = sources.definition_of(function)
    if not isinstance(definition, FUNCTIONS):
        return None
    return CalledFrame(path, definition, function, _given(call, definition, place))


def _given(call: ast.Call, definition: Function, place: Frame) -> dict[str, Object]:
    """The values of a function's parameters in a call."""
    names = [each.arg for each in (*definition.args.posonlyargs, *definition.args.args)]
    static = any(isinstance(each, ast.Name) and each.id == "staticmethod" for each in definition.decorator_list)
    found: dict[str, Object] = {}
    if isinstance(call.func, ast.Attribute) and names and names[0] in ("self", "cls") and not static:
        owner = resolve(call.func.value, place)
        found |= {names[0]: owner} if owner is not None else {}
        names = names[1:]
    given = dict(zip(names, call.args, strict=False)) | {word.arg: word.value for word in call.keywords if word.arg}
    return found | {name: value for name, each in given.items() if (value := resolve(each, place)) is not None}
