"""A process as the analysis needs it: its threads and modules, from inside or, by its memory, from outside."""

import os
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any, Protocol

from .far_objects import FarFrame, modules_of, object_at
from .memory import ProcessMemory
from .objects import Frame, Object, OwnFrame, OwnObject

_THREADS = 20_000


@dataclass(frozen=True)
class ThreadView:
    """One thread; frames are innermost first."""

    name: str
    ident: int
    native: int
    frames: Sequence[Frame]
    daemon: bool = False
    owns_gil: bool = False
    handled: Object | None = None
    """The exception that it handles now."""


class ProcessView(Protocol):
    @property
    def pid(self) -> int: ...
    def threads(self) -> list[ThreadView]: ...
    def modules(self) -> Mapping[str, Object]: ...


class OwnProcess:
    """The process that runs this, with the threads that are `shown`."""

    def __init__(self, shown: frozenset[int]) -> None:
        self.pid = os.getpid()
        self._shown = shown

    def threads(self) -> list[ThreadView]:
        known: dict[int, threading.Thread] = getattr(threading, "_active", {})
        found = []
        handled: dict[int, Any] = sys._current_exceptions()
        for ident, innermost in sys._current_frames().items():
            thread = known.get(ident)
            frames: list[Frame] = []
            frame: FrameType | None = innermost
            while frame is not None and len(frames) < 500:
                frames.append(OwnFrame(frame))
                frame = frame.f_back
            if ident in self._shown:
                name = thread.name if thread else f"thread-{ident}"
                # After a fork Python 3.11 still knows the main thread by its number in the parent.
                is_main = thread is threading.main_thread()
                native = self.pid if is_main else (thread.native_id if thread else None) or 0
                error = handled.get(ident)
                # Python 3.11 has its type, value and traceback there.
                error = error[1] if isinstance(error, tuple) else error
                view = ThreadView(name, ident, native, frames, thread is None or thread.daemon)
                found.append(replace(view, handled=OwnObject(error)) if error is not None else view)
        return found

    def modules(self) -> Mapping[str, Object]:
        return {name: OwnObject(module) for name, module in list(sys.modules.items())}


class FarProcess:
    """Another process of this host."""

    def __init__(self, memory: ProcessMemory) -> None:
        self.pid = memory.pid
        self._memory = memory
        self._modules = modules_of(memory)

    def threads(self) -> list[ThreadView]:
        module = self._modules.get("threading")
        active = module.get("_active") if module is not None else None
        names: dict[str, str] = {}
        daemons: set[str] = set()
        for ident, thread in active.items() if active is not None else ():
            name, daemon = thread.get("_name"), thread.get("_daemonic")
            names[ident] = (name.text() if name is not None else "") or ""
            if daemon is not None and daemon.number():
                daemons.add(ident)
        found = []
        for each in threads_of(self._memory):
            default = "MainThread" if each.native == self.pid else f"thread-{each.ident}"
            ident = str(each.ident)
            ends = ident in daemons or ident not in names
            view = ThreadView(names.get(ident) or default, each.ident, each.native, each.frames(), ends)
            found.append(replace(view, handled=each.handled()))
        return found

    def modules(self) -> Mapping[str, Object]:
        return self._modules

    def is_torn(self) -> bool:
        """Whether the frames of the main thread do not reach down to its program: it ran while they were read."""
        main = next((thread for thread in threads_of(self._memory) if thread.native == self.pid), None)
        frames = main.frames() if main is not None else []
        return main is not None and not (frames and frames[-1].function == "<module>")


def threads_of(memory: ProcessMemory) -> "list[FarThread]":
    """Every thread that runs Python code; the one that was started last comes first."""
    state = memory.word(memory.interpreter() + memory.layout["threads"])
    found: dict[int, FarThread] = {}
    while state and state not in found and len(found) < _THREADS:
        found[state] = FarThread(memory, state)
        # Thread states are a list: each begins with the previous and the next one.
        state = memory.word(state + 8)
    return list(found.values())


class FarThread:
    """A thread of another process: identity and frames, innermost first."""

    def __init__(self, memory: ProcessMemory, state: int) -> None:
        self._memory = memory
        self._state = state
        self.ident = memory.word(state + memory.layout["thread_ident"])
        self.native = memory.word(state + memory.layout["thread_native"])

    def handled(self) -> Object | None:
        at = self._memory.layout["handled"]
        address = self._memory.word(self._state + at) if at >= 0 else 0
        return object_at(self._memory, address) if address else None

    def frames(self) -> list[FarFrame]:
        memory, layout = self._memory, self._memory.layout
        holder = self._state if layout["frame_holder"] < 0 else memory.word(self._state + layout["frame_holder"])
        address = memory.word(holder + layout["current_frame"])
        found: dict[int, FarFrame] = {}
        # A thread that runs meanwhile may make its frames look like a ring.
        while address and address not in found and len(found) < 500:
            found[address] = FarFrame(memory, address)
            address = memory.word(address + layout["frame_previous"])
        return [frame for frame in found.values() if frame.file]
