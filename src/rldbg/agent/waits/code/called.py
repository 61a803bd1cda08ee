"""What the current functions will still run: their own code from the current line on, and the functions of the user
that it calls, with the arguments as far as these are known."""

import ast
import re
from collections.abc import Iterator, Sequence

from ..reading.kernel import Facts
from ..reading.objects import Frame, Object, is_a
from .origins import FUNCTIONS, last_name, names_of, own_nodes
from .places import is_users
from .resolving import resolve
from .source import Sources, methods_in, nodes_ahead, nodes_run, remote_methods

_DEPTH = 3
_MOST_CALLED = 60
_WRAPPED = 3
_REQUESTS = frozenset({"post", "put", "delete", "patch"})
_A_NAME, _MOST_ASKED = re.compile(r"[A-Za-z_]\w{2,40}"), 200
HANDED = "()"
_CALLABLE = ("function", "method", "staticmethod", "classmethod")
Function = ast.FunctionDef | ast.AsyncFunctionDef
_NEXT = {"next": "__next__", "anext": "__anext__"}
_ITERATING = {ast.For: ("__iter__", "__next__"), ast.AsyncFor: ("__aiter__", "__anext__")}


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
    None for what is not known yet, `HANDED` for what it will give to functions of libraries. `inner` is the frame that
    it has called and that has not returned."""
    for value in frame.locals().values():
        yield value, ""
        yield from ((each, "") for each in value.attributes().values())
    anew = _given_anew(frame, sources)
    for place, call in calls_ahead(frame, inner, sources):
        if isinstance(call.func, ast.Attribute):
            known = _root(call.func) not in anew.get(id(call), ())
            yield resolve(call.func.value, place) if known else None, call.func.attr
        given = [resolve(each, place) for each in (*call.args, *(word.value for word in call.keywords))]
        yield from ((value, HANDED) for value in given if value is not None)


def _given_anew(frame: Frame, sources: Sources) -> dict[int, set[str]]:
    """Calls in loops that begin after the line, with the variables that the loop gives another value before."""
    found: dict[int, set[str]] = {}
    for loop in nodes_ahead(frame, sources):
        if not isinstance(loop, ast.For | ast.AsyncFor) or loop.lineno <= frame.line <= (loop.end_lineno or 0):
            continue
        names = {each.id for each in ast.walk(loop.target) if isinstance(each, ast.Name)}
        for node in (inner for each in loop.body for inner in ast.walk(each)):
            found.setdefault(id(node), set()).update(names)
    return found


def _root(expression: ast.expr) -> str:
    """`state` of `state["future"].set_result`."""
    while isinstance(expression, ast.Attribute | ast.Subscript):
        expression = expression.value
    return expression.id if isinstance(expression, ast.Name) else ""


def may_act(frame: Frame, methods: frozenset[str], sources: Sources, table: str = "") -> bool:
    """Whether the frame's function will call one of the methods, or hand it on, on something that is not known yet:
    what it takes out of a table, or of this one, or a variable that has no value so far."""
    function = sources.function(frame)
    if not isinstance(function, FUNCTIONS):
        return False
    anew = _given_anew(frame, sources)
    called = [
        (each, _root(each) in anew.get(id(node), ()))
        for node in nodes_ahead(frame, sources)
        for each in methods_in(node)
        if each.attr in methods
    ]
    return any(
        (changes or resolve(each.value, frame) is None) and (not table or table in names_of(each.value, function))
        for each, changes in called
    )


def later_calls(frames: Sequence[Frame], names: set[str], sources: Sources) -> Iterator[tuple[str, Frame, int]]:
    """Calls of functions of these names that the current functions will make after the line where they are."""
    for frame in (frame for frame in frames if is_users(frame.file)):
        for node in nodes_ahead(frame, sources):
            if isinstance(node, ast.Call) and node.lineno > frame.line and last_name(node.func) in names:
                yield last_name(node.func), frame, node.lineno


def remote_ahead(frames: Sequence[Frame], sources: Sources) -> dict[str, Facts]:
    """Methods of Ray actors that the current functions will call after the line where they are, themselves or by a
    function of their files: where that is."""
    own = [frame for frame in frames if is_users(frame.file)]
    functions = [each for file in dict.fromkeys(frame.file for frame in own) for each in sources.functions(file)]
    methods = {each.name: list(remote_methods(own_nodes(each))) for each in functions}
    found: dict[str, Facts] = {}
    for frame in own:
        for node in nodes_ahead(frame, sources):
            line = getattr(node, "lineno", 0)
            called = methods.get(last_name(node.func), []) if isinstance(node, ast.Call) else []
            for name in (*remote_methods([node]), *called) if line > frame.line else ():
                found.setdefault(name, {"file": frame.file, "line": line, "function": frame.function})
    return found


def paths_ahead(frames: Sequence[Frame], sources: Sources) -> Iterator[Facts]:
    """Paths of servers, or addresses that end in them, in the calls that the current functions will make after the line
    where they are."""
    for frame in (frame for frame in frames if is_users(frame.file)):
        for node in nodes_ahead(frame, sources):
            given = (*node.args, *(word.value for word in node.keywords)) if isinstance(node, ast.Call) else ()
            for text in (inner.value for each in given for inner in ast.walk(each) if isinstance(inner, ast.Constant)):
                if (
                    isinstance(text, str)
                    and "/" in text
                    and " " not in text
                    and getattr(node, "lineno", 0) > frame.line
                ):
                    place = {"file": frame.file, "line": getattr(node, "lineno", 0), "function": frame.function}
                    yield place | {"path": text}


def names_asked_for(frames: Sequence[Frame], sources: Sources) -> list[Facts]:
    """The last words of paths, and plain names, that functions in the files of current ones give to others: what a
    server may be asked for."""
    found: dict[tuple[str, str], Facts] = {}
    for file in dict.fromkeys(frame.file for frame in frames if is_users(frame.file)):
        for function in sources.functions(file):
            for call in (node for node in own_nodes(function) if isinstance(node, ast.Call)):
                for text in _words_of(call):
                    word = text.rpartition("/")[2]
                    if _A_NAME.fullmatch(word) and len(found) < _MOST_ASKED:
                        place = {"file": file, "line": call.lineno, "function": function.name}
                        found.setdefault((word, function.name), place | {"name": word})
    return list(found.values())


def _words_of(call: ast.Call) -> Iterator[str]:
    """Plain texts that a call is given; also the method of a request: `method="POST"`, `client.post(path)`."""
    given = [*call.args, *(word.value for word in call.keywords if word.arg == "method")]
    yield from (each.value for each in given if isinstance(each, ast.Constant) and isinstance(each.value, str))
    if isinstance(call.func, ast.Attribute) and call.func.attr in _REQUESTS:
        yield call.func.attr.upper()


def routes_to(names: set[str], file: str, sources: Sources) -> list[str]:
    """The paths of requests for which a server calls functions of these names: `add_post("/resume", self.resume)`, or
    `@app.post("/resume")` above one."""
    calls = [call for call in sources.calls(file) if any(last_name(each) in names for each in call.args)]
    above = [each for function in sources.functions(file) if function.name in names for each in function.decorator_list]
    calls += [each for each in above if isinstance(each, ast.Call)]
    texts = [each.value for call in calls for each in call.args if isinstance(each, ast.Constant)]
    return sorted({text for text in texts if isinstance(text, str) and text.startswith("/") and text != "/"})


def calls_ahead(frame: Frame, inner: Frame | None, sources: Sources) -> Iterator[tuple[Frame, ast.Call]]:
    """Each call that will be made, with the frame that it is made in; also assignments to what objects consist of."""
    below: list[tuple[Frame, list[ast.AST]]] = [(frame, list(nodes_ahead(frame, sources)))]
    repeats = bool(sources.loops_around(frame))
    # What has been called and not returned is a frame of its own, and begins anew only in a loop.
    seen = {_first_line(inner, sources)} if inner is not None and not repeats else set()
    for _ in range(_DEPTH):
        following: list[tuple[Frame, list[ast.AST]]] = []
        for place, nodes in below:
            yield from ((place, change) for node in nodes for change in _changes(node))
            awaited = {id(node.value) for node in nodes if isinstance(node, ast.Await)}
            for call in (each for node in nodes for each in _calls_of(node)):
                yield place, call
                yield from ((place, ast.Call(each, [], [])) for each in call.args if isinstance(each, ast.Attribute))
                called = called_function(call, place, sources)
                # A coroutine that is not awaited here is run by a task of its own.
                if called is None or (isinstance(called.definition, ast.AsyncFunctionDef) and id(call) not in awaited):
                    continue
                if (called.file, called.line) not in seen and len(seen) < _MOST_CALLED:
                    seen.add((called.file, called.line))
                    following.append((called, list(nodes_run(called.definition))))
        below = following


def _calls_of(node: ast.AST) -> Iterator[ast.Call]:
    """A call, and what Python itself calls for a statement: the methods of what is iterated over."""
    if isinstance(node, ast.Call):
        yield node
        if isinstance(node.func, ast.Name) and node.func.id in _NEXT and node.args:
            yield ast.Call(ast.Attribute(node.args[0], _NEXT[node.func.id]), [], [])
    elif isinstance(node, ast.For | ast.AsyncFor):
        for method in _ITERATING[type(node)]:
            yield ast.Call(ast.Attribute(node.iter, method), [], [])


def assignment(attribute: str) -> str:
    """What an assignment to an attribute counts as: a method of its owner."""
    return f"{attribute}="


def _changes(node: ast.AST) -> Iterator[ast.Call]:
    """Assignments to attributes and to elements, as calls of methods of their owners."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
    for target in (each for whole in targets for each in (whole.elts if isinstance(whole, ast.Tuple) else [whole])):
        if isinstance(target, ast.Attribute):
            yield ast.Call(ast.Attribute(target.value, assignment(target.attr)), [], [])
        elif isinstance(target, ast.Subscript):
            yield ast.Call(ast.Attribute(target.value, "__setitem__"), [], [])


def _first_line(frame: Frame, sources: Sources) -> tuple[str, int]:
    return frame.file, int(getattr(sources.function(frame), "lineno", 0))


def called_function(call: ast.Call, place: Frame, sources: Sources) -> CalledFrame | None:
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
