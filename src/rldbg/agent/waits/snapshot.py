"""Everything known about the waits of one process, as plain data that can be sent and merged with others."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .awaited_files import awaited_files, files_ahead
from .backlog import backlog
from .blocking import wait_of
from .called import names_asked_for, remote_ahead
from .chosen import OURS, given_name
from .connected import connected_processes, connection_to, is_listened, listening_at
from .distributed_calls import given_results, keys_ahead
from .ended import OUR_THREADS, ended_process, ended_processes, ended_threads, last_exception, own_threads, raised_facts
from .event_loops import all_tasks, failed_tasks, is_waiting, task_facts, transports_of
from .failed_work import failed_futures
from .file_locks import contested_file, file_lock_holders
from .held_locks import class_of, held_locks, tell_apart
from .kept import ray_keeping
from .kernel import (
    Facts,
    all_processes,
    children_of,
    hidden_relatives,
    process_facts,
    thread_numbers,
    threading_libraries,
)
from .kernel_threads import POLLING, thread_facts
from .lock_files import lock_file
from .looking import Looking, Wait
from .objects import Frame, Object, is_a
from .open_files import ends_of, file_facts, listener, other_end, unflushed
from .places import is_users, own_frames, users_place
from .process_groups import groups_made, name_groups
from .process_views import OwnProcess, ProcessView, ThreadView
from .programs import ended_programs, program_behind
from .relations import name_by_others, relate
from .rounds import current_round
from .routes import lines_entering, route
from .source import Sources
from .system_calls import kernel_wait
from .unix_sockets import unix_peer

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
_MOST_HELD = 100
# Libraries by which programs ask servers.
_CLIENTS = frozenset({"http.client", "httpx", "aiohttp", "requests", "grpc", "zmq"})
# Loops that are written in C show only who runs them.
_LOOPS = ("asyncio/base_events.py", "asyncio/runners.py")
# What Ray calls its threads that run them, which show nothing of the loop.
RAYS_LOOP = "AsyncIO Thread"
_POOLS = ("concurrent/futures/thread.py", "multiprocessing/pool.py")
# Waits that are followed through processes which are not inspected otherwise, and through how many.
_FOLLOWED, _MOST_BEHIND = ("child", "pipe", "stdin", "file_lock"), 4
_READING = ("queue_get", "stream", "stdin")


def snapshot(view: ProcessView, sources: Sources | None = None, *, with_locals: bool = False) -> Facts:
    """`threads`, `tasks`, `ended` (threads and processes that are gone) and `children` of a process."""
    sources, modules, seen_s = sources or Sources(view.pid), view.modules(), time.monotonic()
    seen = list(view.threads())
    threads = [replace(thread, frames=own_frames(thread.frames)) for thread in seen]
    entries = [_thread_entry(thread, view.pid, sources) for thread in threads]
    forked = any(len(thread.frames) > len(own.frames) for thread, own in zip(seen, threads, strict=True))
    # A forked process also has the tasks of its parent, which are not run there.
    every_task = list(all_tasks(modules)) if not forked or any(entry["loops"] for entry in entries) else []
    tasks = [task_facts(task, sources) for task in every_task if is_waiting(task)]
    _name_native_locks(entries, view.pid, modules)
    waiting: list[tuple[Facts, Sequence[Frame]]] = [
        *((entry, thread.frames) for entry, thread in zip(entries, threads, strict=True)),
        *((task, task["frames"]) for task in tasks),
    ]
    if with_locals:
        for entry, thread in zip(entries, threads, strict=True):
            for facts, frame in zip(entry["frames"], thread.frames, strict=True):
                facts["locals"] = {name: {"text": shown(value)} for name, value in frame.locals().items()}
    in_libraries = any(_is_in_library(entry["wait"], frames) for entry, frames in waiting)
    for entry, frames in waiting:
        wait = entry["wait"]
        entry["holds"] = held_locks(
            frames, sources, _wanted(wait), given_back=str(wait.get("lock") or ""), libraries=in_libraries
        )
        entry["place"] = _place(frames)
        entry["connections"] = _connections(frames, sources)
        entry["calls"] = sorted(
            {name for frame in frames if is_users(frame.file) for name in sources.remote_calls(frame)}
        )
        by_ray = any("/ray/" in frame.file for frame in frames)
        entry["calls_later"] = remote_ahead(frames, sources) if by_ray else {}
        entry["gives"] = given_results(frames, sources) if entry["calls"] else []
        wait["program"] = program_behind(_pipe_descriptor(wait), frames)
        entry["sets"] = [key for frame in frames if is_users(frame.file) for key in sources.keys_set(frame)]
        entry["sets_later"] = keys_ahead(frames, sources) if "torch.distributed" in modules else {}
    name_by_others(waiting, sources)
    relate(waiting, sources)
    _tell_locks_apart(waiting)
    for entry, frames in waiting:
        user = users_place(frames)
        looks = user is not None and entry["wait"].get("polls")
        entry["wait"] |= (
            {"awaits_files": awaited_files(frames[user], view.pid, sources)} if looks and user is not None else {}
        )
        entry["writes_files"] = files_ahead(frames, view.pid, sources)
    for task in tasks:
        task["frames"] = [frame_facts(frame) for frame in task["frames"]]
    groups = name_groups([entry["wait"] for entry in entries], modules)
    ranks = max((group["size"] for group in groups), default=0)
    for entry, thread in zip(entries, threads, strict=True):
        takes_part = entry["main"] or entry["wait"]["kind"] in ("collective", "rendezvous")
        entry["route"] = route(thread.frames, sources) if ranks > 1 and takes_part else []
        entry["enters"] = lines_entering(thread.frames, sources) if ranks > 1 and takes_part else {}
    # The other ends of pipes and sockets are looked for among all processes, which takes a while.
    waits = [entry["wait"] for entry, _ in waiting]
    far = any(_leads_elsewhere(wait) or wait["kind"] == "child" for wait in waits)
    everyone = all_processes() if far else {}
    for wait in waits:
        _look_behind(wait, view.pid, everyone)
    for entry, frames in waiting:
        entry["wait"]["reads_on"] = not entry.get("main") and _reads_in_loop(entry["wait"], frames, sources)
        accepted = entry["wait"]["reads_on"] and listener(view.pid, str(entry["wait"]["file"]["local"]))
        entry["wait"]["requests"] = bool(accepted)
    return {
        "seen_s": seen_s,
        "threads": sorted(entries, key=lambda entry: not entry["main"]),
        "tasks": tasks,
        "ended": [
            *ended_threads(modules, view.pid),
            *ended_processes(modules),
            *ended_programs([frames for _, frames in waiting] if "subprocess" in modules else []),
            *failed_tasks(every_task),
            *failed_futures([frames for _, frames in waiting] if "concurrent.futures" in modules else [], sources),
        ],
        "children": children_of(view.pid),
        "raised": last_exception(modules),
        "forked": forked,
        "process_name": given_name(modules),
        "distributed": ranks,
        "process_groups": groups,
        "groups_made": groups_made(modules),
        "ray_keeps": ray_keeping(modules),
        "unflushed": unflushed(modules, [frame for _, frames in waiting for frame in frames], sources),
        "asks_for": names_asked_for(
            [frame for _, frames in waiting for frame in frames] if _CLIENTS & modules.keys() else [], sources
        ),
    }


def add_own_waits(stacks: dict[str, Any]) -> dict[str, Any]:
    """`stacks["threads"]` name the threads that are the user's; others are left out here too."""
    shown = {thread["ident"]: thread for thread in stacks["threads"]}
    found = snapshot(OwnProcess(frozenset(shown)))
    for thread in found.pop("threads"):
        shown[thread["ident"]].update({name: thread[name] for name in _ADDED_TO_STACKS})
    return stacks | found


