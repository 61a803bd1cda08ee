"""Which threads and tasks go on: what each does and waits for, looked at several times."""

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from .calls.event_loops import all_tasks, awaited, is_waiting
from .others.backlog import untouched
from .others.rounds import in_vain
from .reading.kernel import Facts
from .reading.objects import Object

# Who is woken from these got what it waited for, and waits for the next; a condition may have been notified in vain.
_ENDED_BY_WAKING = frozenset(
    {"lock", "queue_get", "queue_put", "event", "semaphore", "barrier", "pipe", "future", "thread"}
)
# Who waits for one of these uses no CPU time; the share that one who takes them again and again uses at least.
_SHARE_OF_MOVING = 0.05

# These use CPU time while they wait.
_SPINNING = frozenset({"cuda", "collective"})
_RAY_TASK_DIGITS = 48
# How often tasks are looked at, while that takes less than so long.
_LOOKS, _LOOK_S = 4, 0.2
_FOR_A_WHILE = frozenset({"sleep", "turn", "serving"})


def mark_moved(before: Facts, after: Facts, apart_s: float) -> Facts:
    """Marks the threads that are running, by their frames, CPU time or wake-ups. py-spy wakes the threads of a process
    that it inspects."""
    # Of a busy machine, the looks are further apart than they should be.
    apart_s = max(apart_s, after.get("seen_s", 0.0) - before.get("seen_s", after.get("seen_s", 0.0)))
    # Of a process whose agent had not answered in time only the frames were seen.
    first = {thread["native"]: thread for thread in before.get("threads") or [] if "native" in thread}
    old_children, children = ({child["pid"] for child in each.get("children") or []} for each in (before, after))
    after["replaced_children"] = bool(old_children) and not old_children & children
    ticks = os.sysconf("SC_CLK_TCK")
    for thread in after.get("threads") or []:
        old = first.get(thread["native"])
        if old is None:
            continue
        thread["untouched"] = untouched(old, thread)
        _look_twice(old, thread)
        used_s = (thread["kernel"].get("cpu", 0) - old["kernel"].get("cpu", 0)) / ticks
        kind, woken = thread["wait"]["kind"], not before.get("spied") and _was_woken(old, thread)
        thread["vain"] = in_vain(old, thread, woken=woken)
        ends = kind in _ENDED_BY_WAKING and (
            (woken and thread["kernel"].get("one_end")) or used_s > max(_SHARE_OF_MOVING * apart_s, 1.5 / ticks)
        )
        # Each piece that is read or written wakes it.
        ends |= kind == "disk" and woken
        if used_s > 0.5 * apart_s and kind not in _SPINNING:
            thread["holds"] = [*(thread.get("holds") or []), *_may_hold(thread)]
            thread["wait"] = {"kind": "computing"}
        elif polling := _in_one_loop(old, thread):
            thread |= {name: polling[name] for name in ("wait", "frames", "place", "kernel")}
            thread["wait"] |= {"again": True}
        elif ends or _places(old) != _places(thread) or _asks_anew(old, thread):
            thread["holds"] = [*(thread.get("holds") or []), *_may_hold(thread)]
            thread["moved"] = True
            thread["asks"] = _asked_again(old, thread)
        elif woken and kind == "sleep":
            thread["wait"]["again"] = True
    _mark_moved_tasks(before, after)
    return after


def _may_hold(thread: Facts) -> list[Facts]:
    """A thread that goes on has from time to time the locks that its line takes."""
    choices = thread["wait"].get("choices") or []
    place = thread.get("place") or {}
    return [{**place, "key": each["key"], "name": each["name"], "loops": False} for each in choices if place]


def _was_woken(old: Facts, thread: Facts) -> bool:
    before, now = old["kernel"].get("wakes"), thread["kernel"].get("wakes")
    return None not in (before, now) and before != now


def _look_twice(old: Facts, entry: Facts) -> None:
    """A loop that goes on in turn with others may look as if it did not, where it is read while one of them runs."""
    before, now = old.get("wait") or {}, entry["wait"]
    if now.get("only_looks") and "only_looks" in before:
        now["only_looks"] = before["only_looks"] and before.get("polls") == now.get("polls")


def _in_one_loop(old: Facts, thread: Facts) -> Facts | None:
    """Of two looks at a loop that asks Ray and sleeps, where what it looks for is the same, the one at the sleep."""
    for sleeps, asks in ((old, thread), (thread, old)):
        places = [each.get("place") or {} for each in (sleeps, asks)]
        same = all(places[0].get(name) == places[1].get(name) for name in ("file", "function"))
        waits = [each.get("wait") or {} for each in (sleeps, asks)]
        polled = waits[0].get("polls") if waits[0].get("kind") == "sleep" else ""
        if same and polled and polled == waits[1].get("asked_in"):
            return sleeps
    return None


def _asked_again(old: Facts, thread: Facts) -> str:
    """What a loop looks for that asks Ray in both looks, if it is the same."""
    asked = {str((each.get("wait") or {}).get("asked_in") or "") for each in (old, thread)}
    return asked.pop() if len(asked) == 1 else ""


def _asks_anew(old: Facts, thread: Facts) -> bool:
    """It waits for other tasks of Ray than before."""
    waits = [each.get("wait") or {} for each in (old, thread)]
    # From outside, objects of Ray as they are in memory: each begins with the number of its references.
    before, now = (
        [str(task)[16 * (len(task) > _RAY_TASK_DIGITS) :] for task in wait.get("tasks") or ()] for wait in waits
    )
    return bool(before and now) and before != now


def _places(thread: Facts) -> list[Any]:
    return [(frame["file"], frame["function"]) for frame in thread["frames"]]


def watch_tasks(before: Mapping[int, Facts], tasks_of: Callable[[int], list[Facts]], duration_s: float) -> None:
    """Looks a few times at what tasks wait for, and keeps which of them went on: a new future may be where the one
    before it was."""
    for number in range(_LOOKS if duration_s else 1):
        time.sleep(duration_s / _LOOKS)
        begun = time.monotonic()
        for pid, entry in before.items():
            if first := {task["key"]: task["awaits"] for task in entry.get("tasks") or []}:
                now = {task["key"]: task["awaits"] for task in tasks_of(pid)}
                entry["went_on"] = entry.get("went_on", set()) | {key for key in first if first[key] != now.get(key)}
        if time.monotonic() - begun > _LOOK_S:
            # There are very many.
            time.sleep(duration_s * (_LOOKS - 1 - number) / _LOOKS)
            return


def _mark_moved_tasks(before: Facts, after: Facts) -> None:
    """Marks the tasks that wait for something else than before, or that are new. Those that wait for a while only, to
    look again, do so each time for something new."""
    every = {task["key"]: task for task in before.get("tasks") or []}
    first = {key: task.get("awaits") for key, task in every.items()}
    for task in (after.get("tasks") or []) if before.get("tasks") is not None else ():
        wait = task["wait"]
        _look_twice(every.get(task["key"], {}), task)
        looks_again = wait.get("kind") in _FOR_A_WHILE or wait.get("polls") or wait.get("timeout")
        went_on = first.get(task["key"]) != task.get("awaits") or task["key"] in before.get("went_on", ())
        if task.get("awaits") and went_on and not looks_again:
            task["moved"] = True


def awaiting(modules: Mapping[str, Object]) -> list[Facts]:
    """The tasks of a process that wait, and for which future."""
    tasks = [task for task in all_tasks(modules) if is_waiting(task)] if "asyncio.tasks" in modules else []
    return [{"key": f"{task.address:#x}", "awaits": awaited(task)} for task in tasks]
