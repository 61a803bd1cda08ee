"""What was taken and not given back: the function that takes it and gives it back further down, where an exception in
between skips that, and the calls that have failed there."""

import ast
from collections.abc import Iterator, Sequence

from .kernel import Facts
from .objects import Frame, Object, exception_text, is_a
from .origins import last_name, own_nodes
from .places import is_users
from .reasons import is_called_on
from .source import Sources

_MOST_LOOKED_AT = 200
_LOCKING = (frozenset({"acquire"}), frozenset({"release"}))
# By the kind of the wait: how one is taken, and how it is given back. Who takes an item of a queue and puts the same
# one in again uses it as a pool.
_TAKEN_AND_GIVEN = {
    "lock": _LOCKING,
    "semaphore": _LOCKING,
    "queue_get": (frozenset({"get", "get_nowait", "get_async"}), frozenset({"put", "put_nowait", "put_async"})),
}
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def skipped_return(kind: str, name: str, place: Frame, frames: Sequence[Frame], sources: Sources) -> Facts:
    """A function that takes what is waited for, itself or by another function of the place's file, and gives it back
    further down, where an exception in between skips that: `function`, and the lines `acquired` and `released`."""
    last, same_item = name.rpartition(".")[2], kind == "queue_get"
    taking, giving = _TAKEN_AND_GIVEN[kind]
    ways = [(function, taking, giving, last) for function in sources.functions(place.file)]
    takes, gives = (_functions_calling(last, each, place, sources) for each in (taking, giving))
    files = dict.fromkeys((place.file, *(frame.file for frame in frames if is_users(frame.file))))
    others = [function for file in files for function in sources.functions(file)]
    ways += [(each, takes - gives, gives - takes, "") for each in others if takes - gives and gives - takes]
    for function, begin, end, owner in ways:
        found = _skipped_in(function, begin, end, owner, same_item=same_item)
        if found:
            return found
    return {}


def _functions_calling(last: str, methods: frozenset[str], place: Frame, sources: Sources) -> frozenset[str]:
    """Functions of the place's file that call one of the methods on something of this name."""
    return frozenset(
        function.name
        for function in sources.functions(place.file)
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
    safe = {id(node) for each in _always_run(function) for node in ast.walk(each)}
    for key in taken.keys() & given.keys():
        begins, ends = min(taken[key]), max(call.lineno for call in given[key])
        if ends > begins + 1 and not any(id(call) in safe for call in given[key]):
            return {"function": function.name, "acquired": begins, "released": ends}
    return {}


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


def _always_run(function: ast.AST) -> Iterator[ast.stmt]:
    """What also runs after an exception."""
    for node in own_nodes(function):
        if isinstance(node, ast.Try):
            yield from node.finalbody
            yield from (each for handler in node.handlers for each in handler.body)


def failed_calls(skipped: Facts, stacks: Sequence[Sequence[Frame]]) -> Facts:
    """Futures in the variables of current functions that an exception between these lines has ended: how many, and what
    the first one raised at which line."""
    found = []
    for future in _futures(frame for frames in stacks for frame in frames if is_users(frame.file)):
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


def _futures(frames: Iterator[Frame]) -> Iterator[Object]:
    seen: set[int] = set()
    named = [value for frame in frames for value in frame.locals().values()]
    kept = [inner for value in named for inner in value.attributes().values()]
    for value in (*named, *kept):
        for each in (value, *value.elements()[:_MOST_LOOKED_AT]):
            if is_a(each, "Future") and each.address not in seen:
                seen.add(each.address)
                yield each
