"""Every process of the run with an agent, or that Ray reports as paused: its identity and state."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from rldbg.agent import Message, Selection, Subject
from rldbg.live.broker.async_peer import AsyncPeer
from rldbg.live.broker.debug_session import DebugSession
from rldbg.live.broker.stop import Stop

_PAUSING = "pausing: it stops at its next line of Python"
ProcessState = Literal["running", "stopped", "crashed", "exited"]


@dataclass(eq=False)
class Process:
    """One process. `session` exists while it is debugged; `declared` is a stop that the agent announced."""

    number: int
    facts: dict[str, Any]
    agent: AsyncPeer | None = None
    open_session: Callable[["Process"], Awaitable[None]] | None = None
    who: str = ""
    role: str = ""
    helps: "Process | None" = None
    session: DebugSession | None = None
    declared: Stop | None = None
    crash: Message | None = None
    stops_seen: int = 0
    stop_count: int = 0
    failure: str = ""
    arrived_at: float = field(default_factory=time.time)
    ended_at: float | None = None
    said_goodbye: bool = False
    # Errors that its program has said, as last told, with the name that the program gave it and who started it.
    said: Message = field(default_factory=dict)
    said_at: float = 0.0
    # Numbers of debug sessions: those whose process sees all breakpoints, and those that are over.
    armed: set[int] = field(default_factory=set)
    over: set[int] = field(default_factory=set)
    asked_at: float = 0.0
    attached: Counter[str] = field(default_factory=Counter)
    # How many requests are about to use its session; it must not be released meanwhile.
    users: int = 0
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def stop(self) -> Stop | None:
        if self.session is not None and self.session.stop is not None:
            return self.session.stop
        return self.declared

    @property
    def is_standing(self) -> bool:
        """Whether it is stopped in a debug session and can be inspected."""
        return self.session is not None and self.session.stop is not None

    @property
    def state(self) -> ProcessState:
        if self.stop is not None:
            return "stopped"
        if self.ended_at is not None:
            return "crashed" if self.crash else "exited"
        return "crashed" if self.crash and self.crash.get("where") in ("process", "child") else "running"

    @property
    def is_pausing(self) -> bool:
        """Whether a pause is pending: no line of Python was reached since it was requested."""
        return self.session is not None and self.session.is_pausing

    @property
    def is_alive(self) -> bool:
        return self.ended_at is None

    @property
    def rank(self) -> int | None:
        """None for a helper: it inherited its parent's RANK and is not that rank."""
        return None if self.helps is not None else self.facts.get("rank")

    def order(self) -> tuple[str, int, int]:
        return (self.role, -1 if self.rank is None else self.rank, self.number)

    def subject(self) -> Subject:
        return Subject(
            who=self.who,
            role=self.role,
            rank=self.rank,
            coordinates=self.facts.get("coordinates") or {},
            pid=int(self.facts.get("pid") or 0),
            former=self._former_name(),
        )

    def _former_name(self) -> str:
        """Until Ray has started, a driver has the name of its script; until its rank is known, and for Ray, an actor
        has the name that the program gave it."""
        given = {"driver": self.facts.get("program"), "actor": (self.facts.get("ray") or {}).get("actor")}
        return str(given.get(str(self.facts.get("kind"))) or "")

    def touch(self) -> None:
        """Wakes everything that waits for this process to change."""
        self.changed.set()
        self.changed = asyncio.Event()

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Keeps the session from being released while a request is about to stop the process or attach to it."""
        self.users += 1
        try:
            yield
        finally:
            self.users -= 1

    async def wait_until(self, condition: Callable[[], bool], timeout_s: float | None) -> bool:
        """Whether the condition came true in time."""
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    await self.changed.wait()
        except TimeoutError:
            return False
        return True

    @property
    def is_settled(self) -> bool:
        """Whether waiting for a usable session is over: there is one, there will be none, or the process is gone."""
        if self.failure or not self.is_alive:
            return True
        if self.session is None or self.session.ended.is_set():
            return False
        return self.session.number in self.armed or self.agent is None or self.session.stop is not None

    def to_dict(self) -> dict[str, Any]:
        stop = self.stop
        crash = self.crash or {}
        # Of one that runs again, what raised is in its crash file: it is elsewhere by now.
        at_crash = crash if self.state in ("crashed", "exited") else {}
        known = stop.to_dict() if stop else {name: at_crash.get(name) for name in ("file", "line", "function")}
        return {
            "who": self.who,
            "role": self.role,
            "rank": self.rank,
            "state": self.state,
            "file": known.get("file"),
            "line": known.get("line"),
            "function": known.get("function"),
            "host": self.facts.get("host"),
            "pid": self.facts.get("pid"),
            "thread": stop.thread if stop else None,
            "since_s": round(time.time() - stop.since, 1) if stop else None,
            "attached_by": sorted(self.attached),
            "reason": stop.reason if stop else None,
            "stop_number": self.stop_count if stop else None,
            "notes": list(stop.notes) if stop else [_PAUSING] * self.is_pausing,
            "pausing": self.is_pausing,
            "crash_file": crash.get("path"),
            "message": crash.get("message"),
            "crashed_as": crash.get("who"),
            "hold": crash.get("hold"),
            "world_size": self.facts.get("world_size"),
            "coordinates": self.facts.get("coordinates") or {},
            "kind": self.facts.get("kind"),
            "idle": bool(self.facts.get("idle")),
            "python": self.facts.get("python"),
            "ray": self.facts.get("ray") or {},
            "lost": self.ended_at is not None and not self.said_goodbye,
            "debugged": self.session is not None,
        }


class ProcessTable:
    """All processes by arrival. Names are given anew whenever something changed, so that they stay unique."""

    def __init__(self) -> None:
        self._processes: dict[int, Process] = {}
        self._last = 0

    def add(self, facts: dict[str, Any], **fields: Any) -> Process:
        self._last += 1
        process = Process(self._last, facts, **fields)
        self._processes[self._last] = process
        self.rename()
        return process

    def remove(self, process: Process) -> None:
        self._processes.pop(process.number, None)

    def __iter__(self) -> Iterator[Process]:
        """By role and rank, then by arrival."""
        return iter(sorted(self._processes.values(), key=Process.order))

    def find(self, host: str, pid: int) -> Process | None:
        """The latest process with this id on that host; process ids are reused, so a live one wins."""
        matches = [p for p in self if p.facts.get("host") == host and p.facts.get("pid") == pid]
        return max(matches, key=lambda p: (p.is_alive, p.number), default=None)

    def select(self, selection: Selection) -> list[Process]:
        return [process for process in self if selection.matches(process.subject())]

    def rename(self) -> None:
        everyone = list(self._processes.values())
        by_pid = {(process.facts.get("host"), process.facts.get("pid")): process for process in everyone}
        for process in everyone:
            process.helps = _helped(process, by_pid)
            own = str(process.facts.get("role") or "process")
            process.role = own if process.helps is None else f"{process.helps.role or own}.child"
        listed = [process for process in everyone if process.is_alive or process.crash]
        names, ever = (Counter(map(_plain_name, group)) for group in (listed, everyone))
        for process in everyone:
            name = _plain_name(process)
            is_listed = process.is_alive or process.crash is not None
            is_alone = ever[name] == 1 or (is_listed and names[name] == 1)
            process.who = name if is_alone else f"{name}@{process.facts.get('pid')}"


def _plain_name(process: Process) -> str:
    return process.role if process.rank is None else f"{process.role}/{process.rank}"


def _helped(process: Process, by_pid: dict[tuple[Any, Any], Process]) -> Process | None:
    """The process that this one works for: a Ray worker above it, one of the same rank, or one of the same program."""
    facts = process.facts
    if facts.get("kind") != "process":
        return None
    for pid in facts.get("ancestors") or []:
        above = by_pid.get((facts.get("host"), pid))
        if above is None or above is process:
            continue
        if above.facts.get("kind") in ("actor", "task"):
            return above
        rank, its = facts.get("rank"), above.facts.get("rank")
        same = (
            rank == its if rank is not None else its is not None or above.facts.get("program") == facts.get("program")
        )
        return above if same else None
    return None
