"""What is waited for and who has to do with it: other threads and tasks that can reach it, and functions that would end
the wait."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TypeVar

from .kernel import Facts
from .looking import Wait, is_ray_queue, shared_key
from .objects import Frame, Object
from .places import is_users, users_place
from .reasons import ended_by_signal, failed_calls, guard, is_nobody_elses, skipped_release
from .source import SETTING, Sources
from .starters import starters

_Key = TypeVar("_Key")
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


def relate(waiting: list[tuple[Facts, Sequence[Frame]]], sources: Sources) -> None:
    """For each wait for an object: who else can reach it and does what with it, and which functions would end it."""
    used = [(entry, list(chain.from_iterable(_uses(frame, sources) for frame in frames))) for entry, frames in waiting]
    reached = [(entry, _methods((each.address, method) for each, method in uses)) for entry, uses in used]
    for (entry, uses), (_, frames) in zip(used, waiting, strict=True):
        at_hand = [*((each, method) for each, method in uses if method), *_kept_ray_queues(frames)]
        shared = _methods((key, method) for each, method in at_hand if (key := shared_key(each)))
        entry["shares"] = {key: sorted(methods) for key, methods in shared.items()}
    for entry, frames in waiting:
        wait = entry["wait"]
        named_in, opposite = wait.pop("named_in", None), _OPPOSITE.get(wait["kind"])
        user = users_place(frames)
        place = named_in or (frames[user] if user is not None else None)
        if place is not None and wait["kind"] == "lock":
            names = [str(choice["name"]) for choice in wait.get("choices") or []][:1]
            wait["takers"] = [each for name in names for each in sources.functions_keeping(place, name)]
            wait["starters"] = starters(wait["takers"], place, frames, sources)
        if place is not None and wait["kind"] in ("lock", "semaphore") and wait.get("name"):
            wait["skipped"] = skipped = skipped_release(str(wait["name"]), place, sources)
            wait["failed"] = failed_calls(skipped, [each for _, each in waiting]) if skipped else {}
        if opposite is None:
            continue
        address = int(wait.get("key") or "0", 16)
        wait["ended_by"] = sorted(opposite)
        wait["users"] = [
            {"who": other.get("thread") or other["key"], "acts": sorted(objects[address] & opposite)}
            for other, objects in reached
            if other is not entry and address in objects
        ]
        if wait["kind"] in _DISPATCHED and not any(user["acts"] for user in wait["users"]):
            wait["users"] += [
                {"who": other.get("thread") or other["key"], "acts": [], "may": True}
                for other, running in waiting
                if other is not entry and any(is_users(f.file) and sources.may_act(f, opposite) for f in running)
            ]
        if place is not None and wait.get("name"):
            wait["functions"] = sources.functions_calling(place, wait["name"], opposite)
            wait["starters"] = starters(wait["functions"], place, frames, sources)
            wait["guard"] = guard(wait["functions"], wait["name"], opposite, place, sources)
            if wait["kind"] in _DISPATCHED:
                wait["by_signal"] = ended_by_signal(place, wait["name"], wait["functions"], opposite, sources)
        if place is not None and wait["kind"] in _DISPATCHED:
            wait["nobody_elses"] = is_nobody_elses(place, sources)


def name_by_others(waiting: list[tuple[Facts, Sequence[Frame]]], sources: Sources) -> None:
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


def _uses(frame: Frame, sources: Sources) -> Iterable[tuple[Object, str]]:
    if is_users(frame.file):
        return sources.uses(frame)
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
