"""The debug sessions of all processes: opened on demand, held while needed, then closed.

A session is needed while its process is stopped or steps, while a client is attached, or while a breakpoint is set
there.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from rldbg.agent import Message, WireError
from rldbg.core import RldbgError, UnreachableError, UsageError
from rldbg.live.broker.async_peer import MessageChannel
from rldbg.live.broker.breakpoints import BreakTable, LogPoints
from rldbg.live.broker.debug_session import DebugSession
from rldbg.live.broker.kept_files import KeptFiles
from rldbg.live.broker.processes import Process
from rldbg.live.broker.stop import Stop

_log = logging.getLogger(__name__)
PrepareStop = Callable[[DebugSession, Stop, list[Message]], Awaitable[None]]
_OPEN_S = 120.0
_STOP_S = 10.0
# A thread that executes Python reaches its next line within this time.
_PYTHON_S = 0.2


class DebugSessions:
    """Opens, holds, steers and releases debug sessions."""

    def __init__(self, run: Path) -> None:
        self.files = KeptFiles()
        self.breaks = BreakTable(self.files)
        self.log_points = LogPoints(run, self.files)
        self._tasks: set[asyncio.Future[Any]] = set()

    async def of(self, process: Process) -> DebugSession:
        """The process's session, opened if need be. Raises UnreachableError."""
        # One at a time: a debuggee accepts one debugger; a second one would wait forever.
        async with process.opening:
            # A session that has just ended may still be listed.
            await process.wait_until(lambda: process.session is None or not process.session.ended.is_set(), _OPEN_S)
            # An agent that announced a stop opens the session by itself.
            comes_by_itself = process.agent is not None and process.declared is not None
            if process.session is None and process.open_session is not None and not comes_by_itself:
                process.failure = ""
                try:
                    await process.open_session(process)
                except (WireError, TimeoutError) as error:
                    process.failure = str(error) or "its agent did not answer"
            await process.wait_until(lambda: process.is_settled, _OPEN_S)
        if process.session is None:
            reason = process.failure or ("it ended" if not process.is_alive else "no debug session was opened")
            raise UnreachableError(f"cannot debug {process.who}: {reason}", "`rldbg ps` lists the remaining processes")
        return process.session

    async def settled(self, process: Process) -> DebugSession:
        """The process's session, after an announced stop has come. One session may end and another begin meanwhile; the
        stop may arrive in either."""
        session = await self.of(process)
        await process.wait_until(
            lambda: process.declared is None or process.is_standing or not process.is_alive, _OPEN_S
        )
        return session if process.session in (None, session) else await self.of(process)

    async def hold(
        self,
        process: Process,
        stream: MessageChannel,
        *,
        number: int = 0,
        prepare_stop: PrepareStop | None = None,
        taken_over: Message | None = None,
        **attach: Any,
    ) -> None:
        """Attaches to a debuggee and keeps the session until it ends; `prepare_stop` runs at each stop, before any
        client hears of it. `taken_over` is how a broker that was killed left the session."""
        session = DebugSession(stream, number=number, on_change=lambda: self._changed(process, session))
        session.prepare_stop = prepare_stop
        session.interrupt = lambda showing_only: _interrupt(process, showing_only=showing_only)
        session.on_output = lambda text: self._said(process, text)
        before = process.session
        if taken_over:
            session.take_over(taken_over)
        reading = asyncio.ensure_future(session.run())
        configured = 0

        async def configure(opened: DebugSession) -> None:
            nonlocal configured
            configured = self.breaks.revision
            await self.breaks.configure(opened, process)

        try:
            await session.attach(configure, **attach)
            process.session = session
            process.touch()
            if self.breaks.revision != configured:
                # Breakpoints may have changed before this session was registered.
                self.spawn(self.apply_breaks(process))
            await reading
        except (RldbgError, TimeoutError) as error:
            process.failure = str(error) or "the debuggee did not finish the handshake"
        finally:
            session.close()
            # However it ended, the process must not keep a closed session.
            await asyncio.wait({reading})
            if process.session is session:
                process.session = before if before is not None and not before.ended.is_set() else None
            process.over.add(number)
            if process.declared is not None and process.declared.session == number:
                # This stop was expected here; one announced later belongs to the next session.
                process.declared = None
            process.touch()

    def _said(self, process: Process, text: str) -> None:
        if not self.breaks.note_output(process, text):
            self.log_points.add(process.who, text)

    def _changed(self, process: Process, session: DebugSession) -> None:
        stop = session.stop
        if stop is not None and not stop.counted:
            stop.counted = True
            self._stopped(process, stop)
        process.touch()

    def _stopped(self, process: Process, stop: Stop) -> None:
        if process.declared is not None:
            known = process.declared.notes
            stop.notes = [*known, *(note for note in stop.notes if not any(each.startswith(note) for each in known))]
            stop.since = process.declared.since
            process.declared = None
        else:
            process.stop_count += 1
        if self.breaks.note_stop(process, is_taken_over=stop.is_taken_over):
            self.spawn(self.apply_breaks(process))

    async def apply_breaks(self, process: Process) -> None:
        """Brings the breakpoints of one process up to date, opening a session when it needs one."""
        try:
            if process.session is not None:
                await self.breaks.configure(process.session, process)
            elif self.breaks.concerns(process):
                await self.of(process)
                # The breakpoints may have been cleared while it was opening.
                await self.release(process)
        except (RldbgError, TimeoutError) as error:
            _log.info("breakpoints of %s: %s", process.who, error)

    async def pause(self, process: Process, wait_s: float = _STOP_S) -> None:
        """Stops a running process at its next line of Python; on timeout the pause stays pending."""
        try:
            with process.in_use():
                await self._stop(process, wait_s)
        except asyncio.CancelledError:
            self.spawn(self.release_once_open(process))
            raise

    async def _stop(self, process: Process, wait_s: float) -> None:
        session = await self.settled(process)
        await process.wait_until(lambda: session.stop is not None or not session.is_halting, _STOP_S)
        if session.stop is not None:
            return
        threads = (await session.request("threads", {})).get("threads") or []
        main = next((each for each in threads if each.get("name") == "MainThread"), threads[0] if threads else None)
        if main is None:
            raise UnreachableError(f"{process.who} has no Python thread", "`rldbg stacks --native` shows where it is")
        await session.request("pause", {"threadId": main["id"]})
        if not await process.wait_until(lambda: session.stop is not None, _PYTHON_S):
            await _call_main_thread(process)
        if not await process.wait_until(lambda: session.stop is not None or session.ended.is_set(), wait_s):
            session.is_pausing = True
            raise UnreachableError(
                f"{process.who} has not reached a line of Python within {wait_s:g} s; it stops as soon as it does",
                f"`rldbg stacks {process.who} --native` shows where it is; `rldbg continue {process.who}` cancels this",
            )
        if session.stop is None:
            raise UnreachableError(
                f"{process.who} ended before it could be paused", "`rldbg ps` lists the remaining processes"
            )

    async def resume(self, process: Process, how: str, **arguments: Any) -> None:
        """Resumes a stopped process, by `continue` or a step."""
        session = await self.settled(process) if process.stop is not None else None
        stop = session.stop if session is not None else None
        if session is None or stop is None:
            raise UsageError(f"{process.who} is not stopped", "`rldbg ps` lists stopped processes")
        await session.request(how, {"threadId": stop.thread_id} | arguments)
        if how == "continue":
            await self.release(process)

    async def cancel_pause(self, process: Process) -> None:
        """Cancels the pause of a process that has not reached a line of Python since."""
        if process.session is not None:
            process.session.is_pausing = False
            await self.release(process)

    async def release(self, process: Process) -> None:
        """Ends a session that is no longer needed, so that the process runs at full speed again. Once started it is
        completed even if the requesting client leaves; otherwise the next client would get a session that is about to
        end.
        """
        await asyncio.shield(self.spawn(self._release(process)))

    async def _release(self, process: Process) -> None:
        if process.opening.locked():
            # Another request is about to use it, or is releasing it already.
            return
        # No client may get it until it is closed.
        async with process.opening:
            session = process.session
            needed = process.users or process.declared or process.attached or self.breaks.concerns(process)
            if session is None or needed or session.is_halting or session.is_stepping or session.is_pausing:
                return
            if await self._close(process, session):
                await process.wait_until(lambda: process.session is not session, _OPEN_S)

    async def release_once_open(self, process: Process) -> None:
        """Releases the session for a client that left while it was being opened."""
        with contextlib.suppress(RldbgError):
            await self.of(process)
            await self.release(process)

    async def _close(self, process: Process, session: DebugSession) -> bool:
        """Whether the session is ending; the agent refuses while a stop is about to arrive."""
        if process.agent is None:
            # Some sessions end by themselves when their process resumes.
            with contextlib.suppress(UnreachableError):
                await session.request("disconnect", {})
            session.close()
            return True
        try:
            answer = await process.agent.request("close_debug", {"stops": process.stops_seen}, timeout_s=5.0)
        except (WireError, TimeoutError) as error:
            _log.info("%s kept its debug session: %s", process.who, error)
            return False
        return bool(answer.get("closed"))

    def spawn(self, work: Awaitable[Any]) -> asyncio.Future[Any]:
        """Runs something in the background; its failure is logged."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("in the background: %s", error)


async def _call_main_thread(process: Process) -> None:
    """Interrupts a wait that checks for signals, such as `ray.get` or a sleep; needs an agent."""
    if process.agent is not None:
        with contextlib.suppress(WireError, TimeoutError):
            await process.agent.request("call_main", {}, timeout_s=5.0)


async def _interrupt(process: Process, *, showing_only: bool) -> None:
    """Interrupts an evaluation, or only the repr of its value; needs an agent."""
    if process.agent is None:
        return
    with contextlib.suppress(WireError, TimeoutError):
        await process.agent.request("interrupt", {"showing_only": showing_only}, timeout_s=5.0)
