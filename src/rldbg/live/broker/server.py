"""The broker of a run: it accepts agents and clients and holds the debug sessions. Invariants: no message is accepted
before the peer has proved the run's token; no client, agent or debuggee can end the broker or another session by dying
or sending invalid data; a process is stopped only while its session lives, and a session outlives a broker that is
killed: its agent hands it to the next one.
"""

import asyncio
import contextlib
import logging
import time
from pathlib import Path
from typing import Any

from rldbg.agent import FAREWELL, STRANGER_LIMIT_BYTES, Message, WireError
from rldbg.core import UnreachableError, UsageError
from rldbg.live.broker.async_peer import HANDSHAKE_S, AsyncPeer, Stream, greet
from rldbg.live.broker.client_handler import ClientHandler
from rldbg.live.broker.editor_bridge import EditorBridge
from rldbg.live.broker.processes import Process
from rldbg.live.broker.stacks import keep_stacks
from rldbg.live.broker.state import BrokerState
from rldbg.live.broker.stop import Stop

_log = logging.getLogger(__name__)
_STRANGERS = 256
_OPEN_S = 30.0
# A process that dies waits no longer than this for the stacks of the others.
_STACKS_S = 5.0
# Agents of a killed broker look for the next one ten times a second, and then hand their stopped threads over.
_GATHERED_S = 0.4
_GATHERING_S = 3.0


