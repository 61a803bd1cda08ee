"""Joins pydevd, which can only dial a host and port, to the debug channel that the agent opened to the broker.

The loopback port exists for the moment in which pydevd connects to it. A client must show a secret that only this
process knows, through pydevd's own authorisation message; any other connection is dropped. When the broker is killed,
pydevd does not notice: its connection stays open, stopped threads stay stopped, and the relay connects to the next
broker.
"""

import contextlib
import os
import select
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable

from .framing import FAREWELL, Decoder, Message, WireError, encode, framed, nonce, parse, proves
from .link import REDIAL_S
from .peer import Connection
from .peer_owner import owner_of_peer
from .settings import say
from .stacks import mark_as_ours
from .stop_state import StopState

# As many messages of log points as the broker shows.
_MOST_UNHEARD = 1000


class _Over(Exception):
    """The session has ended: the debuggee left, or the broker said farewell."""


class Relay:
    """Passes messages between the broker and pydevd until either says that it ends, then calls `ended` once.

    `redial` gives a channel to the next broker, or None while there is none; `why_none` why none can be expected.
    """

    def __init__(
        self,
        channel: Connection,
        *,
        number: int,
        ended: Callable[[], None],
        redial: Callable[[Message], Connection | None],
        why_none: Callable[[float], str],
        timeout_s: float = 120.0,
    ) -> None:
        self.number = number
        self.secret = nonce()
        self._channel = channel
        self._ended = ended
        self._redial = redial
        self._why_none = why_none
        self._is_closed = False
        self.stops = StopState()
        self._unheard: deque[bytes] = deque(maxlen=_MOST_UNHEARD)
        self._timeout_s = timeout_s
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=4)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._thread = mark_as_ours(threading.Thread(target=self._run, name="rldbg-relay", daemon=True))

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._is_closed = True
        self._channel.close()
        with contextlib.suppress(OSError):
            self._listener.close()

    def abandon(self) -> None:
        """In a forked child: closes the parent's sockets without sending anything."""
        self._channel.sock.close()
        self._listener.close()

    def _run(self) -> None:
        try:
            debuggee, early = self._accept()
            with debuggee:
                self._pump(debuggee, early)
        except (OSError, WireError, _Over):
            # Either side may vanish at any moment; what follows is the same.
            pass
        finally:
            self.close()
            self._ended()

    def _accept(self) -> tuple[socket.socket, bytes]:
        deadline = time.monotonic() + self._timeout_s
        with self._listener:
            while True:
                self._listener.settimeout(max(deadline - time.monotonic(), 0.01))
                candidate, _ = self._listener.accept()
                candidate.settimeout(self._timeout_s)
                with contextlib.suppress(OSError, WireError):
                    # Other local processes may connect too: each has to show the secret, like pydevd.
                    if owner_of_peer(candidate) in (None, os.getuid()):
                        return candidate, self._authorise(candidate)
                candidate.close()

    def _authorise(self, candidate: socket.socket) -> bytes:
        """What else the debuggee said before it answered; WireError when it does not know the secret."""
        candidate.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        arguments = {"debugServerAccessToken": None}
        candidate.sendall(encode({"seq": 0, "type": "request", "command": "pydevdAuthorize", "arguments": arguments}))
        decoder = Decoder()
        early = b""
        while True:
            data = candidate.recv(65536)
            if not data:
                raise WireError("closed")
            for message in decoder.feed(data):
                if message.get("command") != "pydevdAuthorize":
                    early += encode(message)
                elif proves((message.get("body") or {}).get("clientAccessToken"), self.secret):
                    candidate.settimeout(None)
                    return early + decoder.rest()
                else:
                    raise WireError("wrong debug token")

    def _pump(self, debuggee: socket.socket, early: bytes) -> None:
        """Whole messages only: the next broker would begin in the middle of one."""
        from_debuggee = Decoder()
        first = from_debuggee.bodies(early)
        while True:
            with contextlib.suppress(_BrokerLost):
                self._to_broker(first)
                self._join(debuggee, from_debuggee)
            first = []
            self._await_next_broker(debuggee, from_debuggee)

    def _join(self, debuggee: socket.socket, from_debuggee: Decoder) -> None:
        unheard = list(self._unheard)
        self._unheard.clear()
        self._send(unheard)
        from_broker = Decoder()
        for body in from_broker.bodies(self._channel.leftover()):
            self._to_debuggee(debuggee, body)
        broker = self._channel.sock
        poll = select.poll()
        poll.register(debuggee, select.POLLIN)
        poll.register(broker, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == debuggee.fileno():
                    self._to_broker(from_debuggee.bodies(_received(debuggee)))
                else:
                    for body in from_broker.bodies(_received_from_broker(broker)):
                        self._to_debuggee(debuggee, body)

    def _to_broker(self, bodies: list[bytes]) -> None:
        for body in bodies:
            self.stops.said(parse(body))
        self._send(bodies)

    def _send(self, bodies: list[bytes]) -> None:
        for number, body in enumerate(bodies):
            try:
                self._channel.sock.sendall(framed(body))
            except OSError as error:
                self._keep_for_next(bodies[number:])
                raise _BrokerLost from error

    def _keep_for_next(self, bodies: list[bytes]) -> None:
        """Keeps messages of log points while there is no broker; `stops` keeps the stops, and answers are dropped."""
        self._unheard.extend(body for body in bodies if parse(body).get("event") == "output")

    def _to_debuggee(self, debuggee: socket.socket, body: bytes) -> None:
        message = parse(body)
        if message == FAREWELL:
            raise _Over
        self.stops.asked(message)
        if (
            message.get("command") == "setBreakpoints"
            and "asyncio.tasks" in sys.modules
            and sys.version_info >= (3, 12)
        ):
            # Loaded where it is needed: most processes are never debugged.
            from .async_tasks import trace_waiting

            trace_waiting(str((message["arguments"].get("source") or {}).get("path") or ""))
        debuggee.sendall(framed(body))

    def _await_next_broker(self, debuggee: socket.socket, from_debuggee: Decoder) -> None:
        """Waits until the session is taken over; the debuggee may stop meanwhile. Raises _Over when no broker will
        come."""
        lost = time.monotonic()
        self._channel.close()
        poll = select.poll()
        poll.register(debuggee, select.POLLIN)
        while not self._is_closed:
            if (channel := self._redial(self.stops.to_message())) is not None:
                self._channel = channel
                return
            if reason := self._why_none(lost):
                if self.stops.is_stopped:
                    say(f"the broker was killed and {reason}: resumed")
                break
            if poll.poll(REDIAL_S * 1000):
                bodies = from_debuggee.bodies(_received(debuggee))
                for body in bodies:
                    self.stops.said(parse(body))
                self._keep_for_next(bodies)
        raise _Over


class _BrokerLost(Exception):
    """The broker's connection ended without a farewell."""


def _received(debuggee: socket.socket) -> bytes:
    data = debuggee.recv(65536)
    # pydevd sends header and body apart; without a prompt ACK each message waits 40 ms for the other.
    debuggee.setsockopt(socket.IPPROTO_TCP, getattr(socket, "TCP_QUICKACK", 12), 1)
    if not data:
        raise _Over
    return data


def _received_from_broker(broker: socket.socket) -> bytes:
    try:
        data = broker.recv(65536)
    except OSError as error:
        raise _BrokerLost from error
    if not data:
        raise _BrokerLost
    return data
