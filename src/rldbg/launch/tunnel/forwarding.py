"""A forwarded port kept alive: the system's ssh or kubectl, restarted when it fails, until the target has ended."""

import contextlib
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import IO

from rldbg.core import NoAnswerError, UnreachableError, UsageError, http_request
from rldbg.launch.tunnel.remote import is_harmless

_READY_S = 20.0
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0
_KEEP_ALIVE = ("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3", "-o", "ExitOnForwardFailure=yes")


@dataclass(frozen=True, slots=True)
class PortForward:
    """127.0.0.1:local leads to host:port, as the far end sees it."""

    local: int
    host: str
    port: int


def ssh_command(ssh: Sequence[str], destination: str, forwards: Sequence[PortForward], jump: str = "") -> list[str]:
    """The ssh that forwards, and does nothing else. Bound to 127.0.0.1, so that no IPv6 warning comes up."""
    words = [*ssh, "-N", "-T", *_KEEP_ALIVE]
    if jump:
        words += ["-J", jump]
    for forward in forwards:
        host = f"[{forward.host}]" if ":" in forward.host else forward.host
        words += ["-L", f"127.0.0.1:{forward.local}:{host}:{forward.port}"]
    return [*words, destination]


def free_port(wanted: int, *, is_wish: bool) -> int:
    """`wanted` when it is free; else another one, or an error when the user insisted on it."""
    if _is_free(wanted):
        return wanted
    if not is_wish:
        raise UsageError(f"port {wanted} is already in use on this machine", "omit --port to choose a free one")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def dashboard_answers(port: int) -> bool:
    """Whether a Ray dashboard is at the other end; one that asks for its token is one too."""
    try:
        answer = http_request("GET", f"http://127.0.0.1:{port}/api/version", timeout_s=5.0)
    except NoAnswerError:
        return False
    return answer.status_code in (200, 401, 403)


@dataclass
class KeptTunnel:
    """One forwarding process at a time. `goal_exists` is asked before it is started again."""

    command: list[str]
    say: Callable[[str], None]
    goal_exists: Callable[[], bool]
    answers: Callable[[], bool]
    errors: list[str] = field(default_factory=list)
    _process: "subprocess.Popen[str] | None" = None
    _reader: threading.Thread | None = None
    _closing: threading.Event = field(default_factory=threading.Event)

    def open(self) -> None:
        """Starts it and waits until the far end answers."""
        self._start()
        deadline = time.monotonic() + _READY_S
        while not self.answers():
            if self._ended() or time.monotonic() > deadline:
                self.close()
                said = self.errors[-1] if self.errors else "the remote side does not answer"
                raise UnreachableError(
                    f"the tunnel could not be opened: {said}", f"try it by hand: {' '.join(self.command)}"
                )
            self._closing.wait(0.1)

    def keep(self) -> str:
        """Runs until the target has ended or `close` is called; returns why it ended."""
        pause = _FIRST_PAUSE_S
        while not self._closing.is_set():
            if not self._ended():
                pause = _FIRST_PAUSE_S
                self._closing.wait(0.2)
                continue
            if not self.goal_exists():
                return "the job has ended"
            self.say(f"the connection was lost{': ' + self.errors[-1] if self.errors else ''}; connecting again")
            self._closing.wait(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_S)
            if not self._closing.is_set():
                self._start()
        return "closed"

    def close(self) -> None:
        self._closing.set()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            self._process.wait()
        if self._reader is not None:
            self._reader.join(timeout=5.0)

    def _start(self) -> None:
        self.errors.clear()
        self._process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        assert self._process.stdout is not None
        self._reader = threading.Thread(
            target=self._read, args=(self._process.stdout,), name="tunnel-output", daemon=True
        )
        self._reader.start()

    def _read(self, stream: "IO[str]") -> None:
        with stream:
            for line in stream:
                if (
                    line.strip()
                    and not is_harmless(line)
                    and not line.startswith(("Forwarding from", "Handling connection"))
                ):
                    self.errors.append(line.strip())

    def _ended(self) -> bool:
        return self._process is None or self._process.poll() is not None