class Broker:
    """Everything the broker knows. `accept` is its whole surface."""

    def __init__(self, *, token: str, run: Path, replaces: bool = False) -> None:
        """`replaces`: there was another before, which was killed; its agents are on their way."""
        self._token = token
        self._begin = self._last_arrival = time.monotonic()
        self._is_gathering = replaces
        self.state = BrokerState(run)
        self.clients = 0
        self.last_contact = time.monotonic()
        self._strangers: list[Stream] = []
        self._keeping_stacks: asyncio.Future[Any] | None = None

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, from its first byte to its last."""
        stream = Stream(reader, writer, STRANGER_LIMIT_BYTES)
        if len(self._strangers) >= _STRANGERS:
            # Legitimate peers prove the token within milliseconds: drop the connections that have been silent longest.
            self._strangers.pop(0).close()
        self._strangers.append(stream)
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                kind, about = await greet(stream, self._token)
        except (WireError, TimeoutError, OSError) as error:
            _log.info("a connection was refused: %s", error or "no message")
            stream.close()
            return
        finally:
            if stream in self._strangers:
                self._strangers.remove(stream)
        serve = {"agent": self._serve_agent, "debug": self._serve_debuggee, "editor": self._serve_editor}
        # Cancelled only when the broker ends; nothing more to send.
        with contextlib.suppress(asyncio.CancelledError):
            await serve.get(kind, self._serve_client)(stream, about)
        self.last_contact = time.monotonic()

    async def _gathered(self) -> None:
        """Until the agents of a killed broker have come, or do not come: what is asked before is answered wrongly."""
        while self._is_gathering:
            now = time.monotonic()
            if now > self._last_arrival + _GATHERED_S or now > self._begin + _GATHERING_S:
                self._is_gathering = False
                return
            await asyncio.sleep(0.02)

    async def _serve_agent(self, stream: Stream, about: Message) -> None:
        self._last_arrival = time.monotonic()
        process = self.state.processes.add(about, open_session=_ask_agent_for_session)

        async def on_request(op: str, body: Message) -> Any:
            if op == "stopping":
                return await self._stopping(process, body)
            if op == "crash":
                return await self._crashed(process, body)
            if op == "await_holds":
                return await self.state.holds.ended(body.get("held") or [])
            if op == "await_breakpoints":
                await asyncio.wait({setting})
                return {"reason": process.failure if process.session is None else ""}
            raise UsageError(f"unknown request: {op!r}")

        async def on_event(event: str, body: Message) -> None:
            self._agent_said(process, event, body)

        peer = AsyncPeer(stream, on_request=on_request, on_event=on_event)
        process.agent = peer
        stream.send({"type": "welcome", "about": {"who": process.who}})
        setting = self.state.sessions.spawn(self.state.sessions.apply_breaks(process))
        await peer.run()
        process.agent = None
        process.declared = None
        process.ended_at = time.time()
        if process.session is not None:
            process.session.close()
        self.state.processes.rename()
        process.touch()

    def _agent_said(self, process: Process, event: str, body: Message) -> None:
        if event == "identity":
            self.state.learn(process, body)
        elif event == "far_nodes":
            self.state.sessions.spawn(self.state.widen(str(body.get("address"))))
        elif event == "bye":
            process.said_goodbye = True
        elif event == "said":
            process.said, process.said_at = body, time.time()
        elif event == "debug_ready":
            _session_is_ready(process, int(body.get("session") or 0), body.get("stop"))
        elif event in ("stop_failed", "debug_failed"):
            process.failure = str(body.get("reason"))
            if body.get("stop") == process.stops_seen:
                process.declared = None
        elif event == "debug_closed":
            # This arrives on another connection than the session's own: the next session may have begun.
            session = process.session
            if session is not None and session.number == int(body.get("session") or 0):
                session.close()
        process.touch()

    async def _crashed(self, process: Process, body: Message) -> Message:
        """The first crash of a run: before the process may end, and others because of it, all stacks are kept."""
        # A worker that fails in its first call may not have reported the name of its actor yet.
        self.state.learn(process, dict(body.pop("identity", None) or process.facts))
        # A pooled worker of Ray has another name with its next task.
        crash = body | {"who": process.who}
        if body.get("held_again_s"):
            process.crash = crash
            self.state.sessions.spawn(self.state.holds.take_over(process))
            return {}
        self.state.holds.note(process, crash)
        if self._keeping_stacks is None:
            # Finished even when the process that crashed does not wait for it.
            keeping = keep_stacks(self.state.processes, self.state.run, self.state.sessions.files)
            self._keeping_stacks = self.state.sessions.spawn(keeping)
        await asyncio.wait({self._keeping_stacks}, timeout=_STACKS_S)
        decision = self.state.holds.decide(process, crash)
        if decision.get("hold_s"):
            self.state.sessions.spawn(self.state.holds.follow(process))
        return decision

    async def _stopping(self, process: Process, body: Message) -> Message:
        """An agent is about to stop its process: raise the timeouts of all ranks first."""
        self.state.learn(process, dict(body.get("identity") or process.facts))
        # A broker that takes a session over gets the state that the previous one had.
        process.stop_count += int(body.get("stop") or 0) != process.stops_seen
        process.stops_seen = int(body.get("stop") or 0)
        process.failure = ""
        elapsed_s = float(body.get("elapsed_s") or 0.0)
        notes = [str(note) for note in body.get("notes") or []] + await self._hold_others(process)
        process.declared = Stop(
            file=str(body.get("file") or ""),
            line=int(body.get("line") or 0),
            function=str(body.get("function") or ""),
            thread=str(body.get("thread") or ""),
            reason=str(body.get("reason") or "breakpoint"),
            notes=notes,
            since=time.time() - elapsed_s,
        )
        process.touch()
        if body.get("timeout_s"):
            left_s = max(float(body["timeout_s"]) - elapsed_s, 0.0)
            self.state.sessions.spawn(self._continue_after(process, process.stops_seen, left_s))
        return {"who": process.who, "notes": notes}

    async def _hold_others(self, stopping: Process) -> list[str]:
        """Raises the collective timeouts of all processes, and returns the timers that cannot be raised."""
        agents = [process for process in self.state.processes if process.agent is not None]
        answers = await asyncio.gather(*(_hold(process) for process in agents))
        notes = []
        for process, answer in zip(agents, answers, strict=True):
            if answer is None:
                notes.append(f"{process.who} did not answer: its collective timeouts are unchanged")
                continue
            if answer.get("waiting_in") and process is not stopping:
                notes.append(f"{process.who} already waits in {answer['waiting_in']}: that call keeps its own timeout")
            notes += [f"{process.who}: {text}" for text in [*answer.get("failed", []), *answer.get("watchdogs", [])]]
        return notes

    async def _continue_after(self, process: Process, stop: int, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        # Never while a client is attached.
        await process.wait_until(lambda: not process.attached or process.stop is None, None)
        if process.stops_seen == stop and process.stop is not None and process.is_alive:
            await self.state.sessions.resume(process, "continue")

    async def _serve_debuggee(self, stream: Stream, about: Message) -> None:
        process = self.state.processes.find(str(about.get("host")), int(about.get("pid") or 0))
        if process is None or not process.is_alive:
            stream.close()
            return
        stream.send({"type": "welcome", "about": {"who": process.who}})
        stream.farewell = FAREWELL
        number = int(about.get("session") or 0)
        self._last_arrival = time.monotonic()
        if announced := (about.get("taken_over") or {}).get("announced"):
            await self._stopping(process, announced)
            assert process.declared is not None
            process.declared.session = number
        # Stepping never enters the agent's own code, except for the file in which a thread may be stopped.
        folder = str(about.get("agent_folder") or "")
        rules = [{"path": folder, "include": False}, {"path": f"{folder}/halt.py", "include": True}] if folder else []
        await self.state.sessions.hold(
            process, stream, number=number, taken_over=about.get("taken_over") or {}, rules=rules
        )

    async def _serve_client(self, stream: Stream, about: Message) -> None:
        handler = ClientHandler(self.state, str(about.get("name") or "client"))

        async def on_event(_event: str, _body: Message) -> None:
            return

        async def on_request(op: str, body: Message) -> Any:
            await self._gathered()
            return await handler.answer(op, body)

        peer = AsyncPeer(stream, on_request=on_request, on_event=on_event)
        stream.send({"type": "welcome", "about": {"run": str(self.state.run)}})
        self.clients += 1
        try:
            await peer.run()
        finally:
            self.clients -= 1
            await handler.leave()

    async def _serve_editor(self, stream: Stream, about: Message) -> None:
        await EditorBridge(self.state, stream, str(about.get("name") or "editor")).serve(str(about.get("who")))


def _session_is_ready(process: Process, session: int, stop: int | None) -> None:
    process.armed.add(session)
    if process.declared is not None and stop == process.stops_seen:
        process.declared.session = session
        if session in process.over:
            process.declared = None


async def _ask_agent_for_session(process: Process) -> None:
    if process.agent is None:
        raise UnreachableError(f"{process.who} has ended", "`rldbg ps` lists the remaining processes")
    await process.agent.request("debug", {}, timeout_s=_OPEN_S)


async def _hold(process: Process) -> Message | None:
    if process.agent is None:  # it ended after the processes were listed
        return None
    try:
        answer: Message = await process.agent.request("hold", {}, timeout_s=1.0)
    except (WireError, TimeoutError):
        return None
    return answer
