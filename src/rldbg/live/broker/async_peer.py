"""One authenticated connection of an agent or a client: requests and events both ways, on the broker's event loop.

Invariant: a peer that does not read costs the broker a bounded amount of memory and does not affect other peers. Its
next requests are read only after earlier answers were sent; when too many events are queued for it, it is disconnected.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from rldbg.agent import (
    PEER_LIMIT_BYTES,
    PROTOCOL,
    Decoder,
    Message,
    RequestFailed,
    WireError,
    encode,
    nonce,
    proof,
    proves,
)
from rldbg.core import RldbgError

_log = logging.getLogger(__name__)
HANDSHAKE_S = 10.0
UNREAD_LIMIT_BYTES = PEER_LIMIT_BYTES
REQUESTS_AT_ONCE = 256


class MessageChannel(Protocol):
    """Where debug adapter messages come from and go to."""

    async def receive(self) -> Message: ...

    def send(self, message: Message) -> None: ...

    def close(self) -> None: ...


class Stream:
    """Framed messages over one TCP connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit_bytes: int) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = Decoder(limit_bytes)
        self._ready: list[Message] = []
        # Sent last, before this side closes the connection.
        self.farewell: Message | None = None

    def trust(self) -> None:
        self._decoder.limit_bytes = PEER_LIMIT_BYTES

    async def receive(self) -> Message:
        while not self._ready:
            try:
                data = await self._reader.read(65536)
            except OSError as error:
                raise WireError(str(error)) from error
            if not data:
                raise WireError("the connection ended")
            self._ready = self._decoder.feed(data)
        return self._ready.pop(0)

    def send(self, message: Message) -> None:
        """Queues a message; a connection that is gone is noticed by its reader."""
        if self._writer.is_closing():
            return
        unread = self._writer.transport.get_write_buffer_size()
        if unread > UNREAD_LIMIT_BYTES:
            _log.warning("a peer was disconnected: it left %d bytes unread", unread)
            self._writer.transport.abort()
            self._ready.clear()
            return
        self._writer.write(encode(message))

    async def drain(self) -> None:
        """Wait until most of the queued data was sent."""
        # A connection that breaks meanwhile is noticed by its reader.
        with contextlib.suppress(OSError):
            await self._writer.drain()

    def close(self) -> None:
        if self.farewell is not None:
            self.send(self.farewell)
        self._writer.close()


async def greet(stream: Stream, token: str) -> tuple[str, Message]:
    """The broker's side of the handshake: what the peer is and what it says about itself. Raises WireError."""
    hello = await stream.receive()
    theirs, mine = hello.get("nonce"), nonce()
    if hello.get("type") != "hello" or not isinstance(theirs, str):
        raise WireError("no hello")
    if hello.get("protocol") != PROTOCOL:
        spoken = str(hello.get("protocol"))[:20]
        reason = f"protocol {spoken} is not this broker's protocol {PROTOCOL}: use the same rldbg version on both sides"
        stream.send({"type": "refused", "reason": reason, "protocol": PROTOCOL})
        raise WireError(reason)
    challenge = {"type": "challenge", "protocol": PROTOCOL, "nonce": mine}
    stream.send(challenge | {"proof": proof(token, "broker", theirs, mine)})
    answer = await stream.receive()
    if answer.get("type") != "proof" or not proves(answer.get("proof"), proof(token, "peer", theirs, mine)):
        stream.send({"type": "refused", "reason": "wrong token"})
        raise WireError("wrong token")
    stream.trust()
    about = answer.get("about")
    return str(hello.get("kind")), about if isinstance(about, dict) else {}


class AsyncPeer:
    """Requests, responses and events over a stream past its handshake."""

    def __init__(
        self,
        stream: Stream,
        *,
        on_request: Callable[[str, Message], Awaitable[Any]],
        on_event: Callable[[str, Message], Awaitable[None]],
    ) -> None:
        self._stream = stream
        self._on_request = on_request
        self._on_event = on_event
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # Answers leave one by one, each when most of the one before has left.
        self._answering = asyncio.Lock()
        self._last_id = 0

    async def run(self) -> None:
        """Serves the connection until it ends."""
        try:
            while True:
                self._take(await self._stream.receive())
                while len(self._tasks) >= REQUESTS_AT_ONCE:
                    await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        except WireError:
            return
        finally:
            self.close()

    def close(self) -> None:
        self._stream.close()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(WireError("the connection ended"))
        for task in self._tasks:
            task.cancel()

    async def request(self, op: str, body: Message, timeout_s: float) -> Any:
        self._last_id += 1
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[self._last_id] = waiting
        number = self._last_id
        self._stream.send({"type": "request", "id": number, "op": op, "body": body})
        try:
            async with asyncio.timeout(timeout_s):
                return await waiting
        finally:
            self._waiting.pop(number, None)

    def say_farewell(self) -> None:
        """Send without waiting for an answer: this side is about to end."""
        self._stream.send({"type": "request", "id": 0, "op": "farewell"})

    def tell(self, event: str, body: Message) -> None:
        self._stream.send({"type": "event", "event": event, "body": body})

    def _take(self, message: Message) -> None:
        kind = message.get("type")
        if kind == "response":
            self._answered(message)
            return
        body = message.get("body")
        body = body if isinstance(body, dict) else {}
        if kind == "request":
            self._spawn(self._answer(message.get("id"), str(message.get("op")), body))
        elif kind == "event":
            self._spawn(self._on_event(str(message.get("event")), body))

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _answered(self, message: Message) -> None:
        waiting = self._waiting.get(message["id"]) if isinstance(message.get("id"), int) else None
        if waiting is None or waiting.done():
            return
        if message.get("ok"):
            waiting.set_result(message.get("body"))
        else:
            waiting.set_exception(RequestFailed(message))

    async def _answer(self, number: Any, op: str, body: Message) -> None:
        answer: Message = {"type": "response", "id": number, "ok": True}
        try:
            answer["body"] = await self._on_request(op, body)
        except RldbgError as error:
            answer |= {"ok": False, "error": error.message, "hint": error.hint, "kind": error.kind}
        except Exception as error:  # noqa: BLE001 - one bad request must not end the broker
            answer |= {"ok": False, "error": f"{type(error).__name__}: {error}"}
        async with self._answering:
            await self._stream.drain()
            self._stream.send(answer)
