"""One thread that is inspected: its frames, the kernel's information about it, and its source files."""

from collections.abc import Callable, Sequence
from typing import Any

from ..code.places import users_place
from ..code.resolving import resolve
from ..code.source import Sources
from ..reading.kernel import Facts
from ..reading.objects import Frame, Object, is_a

Wait = dict[str, Any]
# What a collective is in that is given no process group.
DEFAULT_GROUP = "default"
SHARED = "shared:"
# Followed by the id of the queue's actor, or from outside by bytes that contain it.
SHARED_BY_RAY = f"{SHARED}ray:"
_RAY_ID_BYTES = 64
LOCKS = (
    "lock",
    "RLock",
    "_RLock",
    "Condition",
    "Semaphore",
    "BoundedSemaphore",
    "Lock",
    "SemLock",
    "BaseFileLock",
    "AcquirerProxy",
)

# Where the objects of multiprocessing keep the semaphore that they are made of: locks, events, conditions, barriers.
_SEMAPHORES = (
    ("_semlock",),
    ("_flag", "_semlock"),
    ("_lock", "_semlock"),
    ("_cond", "_lock", "_semlock"),
    ("_rlock", "_semlock"),
    (),
)
_SYNCHRONIZED = ("SemLock", "Event", "Condition", "Barrier", "Queue", "SimpleQueue", "SynchronizedBase")


class Looking:
    """One thread under examination."""

    def __init__(
        self, frames: Sequence[Frame], kernel: Facts, sources: Sources, ended: Callable[[Object], str]
    ) -> None:
        self.frames = frames
        self.kernel = kernel
        self.sources = sources
        self.ended = ended
        self.user = users_place(frames)

    @property
    def place(self) -> Frame | None:
        """The line of the user that waits, else the innermost one."""
        return self.frames[self.user or 0] if self.frames else None

    def name(self, value: Object | None, *methods: str) -> str:
        """What the user's line calls an object."""
        calls = self.sources.calls_at(self.place) if self.place is not None else []
        for call in calls:
            found = resolve(call.receiver, self.place) if self.place is not None else None
            if value is not None and found is not None and found.address == value.address:
                return call.name
        return next((call.name for call in calls if call.method in methods and call.receiver is not None), "")

    def is_replaced(self, value: Object | None, name: str, *methods: str) -> bool:
        """Whether the user's line gives this name to another object of the same kind by now."""
        return self.place is not None and was_replaced(value, name, methods, self.place, self.sources)


def was_replaced(value: Object | None, name: str, methods: Sequence[str], place: Frame, sources: Sources) -> bool:
    calls = [call for call in sources.calls_at(place) if call.name == name and call.method in methods]
    now = [found for call in calls if (found := resolve(call.receiver, place)) is not None]
    return value is not None and bool(now) and all(e.kind == value.kind and e.address != value.address for e in now)


WaitRule = Callable[[Frame, Looking], Wait]
WaitRules = tuple[tuple[str, frozenset[str], WaitRule], ...]
"""End of the file's path, names of its functions, and what their frame tells."""


def own_wait(frame: Frame, kind: str, looking: Looking, *methods: str, **facts: Any) -> Wait:
    """A wait for the object whose method this is."""
    value = frame.variable("self")
    name = looking.name(value, *methods)
    return {
        "kind": kind,
        "type": value.kind if value is not None else "",
        "name": name,
        "replaced": looking.is_replaced(value, name, *methods),
        "key": f"{value.address:#x}" if value is not None else "",
        "shared": shared_key(value),
        "timeout": has_timeout(frame),
    } | facts


def shared_semaphore(value: Object, name: str) -> Wait:
    """A wait for one of multiprocessing: others than who took it may release it."""
    key = lock_key(value, name)
    wait = {"kind": "semaphore", "name": name, "key": f"{value.address:#x}", "between": "processes", "shared": key}
    return wait | {"type": value.kind, "choices": [{"name": name, "key": key, "owner": None}]}


def queue_of(frame: Frame) -> Object | None:
    """The queue that a frame takes an item of or puts one in; a part of it for one kind of callers leads to it."""
    value = frame.variable("self") if frame.function.rpartition(".")[2] in ("get", "put", "join") else None
    return (value.get("_parent") or value) if value is not None and "Queue" in value.kind else None


