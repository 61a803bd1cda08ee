"""The agent's one connection to its broker: a thread that is blocked until the broker asks something.

Invariants: losing the broker never disturbs the process (the thread waits and dials again); a fork finds the thread
stopped, so that neither locks nor warnings are inherited, and the child gets a link of its own.
"""

import contextlib
import select
import socket
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from .settings import BrokerAddress, Settings, say
from .stacks import mark_as_ours
from .wire import Connection, Message, Refused, WireError, dial

_RETRY_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


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
        lost: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._about = about
        self._handle = handle
        self._lost = lost
        self._connected = threading.Event()
        self._settled = threading.Event()
        self._sending = threading.Lock()
        self._connection: Connection | None = None
        self._answers: dict[int, SimpleQueue[Message]] = {}
        self._last_id = 0
        self._failures = 0
        self._refusal = ""
        self._pausing = False
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
        for sock in (self._wake_read, self._wake_write, self._connection.sock if self._connection else None):
            if sock is not None:
                sock.close()

    def wait_connected(self, timeout_s: float) -> bool:
        """Whether there is a broker; waits only while the first attempt of a young process is still under way."""
        self._settled.wait(timeout_s)
        return self._connected.is_set()

    @property
    def refusal(self) -> str:
        """Why the broker would not have us; empty when it never said no."""
        return self._refusal

    def request(self, op: str, body: Message, timeout_s: float) -> Message:
        """Asks the broker and waits. Never call this from `handle`."""
        answers: SimpleQueue[Message] = SimpleQueue()
        with self._sending:
            self._last_id += 1
            number = self._last_id
            self._answers[number] = answers
        try:
            self._send({"type": "request", "id": number, "op": op, "body": body})
            message = answers.get(timeout=timeout_s)
        except Empty:
            raise NoBroker(f"no answer to {op} within {timeout_s:g} s") from None
        finally:
            self._answers.pop(number, None)
        if not message.get("ok"):
            raise NoBroker(str(message.get("error", "the broker went away")))
        return message.get("body") or {}

    def tell(self, event: str, body: Message) -> None:
        """Tells the broker if there is one."""
        with contextlib.suppress(NoBroker):
            self._send({"type": "event", "event": event, "body": body})

    def dial_debug_channel(self, session: int) -> Connection:
        """A second connection, for one debug session of this process."""
        address = BrokerAddress.read(self._settings.run)
        if address is None:
            raise NoBroker("this run has no broker")
        try:
            about = self._about() | {"session": session}
            return dial((address.host, address.port), kind="debug", token=address.token, about=about)
        except (OSError, WireError) as error:
            raise NoBroker(str(error)) from error

    def _send(self, message: Message) -> None:
        connection = self._connection
        if connection is None:
            raise NoBroker("not connected to a broker")
        with self._sending:
            try:
                connection.send(message)
            except WireError as error:
                raise NoBroker(str(error)) from error

    def _run(self) -> None:
        while not self._pausing:
            if self._connection is None:
                self._connect()
                self._settled.set()
            if self._connection is None:
                delay = _RETRY_S[min(self._failures, len(_RETRY_S) - 1)]
                self._failures += 1
                self._sleep(delay)
                continue
            self._failures = 0
            self._serve(self._connection)

    def _connect(self) -> None:
        address = BrokerAddress.read(self._settings.run)
        if address is None:
            return
        try:
            connection = dial((address.host, address.port), kind="agent", token=address.token, about=self._about())
        except Refused as error:
            if str(error) != self._refusal:
                self._refusal = str(error)
                say(f"the broker refused this process: {error}")
            return
        except (OSError, WireError):
            return
        self._refusal = ""
        self._connection = connection
        self._connected.set()

    def _serve(self, connection: Connection) -> None:
        """Until the connection ends or a fork is near."""
        poll = select.poll()
        poll.register(connection.sock, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        try:
            while True:
                for message in connection.take_ready():
                    self._take(message)
                poll.poll()
                if self._pausing:
                    self._wake_read.recv(64)
                    return
                connection.read_ready()
        except (WireError, NoBroker):
            self._drop()

    def _sleep(self, delay_s: float) -> None:
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        if poll.poll(delay_s * 1000):
            self._wake_read.recv(64)

    def _take(self, message: Message) -> None:
        if message.get("type") == "response":
            waiting = self._answers.get(int(message.get("id", 0)))
            if waiting is not None:
                waiting.put(message)
            return
        if message.get("type") != "request":
            return
        answer: Message = {"type": "response", "id": message.get("id"), "ok": True}
        try:
            answer["body"] = self._handle(str(message.get("op")), message.get("body") or {})
        except Exception as error:  # noqa: BLE001 - border 2 of 3: a request that fails is answered, not fatal
            answer |= {"ok": False, "error": f"{type(error).__name__}: {error}"}
        self._send(answer)

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        self._connected.clear()
        if connection is not None:
            connection.close()
        for waiting in list(self._answers.values()):
            waiting.put({"ok": False})
        self._lost()
