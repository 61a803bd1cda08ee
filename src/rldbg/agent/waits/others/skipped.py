"""What was taken and not given back: the function that takes it and gives it back further down, where an exception or
an exit in between skips that, and the calls that have failed there."""

import ast
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

from ..code.origins import FUNCTIONS, last_name, own_nodes
from ..code.places import is_users
from ..code.reasons import is_called_on
from ..code.source import Sources
from ..reading.kernel import Facts
from ..reading.objects import Frame, exception_text, is_a
from .failed_work import futures_of

_LOCKING = (frozenset({"acquire"}), frozenset({"release"}))
# By the kind of the wait: how one is taken, and how it is given back. Who takes an item of a queue and puts the same
# one in again uses it as a pool.
_TAKEN_AND_GIVEN = {
    "lock": _LOCKING,
    "semaphore": _LOCKING,
    "queue_get": (frozenset({"get", "get_nowait", "get_async"}), frozenset({"put", "put_nowait", "put_async"})),
}
_LOOPS = (ast.While, ast.For, ast.AsyncFor)
_EXITS = {ast.Return: "return", ast.Break: "break", ast.Continue: "continue"}
_EXCEPTION = "exception"
ANY_WAY = frozenset({*_EXITS.values(), _EXCEPTION})
_MOST_WAYS, _SHOWN = 2, 80
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class _Exit:
    """A statement that leaves a function or a loop or begins its next round, the `last` line that it skips, and the
    condition or handler that it depends on: `under`, as it is written, in line `begins`."""

    word: str
    line: int
    last: int
    under: str
    begins: int

    def text(self) -> str:
        return (
            f"`{self.under}: {self.word}` in line {self.begins}" if self.under else f"{self.word} in line {self.line}"
        )


def skipped_return(kind: str, name: str, files: Sequence[str], sources: Sources) -> Facts:
    """A function that takes what is waited for, itself or by another function of the first file, and gives it back
    further down, where something in between skips that: `function`, the lines `acquired` and `released`, and what it
    may be `left_by`. The other files are those of functions that call these."""
    last, same_item = name.rpartition(".")[2], kind == "queue_get"
    taking, giving = _TAKEN_AND_GIVEN[kind]
    ways = [(function, taking, giving, last) for function in sources.functions(files[0])]
    takes, gives = (_functions_calling(last, each, files[0], sources) for each in (taking, giving))
    others = [function for file in files for function in sources.functions(file)]
    ways += [(each, takes - gives, gives - takes, "") for each in others if takes - gives and gives - takes]
    for function, begin, end, owner in ways:
        found = _skipped_in(function, begin, end, owner, same_item=same_item)
        if found:
            return found
    return {}


def _functions_calling(last: str, methods: frozenset[str], file: str, sources: Sources) -> frozenset[str]:
    """Functions of a file that call one of the methods on something of this name."""
    return frozenset(
        function.name
        for function in sources.functions(file)
        if function.name != "__init__" and any(is_called_on(call, last, methods) for call in _calls(function))
    )


def _skipped_in(
    function: _Function, taking: frozenset[str], giving: frozenset[str], owner: str, *, same_item: bool
) -> Facts:
    """What a function takes from something, and gives back to the same; `owner` is the last name of that, if known."""
    taken: dict[str, list[int]] = {}
    given: dict[str, list[ast.Call]] = {}
    kept = _items_kept(function)
    for call in _calls(function):
        method = last_name(call.func)
        receiver = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
        if method not in taking | giving or (owner and receiver.rpartition(".")[2] != owner):
            continue
        item = kept.get(id(call), "") if method in taking else last_name(call.args[0]) if call.args else ""
        if same_item and not item:
            continue
        key = f"{receiver} {item}" if same_item else receiver
        if method in taking:
            taken.setdefault(key, []).append(call.lineno)
        else:
            given.setdefault(key, []).append(call)
    for key in taken.keys() & given.keys():
        begins, ends = min(taken[key]), max(call.lineno for call in given[key])
        if ways := ways_around(function, given[key], begins):
            return {"function": function.name, "acquired": begins, "released": ends, "left_by": ways}
    return {}


