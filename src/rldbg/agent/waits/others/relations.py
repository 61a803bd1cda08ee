"""What is waited for and who has to do with it: other threads and tasks that can reach it, and functions that would end
the wait."""

import ast
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TypeVar

from ..calls.looking import Wait, is_ray_queue, lock_key, shared_key
from ..code.called import HANDED, assignment, later_calls, may_act, paths_ahead, routes_to, uses_ahead
from ..code.places import is_users, users_place
from ..code.reasons import ended_by_signal, guard, is_kept_to_itself, is_nobody_elses
from ..code.source import SETTING, Sources
from ..code.starters import Given, functions_given, given_objects, leading_to, methods_handed, starters, starts_ahead
from ..code.ways_out import takes_each
from ..reading.kernel import Facts
from ..reading.objects import Frame, Object, is_a
from .answers import feeders, steps_for_each
from .kept import Kept, dropped_from, kept_objects, others_ahead, overwritten
from .polled import (
    changers,
    ends_by_itself,
    has_time_limit,
    loop_condition,
    only_looks,
    only_paces,
    progresses,
    unchanged,
    variables_changed,
)
from .skipped import failed_calls, skipped_return

_Key = TypeVar("_Key")
# What skips a return, by what is waited for and the files that are searched.
_Returns = dict[tuple[str, str, tuple[str, ...]], Facts]
_Waiting = list[tuple[Facts, Sequence[Frame]]]
# These are often kept in a table by request, and ended by who looks them up there.
_DISPATCHED = ("future", "event")
_FILLING = frozenset({"put", "put_nowait", "send", "send_bytes", "put_async", "put_nowait_batch"})
_OPPOSITE = {
    "queue_get": _FILLING,
    "queue_put": frozenset({"get", "get_nowait", "get_async", "get_nowait_batch"}),
    "queue_join": frozenset({"task_done"}),
    "event": frozenset({"set"}),
    "condition": frozenset({"notify", "notify_all"}),
    "semaphore": frozenset({"release"}),
    "barrier": frozenset({"wait"}),
    "future": frozenset({"set_result", "set_exception", "cancel"}),
    "store": SETTING,
}


_OWN_METHODS = {"queue_get": "get", "queue_put": "put", "queue_join": "join", "event": "wait", "barrier": "wait"}
_WRITING = frozenset({"send", "send_bytes", "sendall", "sendto", "sendmsg", "write", "writelines", "close", HANDED})
_ENDING = frozenset({"sendall"}).union(*_OPPOSITE.values())


