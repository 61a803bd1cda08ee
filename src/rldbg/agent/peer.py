"""The blocking side of the protocol in `framing`: dial a broker, then ask and answer over the connection.

Agents and clients share it; the broker's own side runs on asyncio (`rldbg.live.broker`).
"""

import contextlib
import select
import socket
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from .framing import PROTOCOL, Decoder, Message, Refused, RequestFailed, Silent, WireError, encode, nonce, proof, proves

if TYPE_CHECKING:
    from .settings import BrokerAddress

# For each of several addresses: one on a network that is not ours may swallow what is sent there.
_NEXT_ADDRESS_S = 2.0


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


class Peer:
    """Requests, responses and events over one connection. Any thread may ask; one thread calls `serve`.

    Invariant: every request gets its answer, or an error as soon as the connection is lost.
    """

    def __init__(self, connection: Connection, handle: Callable[[str, Message], Any] | None = None) -> None:
        self.connection = connection
        self._handle = handle
        self._sending = threading.Lock()
        self._registering = threading.Lock()
        self._answers: dict[int, SimpleQueue[Message | None]] = {}
        self._last_id = 0
        self._lost = ""

    def request(self, op: str, body: Message, timeout_s: float) -> Any:
        """The body of the answer. Raises RequestFailed, WireError when the connection is lost, or TimeoutError.

        Never call this from `handle`: the thread that would read the answer is busy there.
        """
        answers: SimpleQueue[Message | None] = SimpleQueue()
        with self._registering:
            if self._lost:
                raise WireError(self._lost)
            self._last_id += 1
            number = self._last_id
            self._answers[number] = answers
        try:
            self._send({"type": "request", "id": number, "op": op, "body": body})
            answer = answers.get(timeout=timeout_s)
        except Empty:
            raise TimeoutError(f"no answer to {op} within {timeout_s:g} s") from None
        finally:
            self._answers.pop(number, None)
        if answer is None:
            raise WireError(self._lost)
        if not answer.get("ok"):
            raise RequestFailed(answer)
        return answer.get("body")

    def tell(self, event: str, body: Message) -> None:
        self._send({"type": "event", "event": event, "body": body})

    def serve(self, wake: socket.socket | None = None) -> None:
        """Reads and answers until `wake` is readable. Raises WireError when the connection ends."""
        try:
            while True:
                for message in self.connection.take_ready():
                    self._take(message)
                if wake is not None and _is_readable(wake, beside=self.connection.sock):
                    return
                self.connection.read_ready()
        except WireError as error:
            self._give_up(str(error))
            raise

    def close(self) -> None:
        self.connection.close()

    def _send(self, message: Message) -> None:
        with self._sending:
            self.connection.send(message)

    def _take(self, message: Message) -> None:
        number = message.get("id")
        if message.get("type") == "response":
            waiting = self._answers.get(number) if isinstance(number, int) else None
            if waiting is not None:
                waiting.put(message)
        elif message.get("type") == "request" and self._handle is not None:
            answer: Message = {"type": "response", "id": number, "ok": True}
            try:
                answer["body"] = self._handle(str(message.get("op")), message.get("body") or {})
            except Exception as error:  # noqa: BLE001 - a request that fails is answered; the connection lives on
                answer |= {"ok": False, "error": f"{type(error).__name__}: {error}"}
            self._send(answer)

    def _give_up(self, reason: str) -> None:
        with self._registering:
            self._lost = reason
            for waiting in list(self._answers.values()):
                waiting.put(None)


def _is_readable(wake: socket.socket, beside: socket.socket) -> bool:
    """Waits for either socket; whether `wake` is the one."""
    poll = select.poll()
    poll.register(wake, select.POLLIN)
    poll.register(beside, select.POLLIN)
    return any(descriptor == wake.fileno() for descriptor, _ in poll.poll())


def dial(
    address: "tuple[str, int] | BrokerAddress", *, kind: str, token: str, about: Message, timeout_s: float = 5.0
) -> Connection:
    """Connects to a broker, at the first of its addresses that leads there, and proves the token both ways. Raises
    WireError, Refused or OSError; of several failures that of the first address."""
    hosts, port = ((address[0],), address[1]) if isinstance(address, tuple) else (address.hosts, address.port)
    failures: list[OSError | WireError] = []
    for host in hosts:
        try:
            connect_s = timeout_s if len(hosts) == 1 else min(timeout_s, _NEXT_ADDRESS_S)
            return _dial((host, port), connect_s, kind=kind, token=token, about=about, timeout_s=timeout_s)
        except (Refused, Silent):
            # The broker was reached: its other addresses lead to the same one.
            raise
        except (OSError, WireError) as error:
            failures.append(error)
    raise failures[0]


def _dial(
    place: tuple[str, int], connect_s: float, *, kind: str, token: str, about: Message, timeout_s: float
) -> Connection:
    sock = socket.create_connection(place, timeout=connect_s)
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
        raise WireError("the listener does not know this run's token")
    connection.send({"type": "proof", "proof": proof(token, "peer", mine, theirs), "about": about})
    connection.about = _expect(connection, "welcome", timeout_s).get("about") or {}


def _expect(connection: Connection, kind: str, timeout_s: float) -> Message:
    try:
        message = connection.receive(timeout_s)
    except TimeoutError:
        raise Silent(f"no {kind} within {timeout_s:g} s") from None
    if message.get("type") == "refused":
        raise Refused(str(message.get("reason")))
    if message.get("type") != kind:
        raise WireError(f"expected {kind}, got {str(message.get('type'))[:40]}")
    return message