def shown(value: Object) -> str:
    """A value in a few words; nothing of it is run."""
    text, number = value.text(), value.number()
    if text is not None:
        return repr(text[:80])
    if number is not None:
        return str(bool(number)) if value.kind == "bool" else str(number)
    size = value.length()
    return "None" if value.kind == "NoneType" else f"<{value.kind}{f' of {size}' if size is not None else ''}>"


def frame_facts(frame: Frame) -> Facts:
    return {"file": frame.file, "line": frame.line, "function": frame.function}


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


def _runs_an_item(frames: Sequence[Frame]) -> bool:
    """Whether a thread of a pool runs a submitted function, even one of a library."""
    return any(f.file.endswith(_POOLS[0]) and f.function.rpartition(".")[2] == "run" for f in frames)


def _event_loop(frames: Sequence[Frame]) -> str:
    """The address of the event loop that a thread runs, where a frame of asyncio has it."""
    owners = [frame.variable("self") for frame in frames if frame.file.endswith(_LOOPS)]
    loops = [owner.get("_loop") or owner for owner in owners if owner is not None]
    return f"{loops[0].address:#x}" if loops else ""


def _thread_entry(thread: ThreadView, pid: int, sources: Sources) -> Facts:
    kernel = thread_facts(pid, thread.native) if thread.native else {}
    looking = Looking(thread.frames, kernel, sources, ended_process)
    return {
        "thread": thread.name,
        "ident": thread.ident,
        "native": thread.native,
        "main": thread.native == pid or thread.name == "MainThread",
        "background": thread.name.startswith(OUR_THREADS)
        or (users_place(thread.frames) is None and not _runs_an_item(thread.frames)),
        "pooled": any(frame.file.endswith(_POOLS) for frame in thread.frames[users_place(thread.frames) or 0 :]),
        "loops": any(frame.file.endswith(_LOOPS) for frame in thread.frames)
        or (thread.name.startswith(RAYS_LOOP) and users_place(thread.frames) is not None),
        "loop": _event_loop(thread.frames),
        "daemon": thread.daemon,
        "handles": raised_facts(thread.handled),
        "serves": any(frame.file.endswith("grpc/_server.py") for frame in thread.frames),
        "frames": [frame_facts(frame) for frame in thread.frames],
        "kernel": {
            name: kernel[name] for name in ("state", "cpu", "call", "channel", "wakes", "one_end") if name in kernel
        },
        "wait": wait_of(looking),
        "backlog": backlog(thread.frames, sources),
        "round": current_round(thread.frames, sources),
    }


