"""What is waited for and who has to do with it: other threads and tasks that can reach it, and functions that would end
the wait."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TypeVar

from .called import later_calls, may_act, uses_ahead
from .kept import Kept, dropped_from, kept_objects, others_ahead
from .kernel import Facts
from .looking import Wait, is_ray_queue, shared_key
from .objects import Frame, Object, is_a
from .places import is_users, users_place
from .reasons import ended_by_signal, failed_calls, guard, is_nobody_elses, skipped_release
from .source import SETTING, Sources
from .starters import Given, functions_given, given_objects, starters

_Key = TypeVar("_Key")
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


_WRITING = frozenset({"send", "send_bytes", "sendall", "sendto", "sendmsg", "write", "writelines", "close"})
_ENDING = frozenset().union(*_OPPOSITE.values())


def relate(waiting: _Waiting, sources: Sources) -> None:
    """For each wait for an object: who else can reach it and does what with it, and which functions would end it."""
    used = []
    for entry, frames in waiting:
        every = list(_uses_of(frames, sources))
        entry["may_call"] = sorted({method for each, method in every if each is None and method in _ENDING})
        entry["writes"] = sorted(_written(every))
        used.append((entry, [(each, method) for each, method in every if each is not None]))
    reached = [(entry, _methods((each.address, method) for each, method in own)) for entry, own in used]
    for (entry, own), (_, frames) in zip(used, waiting, strict=True):
        at_hand = [*((each, method) for each, method in own if method), *_kept_ray_queues(frames)]
        shared = _methods((key, method) for each, method in at_hand if (key := shared_key(each)))
        entry["shares"] = {key: sorted(methods) for key, methods in shared.items()}
    wanted = {_address(entry["wait"]) for entry, _ in waiting if entry["wait"]["kind"] in _OPPOSITE} - {0}
    kept = kept_objects(wanted, [frames for _, frames in waiting], sources)
    given = given_objects(wanted, [frames for _, frames in waiting], sources)
    for entry, frames in waiting:
        wait = entry["wait"]
        named_in, user = wait.pop("named_in", None), users_place(frames)
        place = named_in or (frames[user] if user is not None else None)
        if place is not None:
            _relate_lock(wait, place, frames, waiting, sources)
        if opposite := _OPPOSITE.get(wait["kind"]):
            wait["ended_by"] = sorted(opposite)
            wait["dropped"] = dropped_from(_address(wait), str(wait.get("name") or ""), place, sources) if place else ""
            wait["users"] = list(_users(entry, opposite, reached, waiting, sources))
            if place is not None:
                keeper, taker = kept.get(_address(wait)), given.get(_address(wait), [])
                _relate_functions(wait, place, frames, keeper, taker, sources)
                wait["later"] = _later(wait.get("functions") or [], waiting, sources)


def _written(used: Iterable[tuple[Object | None, str]]) -> set[int]:
    """The descriptors of sockets, pipes and files that will be written to."""
    objects = {each.address: each for each, method in used if each is not None and method in _WRITING}
    handles = [each.get("_handle") for each in objects.values() if is_a(each, "_ConnectionBase")]
    numbers = [each.descriptor() for each in objects.values()] + [each.number() for each in handles if each is not None]
    return {number for number in numbers if number is not None}


def _relate_lock(wait: Wait, place: Frame, frames: Sequence[Frame], waiting: _Waiting, sources: Sources) -> None:
    """Who takes a lock and keeps it, and a release that an exception skips."""
    if wait["kind"] == "lock":
        names = [str(choice["name"]) for choice in wait.get("choices") or []][:1]
        wait["takers"] = [each for name in names for each in sources.functions_keeping(place, name)]
        wait["starters"] = starters(wait["takers"], place, frames, sources)
    if wait["kind"] in ("lock", "semaphore") and wait.get("name"):
        wait["skipped"] = skipped = skipped_release(str(wait["name"]), place, sources)
        wait["failed"] = failed_calls(skipped, [each for _, each in waiting]) if skipped else {}


def _users(
    entry: Facts,
    opposite: frozenset[str],
    reached: list[tuple[Facts, dict[int, set[str]]]],
    waiting: _Waiting,
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
    if wait["kind"] in _DISPATCHED and not wait["dropped"] and not any(user["acts"] for user in found):
        for other, running in waiting:
            own = [frame for frame in running if other is not entry and is_users(frame.file)]
            if any(may_act(frame, opposite, sources) for frame in own):
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
        wait["nowhere"] = not functions and sources.is_called_nowhere(place, str(wait["name"]), opposite)
        wait["starters"] = starters(functions, place, frames, sources)
        wait["guard"] = guard(functions, name, opposite, place, sources)
        if wait["kind"] in _DISPATCHED:
            wait["by_signal"] = ended_by_signal(place, name, functions, opposite, sources)
    if wait["kind"] in _DISPATCHED:
        wait["nobody_elses"] = is_nobody_elses(place, sources)


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
    for frame in (frame for _, frames in waiting for frame in frames if unnamed and is_users(frame.file)):
        for value, name in sources.names(frame):
            for wait in unnamed.pop(f"{value.address:#x}", ()):
                wait |= {"name": name, "named_in": frame}


def _kept_ray_queues(frames: Sequence[Frame]) -> Iterable[tuple[Object, str]]:
    """Queues in attributes of the current object: what fills them may be a method that is not running yet."""
    owners = [frame.locals().get("self") for frame in frames if is_users(frame.file)]
    kept = chain.from_iterable(owner.attributes().values() for owner in owners if owner is not None)
    return [(each, "") for each in kept if is_ray_queue(each)]


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
