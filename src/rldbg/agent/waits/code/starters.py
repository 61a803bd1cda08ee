"""Which lines start a thread, process or task for a function: who it was that would have acted, where it has ended and
no object remembers it."""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..reading.kernel import Facts
from ..reading.objects import Frame, Object, called_on, is_a
from .origins import FUNCTIONS, last_name, names_of, own_nodes
from .places import is_users
from .resolving import resolve
from .source import Sources, nodes_ahead, spanning

# By the last name of what is called: what it starts, and where the function stands among its arguments.
_STARTS: dict[str, tuple[str, int]] = {
    "Thread": ("thread", 1),
    "Timer": ("thread", 1),
    "Process": ("process", 1),
    "submit": ("work of a pool", 0),
    "apply_async": ("work of a pool", 0),
    "run_in_executor": ("work of a pool", 1),
    "to_thread": ("work of a pool", 0),
    "create_task": ("task", 0),
    "ensure_future": ("task", 0),
    "run_coroutine_threadsafe": ("task", 0),
    "start_soon": ("task", 0),
}
_ALWAYS_RUN = (ast.With, ast.AsyncWith, ast.Expr, ast.Assign, ast.AnnAssign, ast.Try, ast.Return)
# Names that mean something else in most places.
TOO_COMMON = frozenset({"run", "__init__", "main"})
_CALLED_THROUGH = 3
# Where those that run what they were handed keep it.
_HANDED_AS = {"concurrent/futures/thread.py": "fn", "/threading.py": "_target"}


def starters(functions: Sequence[str], place: Frame, frames: Sequence[Frame], sources: Sources) -> list[Facts]:
    """For functions of the place's file (as `name:line`): what is started to run one of them or what calls one, its
    name and its line, and whether a current function has `passed` that line, or comes to it `later`."""
    file = place.file
    lines = [int(each.partition(":")[2]) for each in functions]
    names = {each.partition(":")[0] for each in functions}
    leading = leading_to(names, file, sources, lines) if functions else set()
    begun = [(call, started) for call in sources.calls(file) if leading and (started := _started(call, leading))]
    begun += _subclasses(leading, file, sources)
    own = [frame for frame in frames if begun and frame.file == file]
    passed = {line for frame in own for line in _lines_passed(frame, sources)}
    unkept = _unkept(file, sources) if begun else set()
    later = {each["line"] for each in starts_ahead(own, sources) if not each["again"]}
    found = [
        started
        | {
            "file": file,
            "line": call.lineno,
            "passed": call.lineno in passed,
            "later": call.lineno in later,
            "unkept": id(call) in unkept,
        }
        for call, started in begun
    ]
    return sorted(found, key=lambda each: not each["passed"])[:3]


def starts_ahead(frames: Sequence[Frame], sources: Sources) -> list[Facts]:
    """The lines of current functions that will start a thread, process or task; `again`, in the next round of a loop
    alone."""
    own = [frame for frame in frames if is_users(frame.file)]
    found = []
    for number, frame in enumerate(own):
        # Functions that it has called and that have not returned begin anew only in a loop.
        begun = {id(node) for inner in own[:number] for node in ast.walk(sources.function(inner) or ast.Pass())}
        for node in nodes_ahead(frame, sources):
            if isinstance(node, ast.Call) and last_name(node.func) in _STARTS and not _has_begun(node, frame.line):
                again = node.lineno <= frame.line and any(map(spanning(node.lineno), sources.loops_around(frame)))
                if again or id(node) not in begun:
                    found.append({"file": frame.file, "line": node.lineno, "again": again})
    return found


def _has_begun(call: ast.Call, line: int) -> bool:
    """Whether a call on the current line, which waits, is over: starting something does not wait itself, and comes only
    after its own arguments."""
    waits = ast.Await if _STARTS[last_name(call.func)][0] == "task" else ast.Call
    given = (*call.args, *(word.value for word in call.keywords))
    return spanning(line)(call) and not any(isinstance(node, waits) for each in given for node in ast.walk(each))


@dataclass(frozen=True)
class SourceLine:
    """A line of the source that no thread is at: a frame without values."""

    file: str
    line: int
    function: str

    def locals(self) -> dict[str, Object]:
        return {}

    def variable(self, name: str) -> Object | None:
        return None


def methods_handed(file: str, method: str, sources: Sources) -> Iterator[tuple[ast.Attribute, SourceLine]]:
    """Lines of a file that hand a method of this name to a thread or a pool."""
    for function in sources.functions(file):
        for call in (node for node in own_nodes(function) if isinstance(node, ast.Call)):
            if last_name(call.func) not in _STARTS:
                continue
            for each in (*call.args, *(word.value for word in call.keywords)):
                if isinstance(each, ast.Attribute) and each.attr == method:
                    yield each, SourceLine(file, call.lineno, function.name)


