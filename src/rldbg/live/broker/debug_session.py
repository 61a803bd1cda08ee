"""A debug session that outlives its clients: the broker's side of the debug adapter protocol for one process.

The session knows at any moment which threads are stopped. Requests that only make sense for a stopped thread are
refused for any other, because debugpy answers nothing more after a `continue` it did not expect. Requests that the
debuggee does not know are refused here too: pydevd would never answer them. `terminateDebuggee` is never sent as true.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from rldbg.agent import Message, WireError
from rldbg.core import UnreachableError, UsageError
from rldbg.live.broker.async_peer import MessageChannel
from rldbg.live.broker.stop import Stop, fill_stop

_log = logging.getLogger(__name__)
RESUMING = frozenset({"continue", "next", "stepIn", "stepOut", "goto"})
_FRAME_BOUND = frozenset({"evaluate", "scopes", "variables", "setVariable", "setExpression", "completions"})
_KNOWN = RESUMING | _FRAME_BOUND | {
    "initialize", "attach", "configurationDone", "setBreakpoints", "setFunctionBreakpoints", "setExceptionBreakpoints",
    "threads", "stackTrace", "exceptionInfo", "pause", "gotoTargets", "modules", "source", "stepInTargets",
    "setDebuggerProperty", "disconnect", "pydevdSystemInfo",
}  # fmt: skip
HANDSHAKE_S = 120.0
_REQUEST_S = 30.0
# Evaluating an expression may take long; formatting an existing value should not.
_SHOWING_S = 5.0
_INTERRUPTS = 8
_SEQ_LIMIT = 1 << 52
# `ray.get` checks for signals once per second.
_MAIN_S = 2.0


class Translation(Protocol):
    """Answers some requests of a stop in place of the debuggee."""

    commands: frozenset[str]

    async def forward(self, session: "DebugSession", command: str, arguments: dict[str, Any]) -> Message: ...


class DebugSession:
    """`on_change` is called after every stop, resume and end; `on_event` sees each event as it came."""

    def __init__(self, stream: MessageChannel, *, number: int = 0, on_change: Callable[[], None]) -> None:
        self.number = number
        self._stream = stream
        self._on_change = on_change
        self.on_output: Callable[[str], None] = lambda _text: None
        self.listeners: list[Callable[[Message], None]] = []
        self.capabilities: Message = {}
        self.interrupt: Callable[[bool], Awaitable[None]] | None = None
        self.prepare_stop: Callable[[DebugSession, Stop, list[Message]], Awaitable[None]] | None = None
        self.translation: Translation | None = None
        # `stop` is public and complete, with its location; `_halt` is set as soon as the process stops.
        self.stop: Stop | None = None
        self._halt: Stop | None = None
        self.stops = 0
        self.ended = asyncio.Event()
        # Whether a step is running: its end is a stop even if the client that requested it has left.
        self.is_stepping = False
        # Whether a pause was requested and no line of Python was reached since.
        self.is_pausing = False
        self._is_resuming = False
        # Cleared between a resume request and the debuggee's confirmation.
        self._went = asyncio.Event()
        self._went.set()
        # Each with its reason.
        self._stopped_threads: dict[int, str] = {}
        self._initialized = asyncio.Event()
        self._waiting: dict[int, asyncio.Future[Message]] = {}
        self._seq = 0
        self._settings: Message = {}
        self._locating: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Reads the debuggee's messages until the connection ends."""
        try:
            while True:
                message = await self._stream.receive()
                if message.get("type") == "response":
                    self._answered(message)
                elif message.get("type") == "event":
                    await self._happened(message)
        except WireError:
            return
        finally:
            self._end()

    @property
    def is_halting(self) -> bool:
        """Whether a thread is stopped, even if its location is not known yet, or may be stopped again because a resume
        was refused."""
        return self._halt is not None or self._is_resuming

    async def attach(self, configure: Callable[["DebugSession"], Any], **arguments: Any) -> None:
        """The handshake that every debuggee accepts; `configure` is called when breakpoints may be sent."""
        about = {"clientID": "rldbg", "adapterID": "debugpy", "pathFormat": "path"}
        positions = {"linesStartAt1": True, "columnsStartAt1": True, "supportsVariableType": True}
        async with asyncio.timeout(HANDSHAKE_S):
            # Processes that stop at once import the debugger at once: on a busy host that takes longer than a request.
            self.capabilities = await self.request("initialize", about | positions, timeout_s=HANDSHAKE_S)
            # The answer to attach comes only after the configuration is done.
            self._settings = {"subProcess": False, "redirectOutput": False, "justMyCode": False} | arguments
            attached = asyncio.ensure_future(self.request("attach", self._settings, timeout_s=HANDSHAKE_S))
            try:
                await self._initialized.wait()
                await configure(self)
                await self.request("configurationDone", {}, timeout_s=HANDSHAKE_S)
                await attached
            finally:
                attached.cancel()

    def take_over(self, state: Message) -> None:
        """Continues a session of a killed broker; call it before reading any message."""
        # Answers to that broker's requests may still arrive: use other request numbers.
        self._seq = time.time_ns() % _SEQ_LIMIT
        for event in state.get("stopped") or []:
            elapsed_s = float(event.get("elapsed_s") or 0.0)
            self._halted(event.get("body") or {}, is_taken_over=True, elapsed_s=elapsed_s)
        self.is_stepping = state.get("pending") == "step"
        self.is_pausing = state.get("pending") == "pause"

    async def set_exception_filters(self, filters: list[str]) -> None:
        """Stops at exceptions, but at raised ones only where they pass through the user's own code.

        pydevd reads from the attach request, when the filters are set, whether library code counts.
        """
        narrow = "raised" in filters and self._initialized.is_set()
        if narrow:
            await self.request("attach", self._settings | {"justMyCode": True})
        await self.request("setExceptionBreakpoints", {"filters": filters})
        if narrow:
            await self.request("attach", self._settings)

    async def request(self, command: str, arguments: Mapping[str, Any], timeout_s: float = _REQUEST_S) -> Message:
        """The body of the response. Raises UsageError when it makes no sense now, UnreachableError when none comes."""
        response = await self.forward(command, arguments, timeout_s)
        if not response.get("success"):
            raise UsageError(str(response.get("message") or f"{command} failed"))
        body: Message = response.get("body") or {}
        return body

    async def forward(self, command: str, arguments: Mapping[str, Any], timeout_s: float = _REQUEST_S) -> Message:
        """The whole response, successful or not."""
        if self.translation is not None and self._halt is not None and command in self.translation.commands:
            return await self.translation.forward(self, command, dict(arguments))
        return await self.forward_untranslated(command, arguments, timeout_s)

    async def forward_untranslated(
        self, command: str, arguments: Mapping[str, Any], timeout_s: float = _REQUEST_S
    ) -> Message:
        """Sends to the debuggee itself, bypassing any adapter in front of it."""
        self._permit(command, arguments)
        if command == "pause":
            await self._until_gone(timeout_s)
        if command == "disconnect":
            arguments = {"restart": False, "terminateDebuggee": False}
        self._seq += 1
        seq = self._seq
        waiting: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[seq] = waiting
        message = {"seq": seq, "type": "request", "command": command, "arguments": dict(arguments)}
        if command in RESUMING:
            self._begin_resume(command, waiting)
        # Not cancelled with the request: a refused resume must be noticed even if the client has left.
        waiting.add_done_callback(lambda answered: self._no_longer_waiting(seq, answered))
        self._stream.send(message)
        return await self._answer(waiting, command, timeout_s)

    def _no_longer_waiting(self, seq: int, answered: asyncio.Future[Message]) -> None:
        self._waiting.pop(seq, None)
        if not answered.cancelled():
            # Retrieved here, because the client may have left.
            answered.exception()

    def _begin_resume(self, command: str, waiting: asyncio.Future[Message]) -> None:
        """Mark it as running; if the debuggee refuses, the old stop is restored."""
        before = (self.stop, self._halt, self.translation, dict(self._stopped_threads))
        self._resumed()
        self._is_resuming, self.is_stepping = True, command != "continue"
        self._went.clear()
        # Before reading any later message: the next stop may follow the answer immediately.
        waiting.add_done_callback(lambda answered: self._resume_was_answered(answered, before))

    def _resume_was_answered(
        self,
        answered: asyncio.Future[Message],
        before: "tuple[Stop | None, Stop | None, Translation | None, dict[int, str]]",
    ) -> None:
        self._is_resuming = False
        refused = not answered.cancelled() and answered.exception() is None and not answered.result().get("success")
        if refused and self._halt is None and not self.ended.is_set():
            self._went.set()
            self.stop, self._halt, self.translation, self._stopped_threads = before
            self.is_stepping = False
        # Also on success: another request may be waiting for the result, to pause it again.
        self._on_change()

    async def _until_gone(self, timeout_s: float) -> None:
        """A pause that arrives before a step has begun is lost, although the debuggee confirms both."""
        try:
            await asyncio.wait_for(self._went.wait(), timeout_s)
        except TimeoutError:
            raise UnreachableError(
                f"it was resumed and has not moved within {timeout_s:g} s",
                "an evaluation may still be running there: `rldbg stacks` shows where",
            ) from None

    async def _answer(self, waiting: asyncio.Future[Message], command: str, timeout_s: float) -> Message:
        """Waits for the answer; on timeout the evaluation is interrupted, because the process would not answer anything
        else."""
        begin = time.monotonic()
        interrupt = self.interrupt if command in _FRAME_BOUND else None
        await asyncio.wait({waiting}, timeout=timeout_s if interrupt is None else min(_SHOWING_S, timeout_s))
        left = _INTERRUPTS
        while interrupt is not None and left and not waiting.done():
            showing_only = time.monotonic() - begin < timeout_s
            # Once per value whose repr does not return.
            await interrupt(showing_only)
            left -= not showing_only
            await asyncio.wait({waiting}, timeout=1.0)
        if not waiting.done():
            raise UnreachableError(
                f"no answer to {command} within {timeout_s:g} s",
                "the process may be busy in C code: `rldbg stacks --native` shows where",
            )
        return waiting.result()

    def _permit(self, command: str, arguments: Mapping[str, Any]) -> None:
        if self.ended.is_set():
            raise UnreachableError("this debug session has ended", "`rldbg ps` lists stopped processes")
        if command not in _KNOWN:
            raise UsageError(f"the debuggee does not understand {command!r}")
        thread = arguments.get("threadId")
        if command in RESUMING and (self._halt is None or (thread and thread not in self._stopped_threads)):
            raise UsageError(
                "the process is not stopped",
                "`rldbg ps` lists stopped processes; `rldbg pause WHO` pauses a running one",
            )
        if command == "exceptionInfo" and self._reason_of(thread) != "exception":
            # pydevd would fail over it, in the output of the job.
            raise UsageError("there is no exception: the process is not stopped at one", "`w` shows where it is")
        if command in _FRAME_BOUND and self._halt is None:
            raise UsageError(
                "the process is running: values can be read only while it is stopped", "pause it: rldbg pause WHO"
            )

    def _reason_of(self, thread: Any) -> str:
        """Why this thread stopped; empty if it runs, or is held only because another one stopped."""
        halt = self._halt
        reasons = self._stopped_threads if halt is None else self._stopped_threads | {halt.thread_id: halt.reason}
        return reasons.get(thread, "")

    def _answered(self, message: Message) -> None:
        waiting = self._waiting.get(message.get("request_seq", 0))
        if waiting is not None and not waiting.done():
            waiting.set_result(message)

    async def _happened(self, message: Message) -> None:
        body = message.get("body") or {}
        event = message.get("event")
        if event == "initialized":
            self._initialized.set()
        elif event == "stopped":
            self._halted(body)
        elif event == "continued":
            self._went.set()
            self._resumed()
        elif event == "output" and body.get("category") not in ("telemetry", None):
            self.on_output(str(body.get("output", "")))
        elif event in ("terminated", "exited"):
            self._resumed()
        for listener in list(self.listeners):
            listener(message)

    def _halted(self, body: Message, *, is_taken_over: bool = False, elapsed_s: float = 0.0) -> None:
        self.is_stepping = self.is_pausing = False
        self._went.set()
        thread = int(body.get("threadId", 0))
        self._stopped_threads[thread] = str(body.get("reason", ""))
        # Set immediately, so that a concurrent release of sessions sees the stopped thread.
        reason, since = str(body.get("reason", "")), time.time() - elapsed_s
        self._halt = stop = Stop(thread_id=thread, reason=reason, since=since, is_taken_over=is_taken_over)
        if body.get("text"):
            stop.notes.append(str(body["text"]))
        # In a task of its own: the answers come through the loop that called us. Several threads may stop at once.
        locating = asyncio.create_task(self._locate(stop))
        self._locating.add(locating)
        locating.add_done_callback(self._locating.discard)

    async def _locate(self, stop: Stop) -> None:
        """Looks up the location of the stop once, so that `rldbg ps` can show it without asking the process."""
        try:
            await self._describe(stop)
        except Exception as error:  # noqa: BLE001 - a stop whose place is unknown is still a stop and must be shown
            _log.warning("where a thread stopped could not be found: %s", error or type(error).__name__)
        if self._halt is stop and not self.ended.is_set():
            self.stop = stop
            self.stops += 1
            self._on_change()

    async def _describe(self, stop: Stop) -> None:
        threads = (await self.request("threads", {})).get("threads") or []
        names = {int(thread["id"]): str(thread.get("name")) for thread in threads}
        if stop.reason == "pause":
            await self._prefer_main_thread(stop, names)
        frames = await self._frames_of(stop.thread_id)
        fill_stop(stop, frames)
        if self.prepare_stop is not None:
            await self.prepare_stop(self, stop, frames)
        stop.thread = names.get(stop.thread_id, "")

    async def _frames_of(self, thread: int) -> list[Message]:
        stack = await self.request("stackTrace", {"threadId": thread, "startFrame": 0, "levels": 30})
        frames: list[Message] = stack.get("stackFrames") or []
        return frames

    async def _prefer_main_thread(self, stop: Stop, names: dict[int, str]) -> None:
        """A pause stops all threads and reports the first, often a library's; the user means the main thread."""
        main = next((ident for ident, name in names.items() if name == "MainThread"), stop.thread_id)
        if main == stop.thread_id:
            return
        deadline = time.monotonic() + _MAIN_S
        while time.monotonic() < deadline:
            frames = await self._frames_of(main)
            if frames and await self._can_evaluate(frames[0]):
                break
            await asyncio.sleep(0.05)
        else:
            stop.notes.append("the main thread is in C code: its values can be read when it is back in Python")
        stop.thread_id = main
        self._stopped_threads[main] = stop.reason

    async def _can_evaluate(self, frame: Message) -> bool:
        arguments = {"expression": "None", "frameId": frame.get("id"), "context": "watch"}
        return bool((await self.forward_untranslated("evaluate", arguments, 5.0)).get("success"))

    def _resumed(self) -> None:
        self.stop = self._halt = None
        self.translation = None
        self._stopped_threads.clear()
        self._on_change()

    def _end(self) -> None:
        self.stop = self._halt = None
        self.is_stepping = False
        self.ended.set()
        # A handshake in progress must see the end instead of waiting for an event that cannot come.
        self._initialized.set()
        self._went.set()
        self._stream.close()
        for waiting in list(self._waiting.values()):
            if not waiting.done():
                waiting.set_exception(
                    UnreachableError("the debug session ended", "`rldbg ps` lists the remaining processes")
                )
        self._on_change()

    def close(self) -> None:
        self._stream.close()