def _name_native_locks(entries: Sequence[Facts], pid: int, modules: Mapping[str, Object]) -> None:
    """A lock of a library in C that is awaited by the only thread of a process: nobody in it can release it, as after a
    fork, which copies the lock but not the thread that holds it."""
    blocked = [e for e in entries if e["wait"]["kind"] == "unknown" and e["kernel"].get("call") == "futex"]
    if not blocked or thread_numbers(pid) - own_threads(modules) != {blocked[0]["native"]}:
        return
    if blocked[0]["kernel"].get("state") == "sleeping":
        blocked[0]["wait"] = {"kind": "native_lock", "libraries": threading_libraries(pid)}


def _place(frames: Sequence[Frame]) -> Facts | None:
    user = users_place(frames)
    return frame_facts(frames[user or 0]) if frames else None


def _wanted(wait: Wait) -> set[str]:
    return {str(wait.get("key")), *(choice["key"] for choice in wait.get("choices") or [])}


def _pipe_descriptor(wait: Wait) -> int | None:
    """The descriptor that is read or written, if it may be a pipe."""
    own = wait.get("descriptor")
    found = own if own is not None else (wait.get("file") or {}).get("descriptor")
    return int(found) if found is not None and wait["kind"] in ("pipe", "stream") else None


def _connections(frames: Sequence[Frame], sources: Sources) -> list[int]:
    """The descriptors of the sockets and pipes that the current functions use: the user's, and that of a server's
    request."""
    own = [frame for frame in frames if is_users(frame.file) or frame.file.endswith("socketserver.py")]
    named = [value for frame in own for value in frame.locals().values()]
    values = [each for value in named for each in (value, *value.attributes().values(), *value.elements()[:_MOST_HELD])]
    values += [value for frame in own if is_users(frame.file) for value, _ in sources.names(frame)]
    found = [value.descriptor() for value in values]
    handles = [value.get("_handle") for value in values if is_a(value, "_ConnectionBase")]
    found += [handle.number() for handle in handles if handle is not None]
    # Those of asyncio's streams are in their transport.
    transports = [value.get("_transport") for value in values if is_a(value, "StreamReader", "StreamWriter")]
    # Those of a server's request, and of its handler, lead to it.
    handlers = [value for frame in frames if (value := frame.variable("self")) is not None]
    transports += [transport for value in (*named, *handlers) for transport in transports_of(value)]
    numbers = [each.get("_sock_fd") for each in transports if each is not None]
    found += [number.number() for number in numbers if number is not None]
    found += [number for frame in own if is_users(frame.file) for number in sources.files_used(frame)]
    return sorted({each for each in found if each is not None})


def _any_process(pid: int, everyone: Mapping[int, Facts], seen: frozenset[int]) -> Facts:
    """A process of any language: its facts, what its first thread waits for as the kernel sees it, and for whom."""
    facts = process_facts(pid)
    if not facts or OURS.match(facts["command"]):
        return {}
    if facts["state"] != "sleeping":
        return facts
    wait = kernel_wait(Looking((), thread_facts(pid, pid), Sources(pid), ended_process))
    below = children_of(pid) if wait is not None and wait["kind"] == "child" else []
    if wait is not None and wait["kind"] in _FOLLOWED and len(seen) < _MOST_BEHIND:
        _look_behind(wait, pid, everyone, seen | {pid}, [child["pid"] for child in below])
    return facts | {"wait": wait, "children": below}


