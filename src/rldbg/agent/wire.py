"""The one wire format of the live plane: framed JSON after a mutual proof of the run's token.

A frame is `Content-Length: N`, an empty line, and N bytes of JSON: the framing of the debug adapter protocol, so that
one decoder serves agents, clients and debug sessions alike. A connection begins with four messages:

    peer   -> broker  {"type": "hello", "protocol": 1, "kind": "agent|debug|client|editor", "nonce": "..."}
    broker -> peer    {"type": "challenge", "protocol": 1, "nonce": "...", "proof": "..."}
    peer   -> broker  {"type": "proof", "proof": "...", "about": {...}}
    broker -> peer    {"type": "welcome", "about": {...}}

Each side proves that it knows the token without sending it: an agent that finds a stranger on a dead broker's port
tells it nothing and takes no orders. `{"type": "refused", "reason": "..."}` may take the place of either answer.
Afterwards both sides may send `request` (id, op, body), `response` (id, ok, body) and `event` (event, body);
a `debug` connection carries plain debug adapter messages instead.
"""

import contextlib
import hmac
import json
import os
import socket
from typing import Any

PROTOCOL = 1
STRANGER_LIMIT_BYTES = 64 * 1024
PEER_LIMIT_BYTES = 64 * 1024 * 1024
_HEADER_LIMIT_BYTES = 256

Message = dict[str, Any]


class WireError(Exception):
    """The other side does not speak this protocol, is not who it should be, or went away."""


class Refused(WireError):
    """The broker answered, and said no; the text is its reason."""


def encode(message: Message) -> bytes:
    body = json.dumps(message, separators=(",", ":"), default=str).encode("utf-8", "surrogatepass")
    return b"Content-Length: %d\r\n\r\n" % len(body) + body


class Decoder:
    """Cuts a byte stream into messages. Whatever is not a frame raises WireError; nothing is guessed."""

    def __init__(self, limit_bytes: int = PEER_LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self._buffer = bytearray()
        self._expected: int | None = None

    def feed(self, data: bytes) -> list[Message]:
        self._buffer += data
        messages = []
        while (message := self._next()) is not None:
            messages.append(message)
        return messages

    def _next(self) -> Message | None:
        if self._expected is None:
            end = self._buffer.find(b"\r\n\r\n", 0, _HEADER_LIMIT_BYTES)
            if end < 0:
                if len(self._buffer) >= _HEADER_LIMIT_BYTES:
                    raise WireError("no frame header where one must be")
                return None
            self._expected = self._length(bytes(self._buffer[:end]))
            del self._buffer[: end + 4]
        if len(self._buffer) < self._expected:
            return None
        body = bytes(self._buffer[: self._expected])
        del self._buffer[: self._expected]
        self._expected = None
        return _parse(body)

    def rest(self) -> bytes:
        """What has arrived but is no whole message yet."""
        header = b"" if self._expected is None else b"Content-Length: %d\r\n\r\n" % self._expected
        return header + bytes(self._buffer)

    def _length(self, header: bytes) -> int:
        for line in header.split(b"\r\n"):
            name, _, value = line.partition(b":")
            if name.strip().lower() == b"content-length" and value.strip().isdigit():
                length = int(value)
                if length > self.limit_bytes:
                    raise WireError(f"a frame of {length} bytes is more than {self.limit_bytes}")
                return length
        raise WireError("a frame header without a length")


def _parse(body: bytes) -> Message:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        raise WireError("a frame that is not JSON") from None
    if not isinstance(message, dict):
        raise WireError("a frame that is not a JSON object")
    return message


def nonce() -> str:
    return os.urandom(16).hex()


def proof(token: str, side: str, peer_nonce: str, broker_nonce: str) -> str:
    text = f"rldbg {PROTOCOL} {side} {peer_nonce} {broker_nonce}"
    return hmac.new(token.encode(), text.encode(), "sha256").hexdigest()


def proves(given: object, expected: str) -> bool:
    """Compares in constant time; anything but text is no proof."""
    return isinstance(given, str) and hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())


class Connection:
    """A blocking connection to a broker, past its handshake. One thread reads; writes are whole frames."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.about: Message = {}
        self._decoder = Decoder()
        self._ready: list[Message] = []

    def send(self, message: Message) -> None:
        try:
            self.sock.sendall(encode(message))
        except OSError as error:
            raise WireError(f"the connection broke: {error}") from error

    def receive(self, timeout_s: float | None = None) -> Message:
        """The next message; WireError when the connection ends, TimeoutError when nothing came in time."""
        while not self._ready:
            self._ready = self._read(timeout_s)
        return self._ready.pop(0)

    def _read(self, timeout_s: float | None = None) -> list[Message]:
        try:
            self.sock.settimeout(timeout_s)
            data = self.sock.recv(65536)
        except TimeoutError:
            raise
        except OSError as error:
            raise WireError(f"the connection broke: {error}") from error
        if not data:
            raise WireError("the other side closed the connection")
        return self._decoder.feed(data)

    def read_ready(self) -> None:
        """Reads the bytes that are there now, for a caller who has polled the socket."""
        self._ready += self._read()

    def take_ready(self) -> list[Message]:
        """The messages read and not yet taken."""
        ready, self._ready = self._ready, []
        return ready

    def leftover(self) -> bytes:
        """Messages that arrived together with the last one read, as bytes again (for a debug channel)."""
        rest = b"".join(encode(message) for message in self._ready) + self._decoder.rest()
        self._ready = []
        return rest

    def close(self) -> None:
        # shutdown wakes a thread of ours that is blocked in recv; close alone does not.
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()


def dial(address: tuple[str, int], *, kind: str, token: str, about: Message, timeout_s: float = 5.0) -> Connection:
    """Connects to a broker and proves the token both ways. Raises WireError, Refused or OSError."""
    sock = socket.create_connection(address, timeout=timeout_s)
    connection = Connection(sock)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        _introduce(connection, kind, token, about, timeout_s)
        sock.settimeout(None)
    except BaseException:
        connection.close()
        raise
    return connection


def _introduce(connection: Connection, kind: str, token: str, about: Message, timeout_s: float) -> None:
    mine = nonce()
    connection.send({"type": "hello", "protocol": PROTOCOL, "kind": kind, "nonce": mine})
    challenge = _expect(connection, "challenge", timeout_s)
    theirs = str(challenge.get("nonce"))
    if not proves(challenge.get("proof"), proof(token, "broker", mine, theirs)):
        raise WireError("whoever listens there does not know this run's token")
    connection.send({"type": "proof", "proof": proof(token, "peer", mine, theirs), "about": about})
    connection.about = _expect(connection, "welcome", timeout_s).get("about") or {}


def _expect(connection: Connection, kind: str, timeout_s: float) -> Message:
    try:
        message = connection.receive(timeout_s)
    except TimeoutError:
        raise WireError(f"no {kind} within {timeout_s:g} s") from None
    if message.get("type") == "refused":
        raise Refused(str(message.get("reason")))
    if message.get("type") != kind:
        raise WireError(f"expected {kind}, got {str(message.get('type'))[:40]}")
    return message
