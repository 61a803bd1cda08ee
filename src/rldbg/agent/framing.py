"""The protocol of the live plane: framed JSON after both sides have proved that they know the run's token.

A frame is `Content-Length: N`, an empty line, and N bytes of JSON: the framing of the debug adapter protocol, so that
one decoder serves agents, clients and debug sessions alike. A connection begins with four messages:

    peer   -> broker  {"type": "hello", "protocol": 1, "kind": "agent|debug|client|editor", "nonce": "..."}
    broker -> peer    {"type": "challenge", "protocol": 1, "nonce": "...", "proof": "..."}
    peer   -> broker  {"type": "proof", "proof": "...", "about": {...}}
    broker -> peer    {"type": "welcome", "about": {...}}

Each side proves that it knows the token without sending it: an agent that reaches another program on a dead broker's
port reveals nothing and accepts no requests. `{"type": "refused", "reason": "..."}` may take the place of either
answer. Afterwards both sides may send `request` (id, op, body), `response` (id, ok, body) and `event` (event, body); a
`debug` connection carries plain debug adapter messages instead, and `{"type": "farewell"}` when the broker ends it: a
connection that ends without it has lost its broker, and the next broker takes the session over.
"""

import hmac
import json
import os
from typing import Any

PROTOCOL = 1
STRANGER_LIMIT_BYTES = 64 * 1024
PEER_LIMIT_BYTES = 64 * 1024 * 1024
_HEADER_LIMIT_BYTES = 256
_HEADERS = {b"content-length", b"content-type"}

Message = dict[str, Any]
FAREWELL: Message = {"type": "farewell"}


class WireError(Exception):
    """The other side does not speak this protocol, is not who it should be, or went away."""


class Refused(WireError):
    """The broker refused the connection; the text is its reason."""


class Silent(WireError):
    """The other side accepted the connection and did not answer in time: it may be stopped or busy."""


class RequestFailed(WireError):
    """The other side answered that it could not do what was asked; `answer` is its whole response."""

    def __init__(self, answer: Message) -> None:
        super().__init__(str(answer.get("error")))
        self.answer = answer


def encode(message: Message) -> bytes:
    body = json.dumps(message, separators=(",", ":"), default=str).encode("utf-8", "surrogatepass")
    return framed(body)


def framed(body: bytes) -> bytes:
    return b"Content-Length: %d\r\n\r\n" % len(body) + body


class Decoder:
    """Cuts a byte stream into messages. Whatever is not a frame raises WireError; nothing is guessed."""

    def __init__(self, limit_bytes: int = PEER_LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self._buffer = bytearray()
        self._expected: int | None = None

    def feed(self, data: bytes) -> list[Message]:
        return [parse(body) for body in self.bodies(data)]

    def bodies(self, data: bytes) -> list[bytes]:
        """The JSON of each message that is whole now."""
        self._buffer += data
        bodies = []
        while (body := self._next()) is not None:
            bodies.append(body)
        return bodies

    def _next(self) -> bytes | None:
        if self._expected is None:
            end = self._buffer.find(b"\r\n\r\n", 0, _HEADER_LIMIT_BYTES)
            if end < 0:
                if len(self._buffer) >= _HEADER_LIMIT_BYTES:
                    raise WireError("missing frame header")
                return None
            self._expected = self._length(bytes(self._buffer[:end]))
            del self._buffer[: end + 4]
        if len(self._buffer) < self._expected:
            return None
        body = bytes(self._buffer[: self._expected])
        del self._buffer[: self._expected]
        self._expected = None
        return body

    def rest(self) -> bytes:
        """What has arrived but is not a whole message yet."""
        header = b"" if self._expected is None else b"Content-Length: %d\r\n\r\n" % self._expected
        return header + bytes(self._buffer)

    def _length(self, header: bytes) -> int:
        fields = {}
        for line in header.split(b"\r\n"):
            name, _, value = line.partition(b":")
            fields[name.strip().lower()] = value.strip()
        if not fields.keys() <= _HEADERS:
            # A request of HTTP has a length too: what a web page sends to a local port is never taken for a frame.
            raise WireError("not a frame header")
        text = fields.get(b"content-length", b"")
        if not text.isdigit():
            raise WireError("the frame header has no length")
        if int(text) > self.limit_bytes:
            raise WireError(f"a frame of {int(text)} bytes exceeds {self.limit_bytes}")
        return int(text)


def parse(body: bytes) -> Message:
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
    """Compares in constant time; anything but text proves nothing."""
    return isinstance(given, str) and hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())
