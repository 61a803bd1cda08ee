"""What is known about one thread: where it is, what it waits for, and what its functions can reach."""

from collections.abc import Sequence

from .calls.blocking import wait_of
from .calls.event_loops import transports_of
from .calls.looking import Looking, Wait
from .code.places import is_users, users_place
from .code.source import Sources
from .others.backlog import backlog
from .others.rounds import current_round
from .processes.ended import OUR_THREADS, ended_process, raised_facts
from .processes.kernel_threads import thread_facts
from .reading.kernel import Facts
from .reading.objects import Frame, is_a
from .reading.process_views import ThreadView

_MOST_HELD = 100
# Loops that are written in C show only who runs them.
_LOOPS = ("asyncio/base_events.py", "asyncio/runners.py")
# What Ray calls its threads that run them, which show nothing of the loop.
RAYS_LOOP = "AsyncIO Thread"
_POOLS = ("concurrent/futures/thread.py", "multiprocessing/pool.py")


def frame_facts(frame: Frame) -> Facts:
    return {"file": frame.file, "line": frame.line, "function": frame.function}


def _runs_an_item(frames: Sequence[Frame]) -> bool:
    """Whether a thread of a pool runs a submitted function, even one of a library."""
    return any(f.file.endswith(_POOLS[0]) and f.function.rpartition(".")[2] == "run" for f in frames)


def _event_loop(frames: Sequence[Frame]) -> str:
    """The address of the event loop that a thread runs, where a frame of asyncio has it."""
    owners = [frame.variable("self") for frame in frames if frame.file.endswith(_LOOPS)]
    loops = [owner.get("_loop") or owner for owner in owners if owner is not None]
    return f"{loops[0].address:#x}" if loops else ""


def thread_entry(thread: ThreadView, pid: int, sources: Sources) -> Facts:
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


def place_of(frames: Sequence[Frame]) -> Facts | None:
    user = users_place(frames)
    return frame_facts(frames[user or 0]) if frames else None


def wanted_locks(wait: Wait) -> set[str]:
    return {str(wait.get("key")), *(choice["key"] for choice in wait.get("choices") or [])}


def pipe_descriptor(wait: Wait) -> int | None:
    """The descriptor that is read or written, if it may be a pipe."""
    own = wait.get("descriptor")
    found = own if own is not None else (wait.get("file") or {}).get("descriptor")
    return int(found) if found is not None and wait["kind"] in ("pipe", "stream") else None


def connections_of(frames: Sequence[Frame], sources: Sources) -> list[int]:
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
