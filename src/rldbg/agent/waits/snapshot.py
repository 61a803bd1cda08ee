"""Everything known about the waits of one process, as plain data that can be sent and merged with others."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .calls.distributed_calls import given_results, keys_ahead, objects_tried
from .calls.event_loops import all_tasks, failed_tasks, is_waiting, task_facts
from .calls.looking import Wait
from .code.called import names_asked_for, remote_ahead
from .code.places import is_users, own_frames, users_place
from .code.routes import lines_entering, route
from .code.source import Sources
from .others.failed_work import failed_futures
from .others.held_locks import class_of, held_locks, tell_apart
from .others.kept import ray_keeping
from .others.looked_for import asked_address, awaited_files, files_ahead
from .others.other_ends import leads_elsewhere, look_behind
from .others.process_groups import groups_made, name_groups, said_ranks
from .others.relations import name_by_others, relate
from .processes.ended import ended_processes, ended_threads, last_exception, own_threads
from .processes.open_files import listener, unflushed
from .processes.programs import ended_programs, program_behind
from .reading.chosen import given_name
from .reading.kernel import Facts, all_processes, children_of, thread_numbers, threading_libraries
from .reading.objects import Frame, Object, quoted
from .reading.process_views import OwnProcess, ProcessView, ThreadView
from .thread_entries import connections_of, frame_facts, pipe_descriptor, place_of, thread_entry, wanted_locks

_ADDED_TO_STACKS = (
    "native",
    "background",
    "pooled",
    "loops",
    "loop",
    "daemon",
    "handles",
    "serves",
    "kernel",
    "wait",
    "holds",
    "place",
    "connections",
    "calls",
    "calls_later",
    "gives",
    "sets",
    "sets_later",
    "shares",
    "may_call",
    "writes",
    "starts",
    "asks_for",
    "answers",
    "writes_files",
    "route",
    "enters",
    "backlog",
    "round",
)
# Libraries by which programs ask servers.
_CLIENTS = frozenset({"http.client", "httpx", "aiohttp", "requests", "grpc", "zmq"})
_Waiting = list[tuple[Facts, Sequence[Frame]]]


def snapshot(view: ProcessView, sources: Sources | None = None, *, with_locals: bool = False) -> Facts:
    """`threads`, `tasks`, `ended` (threads and processes that are gone) and `children` of a process."""
    sources, modules, seen_s = sources or Sources(view.pid), view.modules(), time.monotonic()
    seen = list(view.threads())
    threads = [replace(thread, frames=own_frames(thread.frames)) for thread in seen]
    entries = [thread_entry(thread, view.pid, sources) for thread in threads]
    forked = any(len(thread.frames) > len(own.frames) for thread, own in zip(seen, threads, strict=True))
    # A forked process also has the tasks of its parent, which are not run there.
    every_task = list(all_tasks(modules)) if not forked or any(entry["loops"] for entry in entries) else []
    tasks = [task_facts(task, sources) for task in every_task if is_waiting(task)]
    _name_native_locks(entries, view.pid, modules)
    waiting: _Waiting = [
        *((entry, thread.frames) for entry, thread in zip(entries, threads, strict=True)),
        *((task, task["frames"]) for task in tasks),
    ]
    if with_locals:
        _add_locals(entries, threads)
    _add_what_is_reached(waiting, modules, sources)
    name_by_others(waiting, sources)
    relate(waiting, sources)
    _tell_locks_apart(waiting)
    _add_files(waiting, view.pid, sources)
    for task in tasks:
        task["frames"] = [frame_facts(frame) for frame in task["frames"]]
    groups = name_groups([entry["wait"] for entry in entries], modules)
    ranks = max((group["size"] for group in groups), default=0)
    _add_routes(entries, threads, sources, ranks)
    _look_behind_all(waiting, view.pid, sources)
    stacks = [frames for _, frames in waiting]
    every_frame = [frame for frames in stacks for frame in frames]
    return {
        "seen_s": seen_s,
        "threads": sorted(entries, key=lambda entry: not entry["main"]),
        "tasks": tasks,
        "ended": [
            *ended_threads(modules, view.pid),
            *ended_processes(modules),
            *ended_programs(stacks if "subprocess" in modules else []),
            *failed_tasks(every_task),
            *failed_futures(stacks if "concurrent.futures" in modules else [], sources),
        ],
        "children": children_of(view.pid),
        "raised": last_exception(modules),
        "forked": forked,
        "process_name": given_name(modules),
        "distributed": ranks,
        "said_ranks": said_ranks(stacks) if ranks > 1 else {},
        "process_groups": groups,
        "groups_made": groups_made(modules),
        "ray_keeps": ray_keeping(modules),
        "unflushed": unflushed(modules, every_frame, sources),
        "asks_for": names_asked_for(every_frame if _CLIENTS & modules.keys() else [], sources),
    }


def _add_locals(entries: Sequence[Facts], threads: Sequence[ThreadView]) -> None:
    for entry, thread in zip(entries, threads, strict=True):
        for facts, frame in zip(entry["frames"], thread.frames, strict=True):
            facts["locals"] = {name: {"text": shown(value)} for name, value in frame.locals().items()}


def _add_what_is_reached(waiting: _Waiting, modules: Mapping[str, Object], sources: Sources) -> None:
    """The locks that each holds, the connections that it uses, what it asks of Ray and sets in a store."""
    in_libraries = any(_is_in_library(entry["wait"], frames) for entry, frames in waiting)
    for entry, frames in waiting:
        wait = entry["wait"]
        entry["holds"] = held_locks(
            frames, sources, wanted_locks(wait), given_back=str(wait.get("lock") or ""), libraries=in_libraries
        )
        entry["place"] = place_of(frames)
        entry["connections"] = connections_of(frames, sources)
        entry["calls"] = sorted(
            {name for frame in frames if is_users(frame.file) for name in sources.remote_calls(frame)}
        )
        by_ray = any("/ray/" in frame.file for frame in frames)
        entry["calls_later"] = remote_ahead(frames, sources) if by_ray else {}
        entry["gives"] = given_results(frames, sources) if entry["calls"] else []
        wait["program"] = program_behind(pipe_descriptor(wait), frames)
        entry["sets"] = [key for frame in frames if is_users(frame.file) for key in sources.keys_set(frame)]
        entry["sets_later"] = keys_ahead(frames, sources) if "torch.distributed" in modules else {}


def _add_files(waiting: _Waiting, pid: int, sources: Sources) -> None:
    """The files, objects of Ray and servers that each asks for in a loop, and the files that it will write."""
    for entry, frames in waiting:
        user = users_place(frames)
        if user is not None and entry["wait"].get("polls"):
            entry["wait"]["awaits_files"] = awaited_files(frames[user], pid, sources)
            entry["wait"]["tries"] = objects_tried(frames[user], sources)
            entry["wait"]["asks_at"] = asked_address(frames[user], sources)
        entry["writes_files"] = files_ahead(frames, pid, sources)


def _add_routes(entries: Sequence[Facts], threads: Sequence[ThreadView], sources: Sources, ranks: int) -> None:
    for entry, thread in zip(entries, threads, strict=True):
        takes_part = entry["main"] or entry["wait"]["kind"] in ("collective", "rendezvous")
        entry["route"] = route(thread.frames, sources) if ranks > 1 and takes_part else []
        entry["enters"] = lines_entering(thread.frames, sources) if ranks > 1 and takes_part else {}


def _look_behind_all(waiting: _Waiting, pid: int, sources: Sources) -> None:
    """The other ends of pipes and sockets are looked for among all processes, which takes a while."""
    waits = [entry["wait"] for entry, _ in waiting]
    far = any(leads_elsewhere(wait) or wait["kind"] == "child" for wait in waits)
    everyone = all_processes() if far else {}
    for wait in waits:
        look_behind(wait, pid, everyone)
    for entry, frames in waiting:
        entry["wait"]["reads_on"] = not entry.get("main") and _reads_in_loop(entry["wait"], frames, sources)
        accepted = entry["wait"]["reads_on"] and listener(pid, str(entry["wait"]["file"]["local"]))
        entry["wait"]["requests"] = bool(accepted)


def add_own_waits(stacks: dict[str, Any]) -> dict[str, Any]:
    """`stacks["threads"]` name the threads that are the user's; others are left out here too."""
    shown = {thread["ident"]: thread for thread in stacks["threads"]}
    found = snapshot(OwnProcess(frozenset(shown)))
    for thread in found.pop("threads"):
        shown[thread["ident"]].update({name: thread[name] for name in _ADDED_TO_STACKS})
    return stacks | found