def relate(waiting: _Waiting, sources: Sources) -> None:
    """For each wait for an object: who else can reach it and does what with it, and which functions would end it."""
    used = []
    for entry, frames in waiting:
        every = list(_uses_of(frames, sources))
        entry["may_call"] = sorted({method for each, method in every if each is None and method in _ENDING})
        numbers = (number for frame in frames if is_users(frame.file) for number in sources.files_used(frame))
        entry["writes"] = sorted({*_written(every), *numbers})
        entry["starts"] = starts_ahead(frames, sources)
        entry["asks_for"] = list(paths_ahead(frames, sources))
        entry["answers"] = steps_for_each(frames, _ENDING | _WRITING, sources)
        used.append((entry, [(each, method) for each, method in every if each is not None and method != HANDED]))
    reached = [(entry, _methods((each.address, method) for each, method in own)) for entry, own in used]
    for (_, objects), (_, frames) in zip(reached, waiting, strict=True):
        objects |= {key: {assignment("")} for key in variables_changed(frames, sources)}
    for (entry, own), (_, frames) in zip(used, waiting, strict=True):
        at_hand = [*((each, method) for each, method in own if method), *_kept_ray_queues(frames, sources)]
        shared = _methods((key, method) for each, method in at_hand if (key := shared_key(each)))
        entry["shares"] = {key: sorted(methods) for key, methods in shared.items()}
    wanted = {_address(entry["wait"]) for entry, _ in waiting if entry["wait"]["kind"] in _OPPOSITE} - {0}
    kept = kept_objects(wanted, [frames for _, frames in waiting], sources)
    given = given_objects(wanted, [frames for _, frames in waiting], sources)
    returns: _Returns = {}
    for entry, frames in waiting:
        wait = entry["wait"]
        named_in, user = wait.pop("named_in", None), users_place(frames)
        place = named_in or (frames[user] if user is not None else None)
        if place is not None and only_paces(wait, place, sources):
            wait |= {"kind": "sleep", "polls": sources.polled(place), "delay_s": None}
        elif place is not None and ends_by_itself(wait, place, sources):
            wait |= {"kind": "sleep", "polls": "", "delay_s": None, "own_limit": True}
        elif place is not None and has_time_limit(wait, place, sources):
            wait["time_limit"] = True
        if place is not None and wait.get("polls"):
            tested = loop_condition(place, frames, sources)
            wait["polls"] = tested.text() if tested.frame is not place else wait["polls"]
            wait["progresses"] = progresses(place, sources)
            wait["looks_at"] = list(changers(entry, tested, reached))
            wait["only_looks"] = only_looks(place, tested, sources)
            wait["unchanged"] = {} if wait["looks_at"] else unchanged(place, sources)
        if place is not None:
            _relate_taken(wait, place, frames, waiting, sources, returns)
        if opposite := _OPPOSITE.get(wait["kind"]):
            wait["ended_by"] = sorted(opposite)
            wait["endless"] = place is not None and any(map(takes_each, sources.loops_around(place)))
            known = _address(wait), str(wait.get("name") or "")
            wait["dropped"] = dropped_from(*known, place, sources) if place else ""
            if place is not None and (taken := overwritten(*known, place, sources)):
                wait |= {"replaced": True, "known_as": taken}
            keeper = kept.get(_address(wait))
            wait["users"] = list(_users(entry, opposite, reached, waiting, keeper, sources))
            if place is not None:
                taker = given.get(_address(wait), [])
                _relate_functions(wait, place, frames, keeper, taker, sources)
                wait["later"] = _later(wait.get("functions") or [], waiting, sources)
                fed = {each.partition(":")[0] for each in wait.get("functions") or ()} | set(wait.get("leading") or ())
                others = [each for each in waiting if each[0] is not entry] if wait["endless"] else []
                wait["fed_by"] = feeders(fed, place.file, others, sources)
            if place is not None and wait["kind"] == "store":
                wait["set_as"] = sources.keys_written(place.file, wait.get("functions") or [])


def _written(used: Iterable[tuple[Object | None, str]]) -> set[int]:
    """The descriptors of sockets, pipes and files that will be written to, or handed to functions that may do so."""
    objects = {each.address: each for each, method in used if each is not None and method in _WRITING}
    handles = [each.get("_handle") for each in objects.values() if is_a(each, "_ConnectionBase")]
    numbers = [each.descriptor() for each in objects.values()] + [each.number() for each in handles if each is not None]
    return {number for number in numbers if number is not None}


def _relate_taken(
    wait: Wait, place: Frame, frames: Sequence[Frame], waiting: _Waiting, sources: Sources, returns: _Returns
) -> None:
    """Who takes a lock and keeps it, and a release, or an item that is put back, which an exception skips."""
    if wait["kind"] == "lock":
        names = [str(choice["name"]) for choice in wait.get("choices") or []][:1]
        wait["takers"] = [each for name in names for each in sources.functions_keeping(place, name)]
        wait["starters"] = starters(wait["takers"], place, frames, sources)
        wait["taken_for"] = _taken_for(wait, place, sources)
    if wait["kind"] in ("lock", "semaphore", "queue_get") and wait.get("name"):
        files = (place.file, *(frame.file for _, each in waiting for frame in each if is_users(frame.file)))
        known = str(wait["kind"]), str(wait["name"]), tuple(dict.fromkeys(files))
        # Many tasks wait for the same.
        if known not in returns:
            returns[known] = skipped_return(*known, sources)
        wait["skipped"] = skipped = returns[known]
        wait["failed"] = failed_calls(skipped, [each for _, each in waiting]) if skipped else {}


