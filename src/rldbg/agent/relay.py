"""Joins pydevd, which can only dial a host and port, to the debug channel that the agent opened to the broker.

The loopback port exists for the moment in which pydevd connects to it. Whoever connects must show a secret that only
this process knows, through pydevd's own authorisation message; a stranger is dropped.
"""

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable

from .framing import Decoder, WireError, encode, nonce, proves
from .peer import Connection
from .peer_owner import owner_of_peer
from .stacks import mark_as_ours


class Relay:
    """Pumps bytes between the broker and pydevd until either side ends, then calls `ended` once."""

    def __init__(
        self, channel: Connection, *, number: int, ended: Callable[[], None], timeout_s: float = 120.0
    ) -> None:
        self.number = number
        self.secret = nonce()
        self._channel = channel
        self._ended = ended
        self._timeout_s = timeout_s
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=4)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._thread = mark_as_ours(threading.Thread(target=self._run, name="rldbg-relay", daemon=True))

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._channel.close()
        with contextlib.suppress(OSError):
            self._listener.close()

    def abandon(self) -> None:
        """In a forked child: lets go of the parent's sockets without a word on them."""
        self._channel.sock.close()
        self._listener.close()

    def _run(self) -> None:
        try:
            debuggee, early = self._accept()
            with debuggee:
                self._pump(debuggee, early)
        except (OSError, WireError):
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
                    # Others would be waited for: who is not known here has to show the secret, like pydevd.
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
        broker = self._channel.sock
        if early:
            broker.sendall(early)
        if rest := self._channel.leftover():
            debuggee.sendall(rest)
        poll = select.poll()
        poll.register(debuggee, select.POLLIN)
        poll.register(broker, select.POLLIN)
        routes = {debuggee.fileno(): (debuggee, broker), broker.fileno(): (broker, debuggee)}
        while True:
            for descriptor, _ in poll.poll():
                source, target = routes[descriptor]
                data = source.recv(65536)
                if source is debuggee:
                    # pydevd sends header and body apart; without a prompt ACK each message waits 40 ms for the other.
                    source.setsockopt(socket.IPPROTO_TCP, getattr(socket, "TCP_QUICKACK", 12), 1)
                if not data:
                    return
                target.sendall(data)
