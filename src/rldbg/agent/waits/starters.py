"""Which lines start a thread, process or task for a function: who it was that would have acted, where it has ended and
no object remembers it."""

import ast
from collections.abc import Iterator, Sequence

from .kernel import Facts
from .objects import Frame
from .places import is_users
from .source import FUNCTIONS, Sources, own_nodes

# By the last name of what is called: what it starts, and where the function stands among its arguments.
_STARTS: dict[str, tuple[str, int]] = {
    "Thread": ("thread", 1),
    "Timer": ("thread", 1),
    "Process": ("process", 1),
    "submit": ("work of a pool", 0),
    "apply_async": ("work of a pool", 0),
    "create_task": ("task", 0),
    "ensure_future": ("task", 0),
    "run_coroutine_threadsafe": ("task", 0),
    "start_soon": ("task", 0),
}
_ALWAYS_RUN = (ast.With, ast.AsyncWith, ast.Expr, ast.Assign, ast.AnnAssign, ast.Try, ast.Return)


def starters(functions: Sequence[str], place: Frame, frames: Sequence[Frame], sources: Sources) -> list[Facts]:
    """For functions of the place's file (as `name:line`): what is started to run one of them, its name and its line,
    and whether a current function has `passed` that line."""
    names = {each.partition(":")[0] for each in functions}
    starting = [(call, _started(call, names)) for call in sources.calls(place.file)] if names else []
    begun = [(call, started) for call, started in starting if started is not None]
    own = [frame for frame in frames if begun and frame.file == place.file]
    passed = {line for frame in own for line in _lines_passed(frame, sources)}
    found = [started | {"line": call.lineno, "passed": call.lineno in passed} for call, started in begun]
    return sorted(found, key=lambda each: not each["passed"])[:3]


def _started(call: ast.Call, names: set[str]) -> Facts | None:
    called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    what, position = _STARTS.get(called, ("", 0))
    words = {word.arg: word.value for word in call.keywords if word.arg}
    target = words.get("target") or (call.args[position] if what and len(call.args) > position else None)
    if isinstance(target, ast.Call):
        # A coroutine that is made a task.
        target = target.func
    if not what or not isinstance(target, ast.Name | ast.Attribute):
        return None
    if ast.unparse(target).rpartition(".")[2] not in names:
        return None
    name = words.get("name")
    given = name.value if isinstance(name, ast.Constant) else ast.unparse(name)[2:-1] if name is not None else ""
    return {"what": what, "name": given if isinstance(name, ast.Constant | ast.JoinedStr) else ""}


def _lines_passed(frame: Frame, sources: Sources) -> Iterator[int]:
    """Lines before the current one that its function has run in any case."""
    function = sources.function(frame) if is_users(frame.file) else None
    body = function.body if isinstance(function, (*FUNCTIONS, ast.Module)) else []
    for statement in body:
        if isinstance(statement, _ALWAYS_RUN) and statement.lineno < frame.line:
            yield statement.lineno
            within = (int(getattr(node, "lineno", frame.line)) for node in own_nodes(statement))
            yield from (line for line in within if line < frame.line)