def ways_around(function: ast.AST, steps: Sequence[ast.AST], begins: int, words: Set[str] = ANY_WAY) -> list[str]:
    """What leads past all of these steps of a function, from a line on: exits, as "`if failed: return` in line 8", and
    `exception`. None where one of them is also run then; one that is run for exceptions too is skipped by exits
    alone."""
    tries = [node for node in own_nodes(function) if isinstance(node, ast.Try)]
    in_any_case = {id(node) for each in tries for last in each.finalbody for node in ast.walk(last)}
    if any(id(step) in in_any_case for step in steps):
        return []
    handled = {id(node) for each in tries for handler in each.handlers for node in ast.walk(handler)}
    lines = [int(getattr(step, "lineno", 0)) for step in steps]
    given = {line for line in lines if line > begins}
    found = [
        each.text()
        for each in _exits(function, None)
        if each.word in words and begins < each.line < max(lines) <= each.last
        if not any(_leads_to(function, step, each.line) for step in given)
    ]
    raises = _EXCEPTION in words and max(lines) > begins + 1 and not any(id(step) in handled for step in steps)
    return [*found[:_MOST_WAYS], *([_EXCEPTION] if raises else [])]


def _exits(node: ast.AST, loop: ast.AST | None, under: tuple[str, int] = ("", 0)) -> Iterator[_Exit]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (*FUNCTIONS, ast.Lambda, ast.ClassDef)):
            continue
        word, within = _EXITS.get(type(child), ""), _depends_on(node, child, under)
        skips = None if word == "return" else loop
        if word and (word == "return" or loop is not None):
            last = int(getattr(skips, "end_lineno", None) or 1 << 30)
            yield _Exit(word, int(getattr(child, "lineno", 0)), last, *within)
        yield from _exits(child, child if isinstance(child, _LOOPS) else loop, within)


def _depends_on(node: ast.AST, child: ast.AST, under: tuple[str, int]) -> tuple[str, int]:
    """The innermost condition or handler that a statement is in; what holds in `else` is not what is written there."""
    if isinstance(node, ast.If):
        return (f"if {ast.unparse(node.test)[:_SHOWN]}", node.lineno) if child in node.body else ("", 0)
    if isinstance(node, ast.ExceptHandler):
        caught = f" {ast.unparse(node.type)[:_SHOWN]}" if node.type is not None else ""
        return f"except{caught}", node.lineno
    return ("", 0) if isinstance(node, ast.Match) else under


def _leads_to(function: ast.AST, step: int, line: int) -> bool:
    """Whether a line is run only after that of a step: a statement before it in the same block contains the step."""
    for node in (function, *own_nodes(function)):
        for block in (getattr(node, name, None) for name in ("body", "orelse", "finalbody")):
            statements = block if isinstance(block, list) else []
            at = next((n for n, each in enumerate(statements) if each.lineno <= line <= (each.end_lineno or 0)), None)
            if at is not None and any(each.lineno == step for each in statements[:at]):
                return True
    return False


def _calls(function: ast.AST) -> Iterator[ast.Call]:
    return (node for node in own_nodes(function) if isinstance(node, ast.Call))


def _items_kept(function: ast.AST) -> dict[int, str]:
    """Calls, also awaited ones, by what their result is called."""
    found = {}
    for node in own_nodes(function):
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        value = value.value if isinstance(value, ast.Await) else value
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(value, ast.Call) and isinstance(targets[0], ast.Name):
            found[id(value)] = targets[0].id
    return found


def failed_calls(skipped: Facts, stacks: Sequence[Sequence[Frame]]) -> Facts:
    """Futures in the variables of current functions that an exception between these lines has ended: how many, and what
    the first one raised at which line."""
    found = []
    for future, _ in futures_of(frame for frames in stacks for frame in frames if is_users(frame.file)):
        error = future.get("_exception")
        if error is None or not is_a(error, "BaseException"):
            continue
        for place in error.raised_in():
            if _is_between(place, skipped):
                found.append({"raised": exception_text(error), "file": place.file, "line": place.line})
                break
    return found[0] | {"count": len(found), "function": skipped["function"]} if found else {}


def _is_between(place: Frame, skipped: Facts) -> bool:
    own = place.function.rpartition(".")[2] == skipped["function"]
    return own and bool(skipped["acquired"] <= place.line < skipped["released"])
