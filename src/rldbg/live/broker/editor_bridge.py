"""An editor's debug session on top of one the broker already holds.

To the editor this is an ordinary debug adapter: it may initialise, attach, configure and disconnect as it likes. Only
requests that inspect or step are passed on; disconnecting never resumes or ends the process, because the session is the
broker's.
"""

import asyncio
from typing import Any

from rldbg.agent import Message, SelectionError, WireError, parse_selection
from rldbg.core import RldbgError
from rldbg.live.broker.async_peer import Stream
from rldbg.live.broker.debug_session import DebugSession
from rldbg.live.broker.processes import Process
from rldbg.live.broker.state import BrokerState

_QUIET_EVENTS = frozenset({"initialized", "terminated", "exited", "process"})


class EditorBridge:
    """Carries the messages of one editor to one process."""

    def __init__(self, state: BrokerState, stream: Stream, name: str) -> None:
        self._state = state
        self._stream = stream
        self._name = name
        self._seq = 0
        self._lines: dict[str, list[Any]] = {}
        self._mappings: list[tuple[str, str]] = []

    async def serve(self, who: str) -> None:
        try:
            process = self._find(who)
            session = await self._state.sessions.of(process)
        except (RldbgError, WireError, SelectionError) as error:
            self._stream.send({"type": "refused", "reason": str(error)})
            self._stream.close()
            return
        about = {"who": process.who, "pid": process.facts.get("pid"), "cwd": process.facts.get("cwd", "")}
        self._stream.send({"type": "welcome", "about": about})
        process.attached[self._name] += 1
        session.listeners.append(self._pass_on)
        try:
            await self._read(process, session)
        finally:
            session.listeners.remove(self._pass_on)
            process.attached[self._name] -= 1
            process.attached += type(process.attached)()
            self._stream.close()
            await self._leave(process, session)

    async def _read(self, process: Process, session: DebugSession) -> None:
        """Reads messages until the editor disconnects or the session ends."""
        ended = asyncio.ensure_future(session.ended.wait())
        try:
            while not ended.done():
                message = asyncio.ensure_future(self._stream.receive())
                await asyncio.wait({message, ended}, return_when=asyncio.FIRST_COMPLETED)
                if not message.done():
                    message.cancel()
                    self._event("terminated", {})
                    return
                if not await self._take(message.result(), process, session):
                    return
        except WireError:
            return
        finally:
            ended.cancel()

    async def _take(self, message: Message, process: Process, session: DebugSession) -> bool:
        """Answers one request; False after the editor has disconnected."""
        command = str(message.get("command"))
        if message.get("type") != "request":
            return True
        if command in ("disconnect", "terminate"):
            self._respond(message, {})
            self._event("terminated", {})
            return False
        local = {"initialize": session.capabilities, "attach": {}, "launch": {}, "configurationDone": {}}
        if command in local:
            self._learn_paths(message.get("arguments") or {})
            self._respond(message, local[command])
            self._after(command, session)
            return True
        arguments = self._translated(message.get("arguments") or {}, to_remote=True)
        if command == "setBreakpoints":
            arguments = self._with_ours(arguments, process)
        try:
            response = await session.forward(command, arguments)
        except RldbgError as error:
            self._respond(message, {}, success=False, text=str(error))
            return True
        body = self._translated(response.get("body") or {}, to_remote=False)
        if command == "setBreakpoints":
            wanted = len((message.get("arguments") or {}).get("breakpoints") or [])
            body = body | {"breakpoints": (body.get("breakpoints") or [])[:wanted]}
        self._respond(message, body, success=bool(response.get("success")), text=str(response.get("message") or ""))
        return True

    def _learn_paths(self, arguments: Message) -> None:
        """The session was attached long before this editor; its path mappings are applied here."""
        for mapping in arguments.get("pathMappings") or []:
            local, remote = str(mapping.get("localRoot") or ""), str(mapping.get("remoteRoot") or "")
            if local and remote and remote != ".":
                self._mappings.append((local.rstrip("/"), remote.rstrip("/")))

    def _translated(self, data: Any, *, to_remote: bool) -> Any:
        """The same message with every source path in the other side's terms."""
        if isinstance(data, list):
            return [self._translated(item, to_remote=to_remote) for item in data]
        if not isinstance(data, dict):
            return data
        changed = {key: self._translated(value, to_remote=to_remote) for key, value in data.items()}
        source = changed.get("source")
        if isinstance(source, dict) and isinstance(source.get("path"), str):
            changed["source"] = source | {"path": self._path(source["path"], to_remote=to_remote)}
        return changed

    def _path(self, path: str, *, to_remote: bool) -> str:
        for local, remote in self._mappings:
            here, there = (local, remote) if to_remote else (remote, local)
            if path == here or path.startswith(here + "/"):
                return there + path.removeprefix(here)
        return path

    def _after(self, command: str, session: DebugSession) -> None:
        """The events that an editor expects at this point."""
        if command in ("attach", "launch"):
            self._event("initialized", {})
        if command == "configurationDone" and session.stop is not None:
            stop = session.stop
            body = {"reason": stop.reason, "threadId": stop.thread_id, "allThreadsStopped": True}
            self._event("stopped", body)

    def _with_ours(self, arguments: Message, process: Process) -> Message:
        """The editor replaces all breakpoints of a file; those set by `rldbg break` are kept after its own."""
        path = str((arguments.get("source") or {}).get("path", ""))
        theirs = list(arguments.get("breakpoints") or [])
        self._lines[path] = theirs
        ours = self._state.sessions.breaks.lines_in(process, path)
        return {**arguments, "breakpoints": theirs + ours}

    async def _leave(self, process: Process, session: DebugSession) -> None:
        """Removes the editor's breakpoints; stopped processes stay stopped."""
        try:
            for path in self._lines:
                await session.request("setBreakpoints", self._with_ours({"source": {"path": path}}, process))
            await self._state.sessions.release(process)
        except RldbgError:
            # The session has ended in the meantime, and its breakpoints with it.
            return

    def _find(self, who: str) -> Process:
        matches = [p for p in self._state.processes.select(parse_selection(who)) if p.is_alive]
        if len(matches) != 1:
            raise WireError(f"{who!r} matches {len(matches)} processes; an editor needs exactly one")
        return matches[0]

    def _pass_on(self, message: Message) -> None:
        if message.get("event") not in _QUIET_EVENTS:
            self._event(str(message.get("event")), message.get("body") or {})

    def _event(self, event: str, body: Message) -> None:
        self._seq += 1
        self._stream.send({"seq": self._seq, "type": "event", "event": event, "body": body})

    def _respond(self, request: Message, body: Message, *, success: bool = True, text: str = "") -> None:
        self._seq += 1
        response = {"seq": self._seq, "type": "response", "request_seq": request.get("seq", 0), "success": success}
        response |= {"command": request.get("command"), "body": body}
        if text:
            response["message"] = text
        self._stream.send(response)