def handed_function(frame: Frame, owner: Object) -> Object | None:
    """What a thread or a pool was handed to run, where the frame is the one that runs it."""
    name = frame.function.rpartition(".")[2]
    if name != "run" or not frame.file.endswith(tuple(_HANDED_AS)):
        return None
    found = owner.get(next(each for file, each in _HANDED_AS.items() if frame.file.endswith(file)))
    for _ in range(_CALLED_THROUGH):
        if found is None or not is_a(found, "partial"):
            return found
        function, given = found.get("func"), found.get("args")
        # `asyncio.to_thread` runs it in the context of its caller.
        in_context = given.elements()[:1] if given is not None and is_a(called_on(function), "Context") else []
        found = in_context[0] if in_context else function
    return found


Given = tuple[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, int | str]
"""A function that is started with an object, or a class that is made with it, and where it is among the arguments."""


def given_objects(wanted: set[int], stacks: Sequence[Sequence[Frame]], sources: Sources) -> dict[int, list[Given]]:
    """For objects by their addresses, to what the lines of current functions hand them over."""
    found: dict[int, list[Given]] = {}
    seen: set[tuple[str, int, tuple[int, ...]]] = set()
    for frame in (frame for frames in stacks for frame in frames if wanted and is_users(frame.file)):
        # Many threads are at the same line of the same object.
        same = (frame.file, frame.line, tuple(value.address for value in frame.locals().values()))
        function = sources.function(frame) if same not in seen else None
        seen.add(same)
        calls = [node for node in own_nodes(function) if isinstance(node, ast.Call)] if function is not None else []
        for call in calls:
            for each, value, position in _handed(call, frame, sources):
                if value.address in wanted:
                    found.setdefault(value.address, []).append((each, position))
    return found


def functions_given(given: Sequence[Given], methods: frozenset[str]) -> list[str]:
    """Functions that call one of the methods on what they or their objects were given, as `name:line`."""
    found: dict[str, None] = {}
    for target, position in given:
        if isinstance(target, ast.ClassDef):
            found |= dict.fromkeys(_methods_using(target, set(_kept_as(target, position)), methods))
        else:
            found |= dict.fromkeys(_lines_calling(target, position, methods))
    return list(found)


def _handed(
    call: ast.Call, frame: Frame, sources: Sources
) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, Object, int | str]]:
    """What a call starts or makes, with each argument that is known."""
    made = [each for each in sources.classes(frame.file) if each.name == last_name(call.func)]
    target, arguments = _started_with(call)
    if made:
        arguments = [*enumerate(call.args), *((word.arg, word.value) for word in call.keywords if word.arg)]
    named = [each for each in sources.functions(frame.file) if target is not None and each.name == last_name(target)]
    for position, expression in arguments if made or named else ():
        if (value := resolve(expression, frame)) is not None:
            yield from ((each, value, position) for each in (*made, *named))


def _started_with(call: ast.Call) -> tuple[ast.expr | None, list[tuple[int | str, ast.expr]]]:
    """The function that a call starts in a thread, process or task, and its arguments."""
    what, position = _STARTS.get(last_name(call.func), ("", 0))
    words = {word.arg: word.value for word in call.keywords if word.arg}
    target = words.get("target") or (call.args[position] if what and len(call.args) > position else None)
    if target is None or not what:
        return None, []
    given, named = list(call.args[position + 1 :]), {}
    if isinstance(target, ast.Call):
        given, named = list(target.args), {word.arg: word.value for word in target.keywords if word.arg}
        target = target.func
    if isinstance(listed := words.get("args"), ast.Tuple | ast.List):
        given = list(listed.elts)
    return target, [*enumerate(given), *named.items()]


def _kept_as(made: ast.ClassDef, position: int | str) -> Iterator[str]:
    """Attributes in which the constructor of a class keeps one of its arguments."""
    for function in made.body:
        if not isinstance(function, FUNCTIONS) or function.name != "__init__":
            continue
        name = _parameter(function, position)
        for node in own_nodes(function):
            for target, value in _assigned(node):
                if isinstance(target, ast.Attribute) and name and name == last_name(value):
                    yield target.attr


