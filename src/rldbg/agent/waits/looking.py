"""One thread under examination: its frames, the kernel's word about it, and the sources of its code."""

from collections.abc import Callable, Sequence
from typing import Any

from .kernel import Facts
from .objects import Frame, Object, is_a
from .places import users_place
from .source import Sources, resolve

Wait = dict[str, Any]
SHARED = "shared:"
LOCKS = (
    "lock",
    "RLock",
    "_RLock",
    "Condition",
    "Semaphore",
    "BoundedSemaphore",
    "Lock",
    "SemLock",
    "FileLock",
    "AcquirerProxy",
)


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


Rule = Callable[[Frame, Looking], Wait]
Rules = tuple[tuple[str, frozenset[str], Rule], ...]
"""End of the file's path, names of its functions, and what their frame tells."""


def own_wait(frame: Frame, kind: str, looking: Looking, *methods: str, **facts: Any) -> Wait:
    """A wait for the object whose method this is."""
    value = frame.variable("self")
    return {
        "kind": kind,
        "type": value.kind if value is not None else "",
        "name": looking.name(value, *methods),
        "key": f"{value.address:#x}" if value is not None else "",
        "timeout": has_timeout(frame),
    } | facts


def has_timeout(frame: Frame) -> bool:
    value = frame.variable("timeout")
    return value is not None and value.kind != "NoneType"


def lock_key(value: Object | None, name: str) -> str:
    """What tells locks apart: the address, that of a condition's own lock, or the name where no object is known."""
    if value is not None and is_a(value, "Condition"):
        value = value.get("_lock") or value
    token = value.get("_token") if value is not None and is_a(value, "AcquirerProxy") else None
    if token is not None and (number := token.get("id")) is not None:
        return f"{SHARED}manager:{number.text()}"
    inner = value.get("_semlock") if value is not None and is_a(value, "SemLock") else None
    if inner is not None and (shared := inner.shared_name()):
        return f"{SHARED}{shared}"
    return f"{value.address:#x}" if value is not None else f"~{name}"