def queue_facts(queue: Object) -> Wait:
    items, limit = queue.get("queue") or queue.get("_queue"), queue.get("_maxsize") or queue.get("maxsize")
    unmarked = queue.get("unfinished_tasks") or queue.get("_unfinished_tasks")
    return {
        "key": f"{queue.address:#x}",
        "size": items.length() if items is not None else _size_between_processes(queue),
        "limit": limit.number() if limit is not None else None,
        "unmarked": unmarked.number() if unmarked is not None else None,
    }


def _size_between_processes(queue: Object) -> int | None:
    """A queue of multiprocessing takes one of its semaphore for each item that is put in."""
    limit, room = queue.get("_maxsize"), queue.get("_sem")
    lock = room.get("_semlock") if room is not None else None
    left = lock.permits() if lock is not None else None
    most = limit.number() if limit is not None else None
    return most - left if most is not None and left is not None else None


def barrier_facts(barrier: Object) -> Wait:
    numbers = {name: barrier.get(f"_{name}") for name in ("parties", "count")}
    return {name: each.number() if each is not None else None for name, each in numbers.items()}


def serves(frame: Frame) -> bool:
    """A library function in which a program stays while it serves requests: this wait is normal."""
    return frame.function.rpartition(".")[2] in ("serve_forever", "wait_for_termination")


def is_feeder(frame: Frame) -> bool:
    """The function that writes the items of a queue of multiprocessing into its pipe."""
    return frame.file.endswith("multiprocessing/queues.py") and frame.function.rpartition(".")[2] == "_feed"


def has_timeout(frame: Frame) -> bool:
    value = frame.variable("timeout")
    return value is not None and value.kind != "NoneType"


def lock_key(value: Object | None, name: str) -> str:
    """What tells locks apart: what processes know it by, the address, that of a condition's own lock, or the name where
    no object is known."""
    if shared := shared_key(value):
        return shared
    if path := locked_path(value):
        return file_key(path)
    if value is not None and is_a(value, "Condition"):
        value = value.get("_lock") or value
    return f"{value.address:#x}" if value is not None else f"~{name}"


def locked_path(value: Object | None) -> str:
    """The file of a lock of the library filelock."""
    inner = value.get("_context") or value if is_a(value, "BaseFileLock") and value is not None else None
    path = inner.get("lock_file") or inner.get("_lock_file") if inner is not None else None
    return (path.text() if path is not None else "") or ""


def file_key(path: str) -> str:
    """What a lock on a file is known by: each thread has an object of its own for it."""
    return f"file:{path}"


def ray_id(value: Object | None) -> str:
    """The id of one of Ray's objects; from outside, the bytes that hold it."""
    own, raw = getattr(value, "value", None), getattr(value, "raw", None)
    try:
        return str(raw(_RAY_ID_BYTES).hex() if raw is not None else own.hex() if own is not None else "")
    except (AttributeError, TypeError, RuntimeError):
        return ""


def is_ray_queue(value: Object | None) -> bool:
    """One of `ray.util.queue`: its items are in an actor."""
    return value is not None and value.kind == "Queue" and "actor" in value.attributes()


def ray_queue_wait(frame: Frame, name: str, tasks: Sequence[str] = ()) -> Wait:
    """In a method of a queue of Ray that takes an item or puts one in, which asks its actor by `tasks`."""
    queue, action = frame.variable("self"), "get" if "get" in frame.function.rpartition(".")[2] else "put"
    key = f"{queue.address:#x}" if queue is not None else ""
    wait = {"kind": f"queue_{action}", "type": "Ray queue", "between": "ray", "name": name, "key": key}
    return wait | {"shared": shared_key(queue), "timeout": has_timeout(frame), "tasks": list(tasks)}


def shared_key(value: Object | None) -> str:
    """What all processes know an object by that they share: its number at its manager, or the semaphore that it is
    made of, or the actor of a queue of Ray; empty for any other object."""
    token = value.get("_token") if is_a(value, "BaseProxy") and value is not None else None
    if token is not None and (number := token.get("id")) is not None:
        return f"{SHARED}manager:{number.text()}"
    if is_ray_queue(value) and value is not None and (actor := value.get("actor")) is not None:
        return f"{SHARED_BY_RAY}{ray_id(actor.get('_ray_actor_id'))}"
    for path in _SEMAPHORES if is_a(value, *_SYNCHRONIZED) else ():
        inner = value
        for name in path:
            inner = inner.get(name) if inner is not None else None
        if inner is not None and (shared := inner.shared_name()):
            return f"{SHARED}{shared}"
    return ""