def _leads_elsewhere(wait: Wait) -> bool:
    told = wait.get("file") or wait.get("files") or wait["kind"] == "message"
    return bool(told or wait.get("address") or "rpc" in wait) or wait.get("descriptor") is not None


def _known_ends(pid: int, ends: set[int], everyone: Mapping[int, Facts]) -> list[int] | None:
    """None if a process that we may not inspect may have it."""
    return sorted(ends) if ends - {pid} or not hidden_relatives(pid, everyone) else None


def _look_at_lock_file(wait: Wait, pid: int, path: str) -> None:
    """Adds the file whose removal is waited for; where it names a process, that process is waited for."""
    wait["lock_file"] = file = lock_file(pid, path)
    if "ended" in file:
        wait |= {"kind": "lock_file", "polls": "", "path": path, "holders": [] if file["ended"] else [file["pid"]]}


def _look_behind(
    wait: Wait,
    pid: int,
    everyone: Mapping[int, Facts],
    seen: frozenset[int] = frozenset(),
    children: Sequence[int] = (),
) -> None:
    """Who is at the other end of a pipe, holds a file lock, or is the process that is waited for; and so on for
    processes that are not inspected otherwise, without those `seen`."""
    if wait.get("address") and wait.get("descriptor") is None:
        wait["descriptor"] = connection_to(pid, str(wait["address"]))
    if wait.get("descriptor") is not None:
        wait["file"] = file_facts(pid, int(wait["descriptor"]))
    file = wait.get("file") or {}
    if file.get("kind") == "pipe":
        reads = wait["kind"] in _READING and not wait.get("sends")
        wants_writer = reads or wait.get("call") in ("read", "readv", *POLLING)
        every = ends_of(str(file.get("inode")), dict(everyone))
        ends = [end for end in every if end["writes"] == wants_writer]
        wait["openers"] = sorted({end["pid"] for end in every})
        wait["ends"] = _known_ends(pid, {end["pid"] for end in ends}, everyone)
        wait["sockets"] = [[end["pid"], end["descriptor"]] for end in ends]
    if file.get("peer") and (other := other_end(pid, file)) is not None:
        if other == "0" or file.get("connection") == "connecting":
            wait["accepted"] = False
            other = listener(pid, str(file["peer"]))
        ends = ends_of(other, dict(everyone)) if other else []
        # An end that no inspectable process has is another user's, or in another container.
        wait["ends"] = sorted({end["pid"] for end in ends}) if ends or not other else None
        wait["sockets"] = [[end["pid"], end["descriptor"]] for end in ends]
    elif file.get("kind") == "socket" and not file.get("local") and (peer := unix_peer(str(file["inode"]))):
        # No process has it open before the connection is accepted: who will accept it is unknown.
        ends = ends_of(peer, dict(everyone))
        wait["ends"] = sorted({end["pid"] for end in ends}) or None
        wait["sockets"] = [[end["pid"], end["descriptor"]] for end in ends]
    pipes = [str(each["inode"]) for each in wait.get("files") or [] if each.get("kind") == "pipe"]
    if pipes:
        wait["ends"] = sorted({end["pid"] for each in pipes for end in ends_of(each, dict(everyone)) if end["writes"]})
    inside, database = wait.pop("inside", False), wait.pop("database", False)
    if inside and (path := contested_file(pid) or (contested_file(pid, own=True) if database else "")):
        # Libraries in C (databases, HDF5) sleep and retry while another process has locked their file, or this one by
        # another connection.
        wait |= {"kind": "file_lock", "path": path, "polls": ""}
    if wait["kind"] == "message":
        wait["ends"] = connected_processes(pid, everyone, "zmq")
    if "rpc" in wait and not file:
        # Calls of asyncio keep their address in C: a single process at the other end of a connection is meant.
        others = connected_processes(pid, everyone, "cygrpc") or []
        wait["ends"] = others if len(others) == 1 else None
    if wait.get("meets_at"):
        wait["listened"] = is_listened(pid, str(wait["meets_at"]))
        wait["listens"] = listening_at(pid)
    if wait["kind"] == "file_lock":
        wait["holders"] = file_lock_holders(pid, str(wait.get("path") or ""))
    if absence := wait.pop("absence_of", ""):
        _look_at_lock_file(wait, pid, str(absence))
    if wait["kind"] == "child" and wait.get("pid"):
        wait["child"] = process_facts(int(wait["pid"]))
    concerned = [*(wait.get("ends") or []), *(wait.get("holders") or []), *([wait["pid"]] if wait.get("child") else [])]
    others = [each for each in (*concerned, *children) if each != pid and each not in seen]
    wait["processes"] = [facts for each in others if (facts := _any_process(each, everyone, seen | {pid}))]