def _assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What is assigned to what; of several at once, one by one."""
    for target in node.targets if isinstance(node, ast.Assign) else ():
        value = node.value if isinstance(node, ast.Assign) else target
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            yield from zip(target.elts, value.elts, strict=False)
        else:
            yield target, value


def _methods_using(made: ast.ClassDef, kept: set[str], methods: frozenset[str]) -> Iterator[str]:
    for function in made.body:
        for node in own_nodes(function) if kept and isinstance(function, FUNCTIONS) else ():
            called = node.func if isinstance(node, ast.Call) else None
            if isinstance(called, ast.Attribute) and called.attr in methods and names_of(called.value, function) & kept:
                yield f"{function.name}:{called.lineno}"  # type: ignore[attr-defined]
                break


def _lines_calling(
    function: ast.FunctionDef | ast.AsyncFunctionDef, position: int | str, methods: frozenset[str]
) -> Iterator[str]:
    name = _parameter(function, position)
    for node in own_nodes(function):
        called = node.func if isinstance(node, ast.Call) else None
        if not isinstance(called, ast.Attribute) or called.attr not in methods:
            continue
        if name and name in names_of(called.value, function):
            yield f"{function.name}:{called.lineno}"
            return


def _parameter(function: ast.FunctionDef | ast.AsyncFunctionDef, position: int | str) -> str:
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args) if each.arg not in ("self", "cls")]
    return position if isinstance(position, str) else names[position] if position < len(names) else ""


def leading_to(names: set[str], file: str, sources: Sources, lines: Sequence[int] = ()) -> set[str]:
    """Functions of a file by their qualified names: those of these names, and those that call them. Of names that many
    functions have, those with one of the lines are meant."""
    every = sources.definitions(file)
    called = {
        qualified: {last_name(n.func) for n in own_nodes(node) if isinstance(n, ast.Call)}
        for qualified, node in every.items()
    }
    found = {qualified for qualified in every if qualified.rpartition(".")[2] in names}
    found -= {
        qualified
        for qualified in found
        if lines and qualified.rpartition(".")[2] in TOO_COMMON
        if not any(spanning(line)(every[qualified]) for line in lines)
    }
    for _ in range(_CALLED_THROUGH):
        last = {each.rpartition(".")[2] for each in found} - TOO_COMMON
        found |= {qualified for qualified, calls in called.items() if calls & last}
        # `Writer(queue).run()` says whose `run` it is.
        common = {each for each in found if each.rpartition(".")[2] in TOO_COMMON}
        found |= {qualified for qualified, node in every.items() if common and common & set(_called_on_new(node))}
    return found


def _called_on_new(function: ast.AST) -> Iterator[str]:
    """Methods that a function calls on an object which it makes itself, with the names of their classes."""
    made = {
        target.id: last_name(node.value.func)
        for node in own_nodes(function)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in own_nodes(function):
        owner = node.func.value if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None
        kind = last_name(owner.func) if isinstance(owner, ast.Call) else made.get(last_name(owner)) if owner else ""
        if kind:
            yield f"{kind}.{last_name(node.func)}"  # type: ignore[attr-defined]


def _started(call: ast.Call, leading: set[str]) -> Facts | None:
    what, position = _STARTS.get(last_name(call.func), ("", 0))
    words = {word.arg: word.value for word in call.keywords if word.arg}
    target = words.get("target") or (call.args[position] if what and len(call.args) > position else None)
    if isinstance(target, ast.Call):
        # A coroutine that is made a task.
        target = target.func
    if not what or target is None or last_name(target) not in {each.rpartition(".")[2] for each in leading}:
        return None
    return {"what": what, "name": _given_name(call), "runs": last_name(target)}


def _subclasses(leading: set[str], file: str, sources: Sources) -> list[tuple[ast.Call, Facts]]:
    """Threads and processes whose class has a method `run` that leads there."""
    tree, found = sources.tree(file), []
    for node in ast.walk(tree) if tree is not None and any(each.endswith(".run") for each in leading) else ():
        bases = [last_name(base) for base in node.bases] if isinstance(node, ast.ClassDef) else []
        what = next((_STARTS[base][0] for base in bases if base in ("Thread", "Process")), "")
        if not isinstance(node, ast.ClassDef) or not what or f"{node.name}.run" not in leading:
            continue
        inits = [each for each in ast.walk(node) if isinstance(each, ast.Call) and last_name(each.func) == "__init__"]
        name = next(filter(None, map(_given_name, inits)), "")
        made = [call for call in sources.calls(file) if last_name(call.func) == node.name]
        found += [
            (call, {"what": what, "name": _given_name(call) or name, "runs": f"{node.name}.run"}) for call in made
        ]
    return found


def _given_name(call: ast.Call) -> str:
    """The text of the argument `name`; of one with values in it, the expression."""
    name = next((word.value for word in call.keywords if word.arg == "name"), None)
    if isinstance(name, ast.JoinedStr):
        return ast.unparse(name)[2:-1]
    return str(name.value) if isinstance(name, ast.Constant) else ""


def _unkept(file: str, sources: Sources) -> set[int]:
    """Calls whose result no variable keeps."""
    tree = sources.tree(file)
    return {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)} if tree is not None else set()


def _lines_passed(frame: Frame, sources: Sources) -> Iterator[int]:
    """Lines before the current one that its function has run in any case."""
    function = sources.function(frame) if is_users(frame.file) else None
    body = function.body if isinstance(function, (*FUNCTIONS, ast.Module)) else []
    for statement in body:
        if isinstance(statement, _ALWAYS_RUN) and statement.lineno < frame.line:
            yield statement.lineno
            within = (int(getattr(node, "lineno", frame.line)) for node in own_nodes(statement))
            yield from (line for line in within if line < frame.line)