def _taken_for(wait: Wait, place: Frame, sources: Sources) -> str:
    """The coroutine that has a thread acquire a lock and releases it itself."""
    function = sources.function(place) if wait.get("handed") else None
    if not isinstance(function, ast.AsyncFunctionDef):
        return ""
    releasing = sources.functions_calling(place, str(wait["name"]), frozenset({"release"}))
    own = function.name in {each.partition(":")[0] for each in releasing}
    return f"{function.name} (line {place.line})" if own else ""


def _users(
    entry: Facts,
    opposite: frozenset[str],
    reached: list[tuple[Facts, dict[int, set[str]]]],
    waiting: _Waiting,
    kept: Kept | None,
    sources: Sources,
) -> Iterator[Facts]:
    """Who else can reach what is waited for, and which of the methods that end the wait it calls; or who may, where
    nobody does."""
    address, wait = _address(entry["wait"]), entry["wait"]
    found = [
        {"who": other.get("thread") or other["key"], "acts": sorted(objects[address] & opposite)}
        for other, objects in reached
        if other is not entry and address in objects
    ]
    yield from found
    # Who looks it up in a table does not find it there any more.
    if wait["dropped"] or any(user["acts"] for user in found):
        return
    by_key = kept is not None and wait["kind"] in ("queue_get", "queue_put")
    for other, running in waiting if by_key or wait["kind"] in _DISPATCHED else ():
        own = [frame for frame in running if other is not entry and is_users(frame.file)]
        each = not by_key and other is not entry
        answers = each and any(step["may"] and step["method"] in opposite for step in other["answers"] or ())
        if answers or any(may_act(f, opposite, sources, kept.name if kept is not None and by_key else "") for f in own):
            yield {"who": other.get("thread") or other["key"], "acts": [], "may": True}


def _address(wait: Wait) -> int:
    return int(wait.get("key") or "0", 16)


def _relate_functions(
    wait: Wait, place: Frame, frames: Sequence[Frame], kept: Kept | None, given: Sequence[Given], sources: Sources
) -> None:
    """Functions that would end the wait, by what they call the object, are given it, or take it out of."""
    opposite, name = _OPPOSITE[wait["kind"]], str(wait.get("name") or "")
    if kept is not None:
        wait["kept"] = others_ahead(kept, wait["kind"])
    if name:
        functions = sources.functions_calling(place, name, opposite)
        functions = functions or functions_given(given, opposite)
        table = kept.name if kept is not None else str(wait["dropped"]).rpartition(".")[2]
        if not functions and table:
            functions, name = sources.functions_calling(place, f"_.{table}", opposite), table
        wait["functions"] = functions
        if wait["kind"] == "condition":
            every = sources.functions_calling(place, name, frozenset({"notify_all"}))
            wait["wakes_one"] = [each for each in functions if each not in every]
        wait["nowhere"] = not functions and sources.is_called_nowhere(place, str(wait["name"]), opposite)
        wait["starters"] = starters(functions, place, frames, sources)
        names = {each.partition(":")[0] for each in functions}
        wait["leading"] = sorted({each.rpartition(".")[2] for each in leading_to(names, place.file, sources)})
        wait["routes"] = routes_to({*names, *wait["leading"]}, place.file, sources) if names else []
        wait["guard"] = guard(functions, name, opposite, place, sources)
        if wait["kind"] in _DISPATCHED:
            wait["by_signal"] = ended_by_signal(place, name, functions, opposite, sources)
    if wait["kind"] in _DISPATCHED:
        wait["nobody_elses"] = is_nobody_elses(place, sources)
        wait["kept_to_itself"] = is_kept_to_itself(name, place, sources)


def _later(functions: Sequence[str], waiting: _Waiting, sources: Sources) -> Facts:
    """Who calls one of the functions (as `name:line`) after what it does now."""
    names = {each.partition(":")[0] for each in functions}
    for entry, frames in waiting if names else ():
        for name, frame, line in later_calls(frames, names, sources):
            who = entry.get("thread") or f"task {entry['task']}"
            place = {"file": frame.file, "line": line, "function": frame.function}
            return place | {"who": who, "calls": name, "main": bool(entry.get("main"))}
    return {}


