"""What the broker knows and holds: the processes of the run, their debug sessions, and whether it is to end."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

from rldbg.agent import WireError
from rldbg.core import RldbgError
from rldbg.live.broker.debug_sessions import DebugSessions
from rldbg.live.broker.exception_holds import ExceptionHolds
from rldbg.live.broker.processes import Process, ProcessTable

_log = logging.getLogger(__name__)
_FRESH_S = 0.5
# For processes that report a new identity by themselves.
_SETTLED_S = 10.0


async def _listen_nowhere_else(_address: str) -> None:
    return


class ExternalWorkers(Protocol):
    """Processes that no agent speaks for: paused workers of a Ray cluster that rldbg did not start."""

    @property
    def advice(self) -> tuple[str, ...]:
        """What to check when nothing is paused."""

    async def refresh(self) -> None:
        """Brings the process table up to date."""


class BrokerState:
    """State shared by all connections of the broker."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.processes = ProcessTable()
        self.holds = ExceptionHolds(self.processes)
        self.sessions = DebugSessions(run)
        self.external: ExternalWorkers | None = None
        self.stopping = asyncio.Event()
        # Listens at one more address of this host, for agents on others.
        self.widen: Callable[[str], Awaitable[None]] = _listen_nowhere_else

    def learn(self, process: Process, facts: dict[str, Any]) -> None:
        """Updates the identity of a process, and the breakpoints that apply to it."""
        if facts == process.facts:
            return
        process.facts = facts
        self.processes.rename()
        if process.session is None and self.sessions.breaks.concerns(process):
            self.sessions.spawn(self.sessions.apply_breaks(process))

    async def refresh(self, timeout_s: float) -> None:
        """Asks all agents for their identity; an agent that is busy in C code keeps its old name."""
        if self.external is not None:
            await self.external.refresh()
        await asyncio.gather(*(self._ask_identity(process, timeout_s) for process in self.processes))

    async def _ask_identity(self, process: Process, timeout_s: float) -> None:
        now = time.monotonic()
        fresh_s = _SETTLED_S if process.facts.get("settled") else _FRESH_S
        if process.agent is None or now - process.asked_at < fresh_s:
            return
        process.asked_at = now
        try:
            facts = await process.agent.request("identity", {}, timeout_s=timeout_s)
        except (WireError, TimeoutError):
            return
        self.learn(process, facts)

    async def watch(self) -> None:
        """While there are breakpoints, checks every second for workers with a new role and for newly loaded files."""
        while True:
            await asyncio.sleep(1.0)
            if not len(self.sessions.breaks):
                continue
            try:
                await self.refresh(timeout_s=0.5)
            except RldbgError as error:
                _log.info("processes could not be listed, trying again: %s", error)
                continue
            waiting = [p for p in self.processes if p.session is not None and self.sessions.breaks.is_looking(p)]
            await asyncio.gather(*(self.sessions.apply_breaks(process) for process in waiting))

    def farewell(self) -> None:
        """Closes all connections after a farewell: agents and debuggees resume, and do not wait for another broker."""
        for process in self.processes:
            if process.agent is not None:
                process.agent.say_farewell()
            if process.session is not None:
                process.session.close()
            if process.agent is not None:
                process.agent.close()
