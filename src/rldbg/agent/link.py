"""The agent's one connection to its broker: a thread that is blocked until the broker asks something.

Invariants: losing the broker never disturbs the process (the thread waits and dials again); a fork finds the thread
stopped, so that neither locks nor warnings are inherited, and the child gets a link of its own.
"""

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from .framing import Message, Refused, RequestFailed, Silent, WireError
from .peer import Connection, Peer, dial
from .remote_hosts import ask_to_be_reached
from .settings import BrokerAddress, Settings, say
from .stacks import mark_as_ours

# A killed broker is restarted within two seconds; dial less often after that.
_RETRY_S = (*[0.1] * 50, *[0.5] * 20, 1.0, 2.0, 5.0, 10.0)
# The first attempt ends sooner, except on another host than the broker's.
_FIRST_S = 15.0
# A broker that accepts the connection and does not answer is suspended or starved, not dead: a stop waits for it.
SILENCE_S = 3600.0
_LOOK_S = 0.05
REDIAL_S = 0.1


class NoBroker(Exception):
    """There is no broker to ask, or it went away before it answered."""


class LostBroker(NoBroker):
    """The connection ended; ask again when the next broker is connected."""


class Link:
    """Dials the broker, answers its requests with `handle`, and carries requests and events of this process to it.
    `woken` is called in its thread when it has connected, and after each `wake`."""

    def __init__(
        self,
        settings: Settings,
        *,
        about: Callable[[], Message],
        handle: Callable[[str, Message], Any],
        woken: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._about = about
        self._handle = handle
        self._woken = woken
        self._connected = threading.Event()
        self._settled = threading.Event()
        self._peer: Peer | None = None
        self._failures = 0
        self._refusal = ""
        self._is_silent = False
        # When the broker was lost; None while there is one, and where there never was.
        self._lost_at: float | None = None
        self._said_farewell = False
        self._owner_pid = 0
        # Which of the broker's addresses has led there.
        self._reached_at = ""
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

    def wake(self) -> None:
        """Lets the thread call `woken`; also from a signal handler, and never waits."""
        with contextlib.suppress(OSError):
            self._wake_write.send(b"x", socket.MSG_DONTWAIT)

    def abandon(self) -> None:
        """In a forked child: closes the parent's sockets without sending anything."""
        for sock in (self._wake_read, self._wake_write, self._peer.connection.sock if self._peer else None):
            if sock is not None:
                sock.close()

    def wait_connected(self, silence_s: float = _FIRST_S) -> bool:
        """Whether there is a broker; waits only while the first attempt of a young process is still under way, or the
        broker exists and does not answer. One that was killed is not waited for: see `wait_for_next`."""
        self._settled.wait(_FIRST_S)
        deadline = time.monotonic() + silence_s
        while self._is_silent and not self._connected.is_set() and time.monotonic() < deadline:
            self._connected.wait(0.2)
        return self._connected.is_set()

    def wait_for_next(self) -> bool:
        """Whether there is a broker; waits for the next one while it can be expected."""
        while not self._connected.wait(_LOOK_S):
            if self._lost_at is None or self.why_none(self._lost_at):
                return self._connected.is_set()
        return True

    def why_none(self, lost_at: float) -> str:
        """Why no broker will replace the one lost at that time; empty while one may."""
        if self._said_farewell:
            return "the run was told to end"
        if not self._connected.is_set() and self._owner_pid and not _is_there(self._owner_pid):
            return "the process that started this run has ended too"
        wait_s = self._settings.broker_wait_s
        return f"no other broker connected within {wait_s:g} s" if time.monotonic() > lost_at + wait_s else ""

    def farewell(self) -> None:
        """The broker was told to end: do not wait for another."""
        self._said_farewell = True

    @property
    def refusal(self) -> str:
        """Why the broker refused this process; empty if it did not."""
        return self._refusal

    def request(self, op: str, body: Message, timeout_s: float) -> Message:
        """Asks the broker and waits. Never call this from `handle`."""
        peer = self._peer
        if peer is None:
            raise LostBroker("not connected to a broker")
        try:
            return peer.request(op, body, timeout_s) or {}
        except (RequestFailed, TimeoutError) as error:
            raise NoBroker(str(error)) from error
        except WireError as error:
            raise LostBroker(str(error)) from error

    def insist(self, op: str, body: Message, timeout_s: float) -> Message:
        """Asks the broker and waits; if it is killed before it answers, asks the next one."""
        while True:
            peer = self._peer
            try:
                return self.request(op, body, timeout_s)
            except LostBroker:
                while peer is not None and self._peer is peer:
                    # Its thread is about to notice.
                    time.sleep(_LOOK_S)
                if not self.wait_for_next():
                    raise

    def tell(self, event: str, body: Message) -> None:
        """Tells the broker if there is one."""
        peer = self._peer
        if peer is not None:
            with contextlib.suppress(WireError):
                peer.tell(event, body)

    def dial_debug_channel(
        self, session: int, silence_s: float = SILENCE_S, taken_over: Message | None = None
    ) -> Connection:
        """A second connection, for one debug session of this process; `taken_over` says how a killed broker left it."""
        address = self._read_address()
        if address is None:
            raise NoBroker("this run has no broker")
        try:
            about = self._about() | {"session": session, "taken_over": taken_over}
            return dial(address, kind="debug", token=address.token, about=about, timeout_s=silence_s)
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
            self._woken()
            self._serve(self._peer)

    def _read_address(self) -> BrokerAddress | None:
        address = BrokerAddress.read(self._settings.run)
        return address and address.from_here(self._reached_at)

    def _connect(self) -> bool:
        """Whether it was worth trying; False when the broker is being told that it is needed on this host."""
        address = self._read_address()
        if address is None:
            return True
        if address.is_out_of_reach(socket.gethostname()):
            ask_to_be_reached(self._settings.run)
            return False
        try:
            connection = dial(address, kind="agent", token=address.token, about=self._about())
        except Refused as error:
            if str(error) != self._refusal:
                self._refusal = str(error)
                say(f"the broker refused this process: {error}")
            return True
        except (OSError, WireError) as error:
            self._is_silent = isinstance(error, Silent)
            if isinstance(error, ConnectionRefusedError) and self._lost_at is None:
                # Killed before this process began.
                self._lost_at = time.monotonic()
            if not self._is_silent and address.node not in ("", socket.gethostname()):
                # None of its addresses leads there from this host.
                ask_to_be_reached(self._settings.run)
            return True
        self._reached_at = str(connection.sock.getpeername()[0])
        self._refusal, self._is_silent = "", False
        self._lost_at, self._said_farewell = None, False
        is_here = address.node == socket.gethostname() and _is_there(address.owner_pid)
        self._owner_pid = address.owner_pid if is_here else 0
        self._peer = Peer(connection, self._handle)
        self._connected.set()
        return True

    def _serve(self, peer: Peer) -> None:
        """Serves until the connection ends or a fork is about to happen."""
        try:
            peer.serve(wake=self._wake_read)
            self._wake_read.recv(64)
        except WireError:
            self._lost_at = time.monotonic()
            self._peer = None
            self._connected.clear()
            peer.close()

    def _sleep(self, delay_s: float) -> None:
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        if poll.poll(delay_s * 1000):
            self._wake_read.recv(64)


def _is_there(pid: int) -> bool:
    """Whether this process can see the other one, which may be another user's."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return bool(pid)
