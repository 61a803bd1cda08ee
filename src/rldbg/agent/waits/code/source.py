"""What the source code says about a line: the calls on it, the `with` blocks around it, other uses of an object."""

import ast
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..reading.objects import Frame, Object, exception_text, is_a
from .origins import FUNCTIONS, last_name, names_of, own_nodes, parsed
from .places import is_users
from .resolving import holds, resolve, texts_of, values_in
from .ways_out import exit_test, is_unconditional, lasts_by_clock

WITH = (ast.With, ast.AsyncWith)
_FILE_CALLS = ("os.read", "os.write", "os.fdopen", "os.sendfile")
_WRAPPED = 3
_TAKES = frozenset({"read", "read1", "readinto", "readline", "readlines", "recv", "recv_into", "pop", "popleft"})
SETTING = frozenset({"set", "add", "append", "compare_set", "multi_set", "queue_push"})


@dataclass(frozen=True)
class Call:
    """`receiver.method(...)`, or `with receiver:` as method `__enter__`."""

    receiver: ast.expr | None
    method: str
    arguments: tuple[ast.expr, ...] = ()

    @property
    def name(self) -> str:
        return ast.unparse(self.receiver) if self.receiver is not None else ""


class Sources:
    """Source files as a process sees them; each is read and parsed once."""

    def __init__(self, pid: int) -> None:
        self._root = f"/proc/{pid}/root"
        self._ahead: dict[tuple[str, int], tuple[ast.AST, ...]] = {}
        self.tree = functools.lru_cache(maxsize=200)(self._tree)
        self.definitions = functools.lru_cache(maxsize=200)(self._definitions_in)
        self._nodes = functools.lru_cache(maxsize=2000)(self._nodes_at)
        self.calls = functools.lru_cache(maxsize=200)(self._calls_in)
        self.functions = functools.lru_cache(maxsize=200)(self._functions_in)
        self.classes = functools.lru_cache(maxsize=200)(self._classes_in)
        self._methods = functools.lru_cache(maxsize=200)(self._methods_in)

    def _tree(self, file: str) -> ast.Module | None:
        for path in (file, f"{self._root}{file}"):
            try:
                return ast.parse(Path(path).read_bytes())
            except (OSError, SyntaxError, ValueError, RecursionError):
                continue
        return None

    def calls_at(self, frame: Frame) -> list[Call]:
        """Calls on the line, and the contexts of a `with` that begins there; inner ones first."""
        found: list[Call] = []
        for node in self.on_line(frame):
            if isinstance(node, ast.Call):
                # A method that is handed on, as in `iter(queue.get, None)`.
                found += [Call(each.value, each.attr) for each in node.args if isinstance(each, ast.Attribute)]
                if isinstance(node.func, ast.Attribute):
                    found.append(Call(node.func.value, node.func.attr, tuple(node.args)))
                elif isinstance(node.func, ast.Name):
                    found.append(Call(None, node.func.id, tuple(node.args)))
            elif isinstance(node, WITH) and frame.line <= header_end(node):
                found += [Call(item.context_expr, "__enter__") for item in node.items]
        return found[::-1]

    def awaited(self, frame: Frame) -> ast.expr | None:
        """What the innermost `await` on the line awaits."""
        found = [node.value for node in self.on_line(frame) if isinstance(node, ast.Await)]
        return found[-1] if found else None

    def assigned(self, frame: Frame, name: str) -> ast.Call | None:
        """The last call before the line whose result the frame's function gave this name."""
        function = self.function(frame)
        nodes = [node for node in own_nodes(function) if isinstance(node, ast.Assign)] if function is not None else []
        calls = [
            node.value
            for node in nodes
            if isinstance(node.value, ast.Call)
            and node.lineno <= frame.line
            and any(ast.unparse(target) == name for target in node.targets)
        ]
        return calls[-1] if calls else None

    def loops_around(self, frame: Frame) -> list[ast.While | ast.For | ast.AsyncFor]:
        """The loops of the frame's function that the line is in, outer ones first."""
        inside = list(self.on_line(frame))
        within = max((n for n, node in enumerate(inside) if isinstance(node, FUNCTIONS)), default=-1)
        return [node for node in inside[within + 1 :] if isinstance(node, ast.While | ast.For | ast.AsyncFor)]

    def polled(self, frame: Frame) -> str:
        """What a loop around the line looks for or tries again and again: "until `CONDITION` (NAME = VALUE)"."""
        loops = self.loops_around(frame)
        if not loops:
            return ""
        if tried := _tried(loops[-1], frame):
            return tried
        test, word = self.polled_test(frame)
        return f"{word} `{ast.unparse(test)[:100]}`{values_in(test, frame)}" if test is not None else ""

    def polled_test(self, frame: Frame) -> tuple[ast.expr | None, str]:
        """The condition of the innermost loop around the line, and whether it runs "while" or "until" it holds."""
        loops = self.loops_around(frame)
        if not loops or not isinstance(loops[-1], ast.While):
            return None, ""
        test = loops[-1].test
        if isinstance(test, ast.Constant) or lasts_by_clock(loops[-1]):
            ends = exit_test(loops[-1])
            return (ends, "until") if ends is not None else (None, "")
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return test.operand, "until"
        return (None, "") if _takes_next(test) else (test, "while")

    def awaited_condition(self, frame: Frame) -> dict[str, str | bool]:
        """What has to hold for the wait of a condition on the line to end (`until`): what `wait_for` is given, or the
        loop around `wait`; and whether it is `met`, so that only the notification is missing."""
        for call in self.calls_at(frame):
            if call.method == "wait_for" and call.arguments:
                given = call.arguments[0]
                if not isinstance(given, ast.Lambda):
                    return {"until": f"until `{ast.unparse(given)[:100]}()`", "met": False}
                text = f"until `{ast.unparse(given.body)[:100]}`{values_in(given.body, frame)}"
                return {"until": text, "met": holds(given.body, frame) is True}
        test, word = self.polled_test(frame)
        met = test is not None and holds(test, frame) is (word == "until")
        return {"until": self.polled(frame), "met": met}

    def spins(self, frame: Frame) -> str:
        """What a loop around the line looks for without doing anything else."""
        loops = [node for node in self.on_line(frame) if isinstance(node, ast.While)]
        idle = bool(loops) and all(isinstance(each, ast.Pass | ast.Continue) for each in loops[-1].body)
        return self.polled(frame) if idle else ""

    def remote_calls(self, frame: Frame) -> Iterator[str]:
        """Methods of Ray actors that the frame's function calls."""
        function = self.function(frame)
        return remote_methods(own_nodes(function) if function is not None else ())

    def files_used(self, frame: Frame) -> Iterator[int]:
        """Descriptors that the frame's function gives to functions of `os`."""
        function = self.function(frame)
        for node in own_nodes(function) if function is not None else ():
            if isinstance(node, ast.Call) and node.args and ast.unparse(node.func) in _FILE_CALLS:
                value = resolve(node.args[0], frame)
                if value is not None and (number := value.number()) is not None:
                    yield number

    def keys_set(self, frame: Frame) -> list[str]:
        """Keys of torch.distributed stores that the frame's function sets."""
        function = self.function(frame)
        found = []
        for node in ast.walk(function) if isinstance(function, FUNCTIONS) else ():
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
                continue
            if node.func.attr in SETTING and is_a(resolve(node.func.value, frame), "Store"):
                found += texts_of(node.args[0], frame)
        return found

    def ahead(self, frame: Frame) -> tuple[ast.AST, ...]:
        """Many tasks are at the same line."""
        place = frame.file, frame.line
        if place not in self._ahead:
            function, loops = self.function(frame), self.loops_around(frame)
            other_ways = {id(node) for each in self._other_ways(frame) for node in ast.walk(each)}

            def is_ahead(node: ast.AST) -> bool:
                line = int(getattr(node, "end_lineno", None) or 0)
                again = any(_spans(loop, line) for loop in loops)
                return again or (line >= frame.line and id(node) not in other_ways)

            self._ahead[place] = tuple(nodes_run(function, is_ahead)) if function is not None else ()
        return self._ahead[place]

    def _other_ways(self, frame: Frame) -> Iterator[ast.stmt]:
        """What is run instead of the branch that the line is in."""
        for node in self.on_line(frame):
            if isinstance(node, ast.If) and any(map(spanning(frame.line), node.body)):
                yield from node.orelse

    def on_line(self, frame: Frame) -> tuple[ast.AST, ...]:
        return self._nodes(frame.file, frame.line)

    def _nodes_at(self, file: str, line: int) -> tuple[ast.AST, ...]:
        """Everything that spans a line, outer things first."""
        found: list[ast.AST] = []
        below: list[ast.AST] = [tree] if (tree := self.tree(file)) is not None else []
        while below:
            inside = [child for node in below for child in ast.iter_child_nodes(node)]
            below = [node for node in inside if _spans(node, line)]
            found += [node for node in below if hasattr(node, "lineno")]
        return tuple(found)

    def definition(self, file: str, name: str) -> ast.AST | None:
        """The function of a file by its qualified name."""
        return self.definitions(file).get(name.replace(".<locals>", ""))

    def definition_of(self, value: Object | None) -> ast.AST | None:
        """The source of a function of the user."""
        for _ in range(_WRAPPED):
            inner = value.get("__wrapped__") or value.get("__func__") if value is not None else None
            value = inner or value
        code = value.get("__code__") if is_a(value, "function") and value is not None else None
        file, name = (code.get("co_filename"), code.get("co_qualname")) if code is not None else (None, None)
        path = (file.text() if file is not None else "") or ""
        called = (name.text() if name is not None else "") or ""
        return self.definition(path, called) if path and is_users(path) else None

    def _definitions_in(self, file: str) -> dict[str, ast.AST]:
        tree = self.tree(file)
        return dict(_qualified(tree, "")) if tree is not None else {}

    def names(self, frame: Frame) -> Iterator[tuple[Object, str]]:
        """Objects that the code of the frame's function names, and how."""
        function = self.function(frame)
        for node in own_nodes(function) if function is not None else ():
            if isinstance(node, ast.Name | ast.Attribute) and (value := resolve(node, frame)) is not None:
                yield value, ast.unparse(node)

    def function(self, frame: Frame) -> ast.AST | None:
        """The innermost function around the line, else the module."""
        inside = [node for node in self.on_line(frame) if isinstance(node, FUNCTIONS)]
        return inside[-1] if inside else self.tree(frame.file)

    def functions_calling(self, frame: Frame, name: str, methods: frozenset[str]) -> list[str]:
        """Functions that call one of the methods on something of this name, as `name:line`: in the whole file, or
        around the frame where the name is a local one."""
        found: dict[str, str] = {}
        for function, method, line in self._method_calls(frame, name):
            if method in methods:
                found.setdefault(function, f"{function}:{line}")
        # A constructor has run before.
        return [line for function, line in found.items() if function != "__init__"] or list(found.values())

    def may_use(self, frame: Frame, name: str, methods: frozenset[str]) -> bool:
        """Whether the class of the current method may call one of the methods on its attribute. It does not where it
        only hands it to actors of Ray; where it never names it, another class may."""
        around = [each for each in self._classes_in(frame.file) if each.lineno <= frame.line <= (each.end_lineno or 0)]
        inner = max(around, key=lambda each: each.lineno, default=None)
        nodes = list(ast.walk(inner)) if inner is not None else []
        named = [node for node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node) == name]
        read = {id(node) for node in named if isinstance(node.ctx, ast.Load)}
        called = [node for node in nodes if isinstance(node, ast.Attribute) and id(node.value) in read]
        remote = [node for node in nodes if isinstance(node, ast.Call) and last_name(node.func) == "remote"]
        given = {id(each) for call in remote for each in (*call.args, *(word.value for word in call.keywords))}
        used = {id(node.value) for node in called if node.attr not in methods}
        return not named or bool(read - given - used)

    def keys_written(self, file: str, functions: Sequence[str]) -> dict[str, str]:
        """The keys of stores that functions (`name:line`) set, as they are written there."""
        lines = {int(each.rpartition(":")[2]): each for each in functions}
        calls = [call for call in self._calls_in(file) if call.lineno in lines and call.args]
        setting = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr in SETTING]
        return {lines[call.lineno]: ast.unparse(call.args[0])[:80] for call in setting}

    def functions_keeping(self, frame: Frame, name: str) -> list[str]:
        """Functions that acquire a lock of this name and do not release it themselves, as `name:line`."""
        calls = list(self._method_calls(frame, name))
        released = {function for function, method, _ in calls if method == "release"}
        taken = {f: f"{f}:{line}" for f, method, line in calls if method == "acquire" and f not in released}
        return list(taken.values())

    def _calls_in(self, file: str) -> tuple[ast.Call, ...]:
        tree = self.tree(file)
        return tuple(node for node in ast.walk(tree) if isinstance(node, ast.Call)) if tree is not None else ()

    def _functions_in(self, file: str) -> tuple[ast.FunctionDef | ast.AsyncFunctionDef, ...]:
        tree = self.tree(file)
        return tuple(node for node in ast.walk(tree) if isinstance(node, FUNCTIONS)) if tree is not None else ()

    def _classes_in(self, file: str) -> tuple[ast.ClassDef, ...]:
        tree = self.tree(file)
        return tuple(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)) if tree is not None else ()

    def is_called_nowhere(self, frame: Frame, name: str, methods: frozenset[str]) -> bool:
        """Whether no line of the frame's file calls one of the methods on an attribute of this name, or hands it on."""
        attribute, tree = parsed(name), self.tree(frame.file)
        if not isinstance(attribute, ast.Attribute) or tree is None:
            return False
        every = list(ast.walk(tree))
        called = [node.func for node in every if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
        harmless = {id(function.value) for function in called if function.attr not in methods}
        targets = [target for node in every if isinstance(node, ast.Assign) for target in node.targets]
        harmless |= {id(each) for target in targets for each in ast.walk(target)}
        harmless |= {id(item.context_expr) for node in every if isinstance(node, WITH) for item in node.items}
        same = [node for node in every if isinstance(node, ast.Attribute) and node.attr == attribute.attr]
        return all(id(node) in harmless for node in same)

    def _methods_in(self, file: str) -> tuple[tuple[ast.AST, frozenset[str], str, int], ...]:
        """Function, last names of the object, method and line of each call of a method in a file, also of one that is
        handed on to be called."""
        return tuple(
            (function, names_of(method.value, function), method.attr, method.lineno)
            for function in self.functions(file)
            for node in own_nodes(function)
            for method in methods_in(node)
        )

    def _method_calls(self, frame: Frame, name: str) -> Iterator[tuple[str, str, int]]:
        """Function, method and line of each call of a method on something of this name."""
        expression, within = parsed(name), self.function(frame)
        wanted = names_of(expression, within) if within is not None else frozenset()
        local = wanted & frame.locals().keys() if not isinstance(expression, ast.Attribute) else frozenset()
        around = [node for node in self.on_line(frame) if isinstance(node, FUNCTIONS)]
        inside = set(map(id, ast.walk(around[0]))) if around else set()
        for function, owners, method, line in self._methods(frame.file):
            known = owners & (wanted - local) or (owners & local and id(function) in inside)
            if known and isinstance(function, FUNCTIONS):
                yield function.name, method, line


def methods_in(node: ast.AST) -> list[ast.Attribute]:
    """The method that a call calls, and those that it hands on: `loop.call_soon(queue.put_nowait, item)`."""
    given = (node.func, *node.args) if isinstance(node, ast.Call) else ()
    return [each for each in given if isinstance(each, ast.Attribute)]


def without_options(node: ast.expr) -> ast.expr:
    """The method of `method.options(...).remote(...)`."""
    called = node.func if isinstance(node, ast.Call) else None
    return called.value if isinstance(called, ast.Attribute) and called.attr == "options" else node


def _takes_next(test: ast.expr) -> bool:
    """Whether a loop takes what it works on in its condition, and ends once nothing is left: it looks for nothing."""
    first = test.left if isinstance(test, ast.Compare) else test
    if isinstance(test, ast.Compare):
        nothing = test.comparators[0]
        if not (
            isinstance(nothing, ast.Constant) and not nothing.value and isinstance(test.ops[0], ast.NotEq | ast.IsNot)
        ):
            return False
    taken = first.value if isinstance(first, ast.NamedExpr) else first
    return isinstance(taken, ast.Call) and last_name(taken.func) in _TAKES


def _tried(loop: ast.While | ast.For | ast.AsyncFor, frame: Frame) -> str:
    """What a loop tries again after each exception, with what the handler has noted of the last one."""
    for node in own_nodes(loop):
        calls = [each for each in own_nodes(node) if isinstance(each, ast.Call)] if isinstance(node, ast.Try) else []
        if not isinstance(node, ast.Try) or not node.handlers or not calls or _spans_any(node.body, frame.line):
            continue
        if not _ends_with(loop, node):
            continue
        kinds = [ast.unparse(handler.type) for handler in node.handlers if handler.type is not None]
        noted = [target for handler in node.handlers for each in handler.body for target in _targets(each)]
        caught = [value for handler in node.handlers if (value := frame.variable(handler.name or "")) is not None]
        texts = [exception_text(value) for value in caught if is_a(value, "BaseException")]
        after = f"after each {' or '.join(kinds)[:80]}" if kinds else "after each exception"
        last = f" (the last: {texts[0]})" if texts else values_in(ast.List(list(noted)), frame)
        return f"that tries `{ast.unparse(calls[0])[:100]}` again {after}{last}"
    return ""


def _ends_with(loop: ast.While | ast.For | ast.AsyncFor, tried: ast.Try) -> bool:
    """Whether a loop is over once what it tries has gone well; who only takes what is there goes on to the rest."""
    if not is_unconditional(loop):
        return True
    well = (inner for each in (*tried.body, *tried.orelse) for inner in (each, *own_nodes(each)))
    after = [node for node in loop.body if node.lineno > (tried.end_lineno or 0)]
    leaves = (inner for each in after for inner in (each, *own_nodes(each)))
    return any(isinstance(node, ast.Break | ast.Return) for node in (*well, *leaves))


def _targets(node: ast.stmt) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else []


def _spans_any(body: list[ast.stmt], line: int) -> bool:
    return any(_spans(node, line) for node in body)


def _qualified(tree: ast.AST, within: str) -> Iterator[tuple[str, ast.AST]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            name = f"{within}{node.name}"
            if isinstance(node, FUNCTIONS):
                yield name, node
            yield from _qualified(node, f"{name}.")
        elif not isinstance(node, ast.expr):
            yield from _qualified(node, within)


def remote_methods(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Names of the methods of Ray actors that are called there."""
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr == "remote":
            called = without_options(node.value)
            if isinstance(called, ast.Attribute):
                yield called.attr


def nodes_ahead(frame: Frame, sources: Sources) -> Iterator[ast.AST]:
    """What the frame's function still runs: what ends on the current line or later, and the loops around it."""
    return iter(sources.ahead(frame))


def nodes_run(function: ast.AST, is_ahead: Callable[[ast.AST], bool] = lambda _: True) -> Iterator[ast.AST]:
    """What a function runs itself: its own code, and that of functions inside of it which it calls or awaits; one that
    is handed to a thread or made a task is run by others."""
    own = [node for node in own_nodes(function) if is_ahead(node)]
    awaited = [node.value for node in own if isinstance(node, ast.Await) and isinstance(node.value, ast.Call)]
    calls = [node for node in own if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    begun, run = ({call.func.id for call in each if isinstance(call.func, ast.Name)} for each in (calls, awaited))
    yield from own
    for inner in ast.iter_child_nodes(function):
        if isinstance(inner, FUNCTIONS) and inner.name in (begun if isinstance(inner, ast.FunctionDef) else run):
            yield from nodes_run(inner)


def spanning(line: int) -> Callable[[ast.AST], bool]:
    return functools.partial(_spans, line=line)


def _spans(node: ast.AST, line: int) -> bool:
    """Nodes without a place of their own (arguments, contexts) are looked into."""
    return getattr(node, "lineno", 0) <= line <= (getattr(node, "end_lineno", None) or line)


def header_end(node: ast.With | ast.AsyncWith) -> int:
    return max(item.context_expr.end_lineno or item.context_expr.lineno for item in node.items)