def name_by_others(waiting: _Waiting, sources: Sources) -> None:
    """Where no line of the user is on the stack of who waits (a method that was handed to a pool or a thread), what the
    functions of others call the object."""
    unnamed: dict[str, list[Wait]] = {}
    for entry, _ in waiting:
        if entry["wait"].get("key") and not entry["wait"].get("name", True):
            unnamed.setdefault(str(entry["wait"]["key"]), []).append(entry["wait"])
    others = [frame for _, frames in waiting for frame in frames if unnamed and is_users(frame.file)]
    # Who hands it over says more than who only knows it, or has an object that keeps it.
    for handing, names in ((True, sources.names), (False, sources.names), (False, _attributes)):
        for frame in others if unnamed else ():
            for value, name in names(frame):
                keys = {f"{value.address:#x}", lock_key(value, "")} & unnamed.keys() if unnamed else set()
                handed = _handed_at(frame, name, sources) if keys else {}
                for wait in (wait for key in keys if handed or not handing for wait in unnamed.pop(key)):
                    wait |= {"name": name, "named_in": frame} | handed
                    for choice in wait.get("choices") or []:
                        choice["name"] = choice["name"] or name
    for wait in (wait for waits in unnamed.values() for wait in waits if wait["kind"] in _OWN_METHODS):
        _name_by_handing(wait, waiting, sources)


def _attributes(frame: Frame) -> Iterator[tuple[Object, str]]:
    """What the objects in a function's variables keep: `for batch in loader` waits for a queue of the loader."""
    for owner, value in frame.locals().items():
        yield from ((each, f"{owner}.{name}") for name, each in value.attributes().items())


def _handed_at(frame: Frame, name: str, sources: Sources) -> Wait:
    """Where the line of a frame hands a method of an object of this name to a thread or a pool."""
    calls = [node for node in sources.on_line(frame) if isinstance(node, ast.Call)]
    methods = [each for call in calls for each in call.args if isinstance(each, ast.Attribute)]
    handed = {"file": frame.file, "line": frame.line, "function": frame.function}
    return {"handed": handed} if any(ast.unparse(each.value) == name for each in methods) else {}


def _name_by_handing(wait: Wait, waiting: _Waiting, sources: Sources) -> None:
    """Where who handed the method over is gone: the only line that hands such a method to a thread or a pool."""
    files = dict.fromkeys(frame.file for _, frames in waiting for frame in frames if is_users(frame.file))
    lines = [each for file in files for each in methods_handed(file, _OWN_METHODS[wait["kind"]], sources)]
    if len(lines) == 1:
        method, place = lines[0]
        handed = {"file": place.file, "line": place.line, "function": place.function}
        wait |= {"name": ast.unparse(method.value), "named_in": place, "handed": handed}


def _kept_ray_queues(frames: Sequence[Frame], sources: Sources) -> Iterator[tuple[Object, str]]:
    """Queues in attributes of the current object: what fills them may be a method that is not running yet."""
    for frame in (frame for frame in frames if is_users(frame.file)):
        owner = frame.locals().get("self")
        for name, each in owner.attributes().items() if owner is not None else ():
            if is_ray_queue(each) and sources.may_use(frame, f"self.{name}", _ENDING):
                yield each, ""


def _uses_of(frames: Sequence[Frame], sources: Sources) -> Iterator[tuple[Object | None, str]]:
    own = [frame for frame in frames if is_users(frame.file)]
    for frame, inner in zip(own, (None, *own), strict=False):
        yield from uses_ahead(frame, inner, sources)
    yield from chain.from_iterable(map(_completed_by, frames))


def _completed_by(frame: Frame) -> Iterable[tuple[Object, str]]:
    if frame.file.endswith("concurrent/futures/thread.py") and frame.function.endswith("_WorkItem.run"):
        # A thread of a pool completes the future of what it runs.
        item = frame.variable("self")
        future = item.get("future") if item is not None else None
        return [(future, "set_result")] if future is not None else []
    return []


def _methods(uses: Iterable[tuple[_Key, str]]) -> dict[_Key, set[str]]:
    found: dict[_Key, set[str]] = {}
    for key, method in uses:
        found.setdefault(key, set()).update([method] if method else [])
    return found
