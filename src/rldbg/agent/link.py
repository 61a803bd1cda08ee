"""The agent's one connection to its broker: a thread that is blocked until the broker asks something.

Invariants: losing the broker never disturbs the process (the thread waits and dials again); a fork finds the thread
stopped, so that neither locks nor warnings are inherited, and the child gets a link of its own.
"""

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from .far_hosts import ask_to_be_reached
from .framing import Message, Refused, Silent, WireError
from .peer import Connection, Peer, dial
from .settings import BrokerAddress, Settings, say
from .stacks import mark_as_ours

# A broker that was killed is there again within two seconds; later nobody is waiting.
_RETRY_S = (*[0.1] * 50, *[0.5] * 20, 1.0, 2.0, 5.0, 10.0)
# The first attempt ends sooner, except on another host than the broker's.
_FIRST_S = 15.0
# A broker that takes the connection and says nothing is stopped or starved, not dead: whoever stops waits for it.
SILENCE_S = 3600.0


class NoBroker(Exception):
    """There is no broker to ask, or it went away before it answered."""


class Link:
    """Dials the broker, answers its requests with `handle`, and carries requests and events of this process to it."""

    def __init__(
        self,
        settings: Settings,
        *,
        about: Callable[[], Message],
        handle: Callable[[str, Message], Any],
    ) -> None:
        self._settings = settings
        self._about = about
        self._handle = handle
        self._connected = threading.Event()
        self._settled = threading.Event()
        self._peer: Peer | None = None
        self._failures = 0
        self._refusal = ""
        self._is_silent = False
        self._pausing = False
        self._began = time.monotonic()
        self._wake_read, self._wake_write = socket.socketpair()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._pausing = False
        thread = threading.Thread(target=self._run, name="rldbg-agent", daemon=True)
        self._thread = mark_as_ours(thread)
        thread.start()

    def pause(self) -> None:
        """Stops the thread but keeps the connection; `start` goes on with it. For the moment of a fork."""
        self._pausing = True
        self._wake_write.send(b"x")
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5.0)

    def abandon(self) -> None:
        """In a forked child: lets go of the parent's sockets without a word on them."""
        for sock in (self._wake_read, self._wake_write, self._peer.connection.sock if self._peer else None):
            if sock is not None:
                sock.close()

    def wait_connected(self, silence_s: float = _FIRST_S) -> bool:
        """Whether there is a broker; waits only while the first attempt of a young process is still under way, or the
        broker is there and silent."""
        self._settled.wait(_FIRST_S)
        deadline = time.monotonic() + silence_s
        while self._is_silent and not self._connected.is_set() and time.monotonic() < deadline:
            self._connected.wait(0.2)
        return self._connected.is_set()

    @property
    def refusal(self) -> str:
        """Why the broker would not have us; empty when it never said no."""
        return self._refusal

    def request(self, op: str, body: Message, timeout_s: float) -> Message:
        """Asks the broker and waits. Never call this from `handle`."""
        peer = self._peer
        if peer is None:
            raise NoBroker("not connected to a broker")
        try:
            return peer.request(op, body, timeout_s) or {}
        except (WireError, TimeoutError) as error:
            raise NoBroker(str(error)) from error

    def tell(self, event: str, body: Message) -> None:
        """Tells the broker if there is one."""
        peer = self._peer
        if peer is not None:
            with contextlib.suppress(WireError):
                peer.tell(event, body)

    def dial_debug_channel(self, session: int, silence_s: float = SILENCE_S) -> Connection:
        """A second connection, for one debug session of this process."""
        address = BrokerAddress.read(self._settings.run)
        if address is None:
            raise NoBroker("this run has no broker")
        try:
            about = self._about() | {"session": session}
            return dial(
                (address.host, address.port), kind="debug", token=address.token, about=about, timeout_s=silence_s
            )
        except (OSError, WireError) as error:
            raise NoBroker(str(error)) from error

    def _run(self) -> None:
        while not self._pausing:
            if self._peer is None:
                is_final = self._connect()
                if is_final or time.monotonic() > self._began + _FIRST_S:
                    self._settled.set()
            if self._peer is None:
                delay = _RETRY_S[min(self._failures, len(_RETRY_S) - 1)]
                self._failures += 1
                self._sleep(delay)
                continue
            self._failures = 0
            self._serve(self._peer)

    def _connect(self) -> bool:
        """Whether it was worth trying; False when the broker is being told that it is needed on this host."""
        address = BrokerAddress.read(self._settings.run)
        if address is None:
            return True
        if address.is_out_of_reach(socket.gethostname()):
            ask_to_be_reached(self._settings.run)
            return False
        try:
            connection = dial((address.host, address.port), kind="agent", token=address.token, about=self._about())
        except Refused as error:
            if str(error) != self._refusal:
                self._refusal = str(error)
                say(f"the broker refused this process: {error}")
            return True
        except (OSError, WireError) as error:
            self._is_silent = isinstance(error, Silent)
            return True
        self._refusal, self._is_silent = "", False
        self._peer = Peer(connection, self._handle)
        self._connected.set()
        return True

    def _serve(self, peer: Peer) -> None:
        """Until the connection ends or a fork is near."""
        try:
            peer.serve(wake=self._wake_read)
            self._wake_read.recv(64)
        except WireError:
            self._peer = None
            self._connected.clear()
            peer.close()

    def _sleep(self, delay_s: float) -> None:
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        if poll.poll(delay_s * 1000):
            self._wake_read.recv(64)