def shown(value: Object) -> str:
    """A value in a few words; nothing of it is run."""
    text, number = quoted(value, 80), value.number()
    if text is not None:
        return text
    if number is not None:
        return str(bool(number)) if value.kind == "bool" else str(number)
    size = value.length()
    return "None" if value.kind == "NoneType" else f"<{value.kind}{f' of {size}' if size is not None else ''}>"


def _tell_locks_apart(waiting: Sequence[tuple[Facts, Sequence[Frame]]]) -> None:
    asked: list[tuple[Wait, Wait]] = []
    for entry, frames in waiting:
        user = users_place(frames)
        for choice in entry["wait"].get("choices") or [] if user is not None else ():
            choice["class"] = class_of(frames[user or 0])
            asked.append((entry["wait"], choice))
    held = [each for entry, _ in waiting for each in entry["holds"]]
    before = [str(choice["name"]) for _, choice in asked]
    tell_apart([lock for lock in (*(choice for _, choice in asked), *held) if str(lock["name"]).startswith("self.")])
    for (wait, choice), name in zip(asked, before, strict=True):
        wait["name"] = choice["name"] if wait.get("name") == name else wait.get("name")


def _is_in_library(wait: Wait, frames: Sequence[Frame]) -> bool:
    """Whether a lock is taken by a line of a library, for a line of the user or in a thread of its own."""
    return bool(wait.get("taken_in")) or (wait["kind"] == "lock" and not any(is_users(each.file) for each in frames))


def _reads_in_loop(wait: Wait, frames: Sequence[Frame], sources: Sources) -> bool:
    """Whether a loop awaits the next data of a connection. That is for requests at the end that has accepted it."""
    file, user = wait.get("file") or {}, users_place(frames)
    if wait.get("sends") or user is None or not (file.get("peer") and file.get("local")):
        return False
    return bool(sources.loops_around(frames[user]))


def _name_native_locks(entries: Sequence[Facts], pid: int, modules: Mapping[str, Object]) -> None:
    """A lock of a library in C that is awaited by the only thread of a process: nobody in it can release it, as after a
    fork, which copies the lock but not the thread that holds it."""
    blocked = [e for e in entries if e["wait"]["kind"] == "unknown" and e["kernel"].get("call") == "futex"]
    if not blocked or thread_numbers(pid) - own_threads(modules) != {blocked[0]["native"]}:
        return
    if blocked[0]["kernel"].get("state") == "sleeping":
        blocked[0]["wait"] = {"kind": "native_lock", "libraries": threading_libraries(pid)}
