"""One process of a server: started in a session of its own, recognised again later, ended with all that it started.

A process is recognised by its id and its start time, so that an id used again is never mistaken for ours. What it
started is recognised by the session, so that it is found even when the process itself is gone.
"""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import psutil

from rldbg.core import Environment, NoAnswerError, http_request

ReplicaState = Literal["running", "starting", "not answering", "crashed"]
# From the worst to the best.
STATES: tuple[ReplicaState, ...] = ("crashed", "not answering", "starting", "running")
_LAST_BYTES = 1 << 16
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """One process of a server, as it was started."""

    pid: int
    created: float
    log: str
    ready: str
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def alive(self) -> bool:
        try:
            process = psutil.Process(self.pid)
            return abs(process.create_time() - self.created) < 1 and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    @property
    def address(self) -> str | None:
        """Where it listens; None until it has announced it."""
        try:
            return str(json.loads(Path(self.ready).read_text(encoding="utf-8"))["address"])
        except (OSError, ValueError, KeyError):
            return None

    @property
    def state(self) -> ReplicaState:
        """The state, without a request to the process."""
        if not self.alive:
            return "crashed"
        return "starting" if self.address is None else "running"

    def probed(self, health: str, timeout_s: float) -> ReplicaState:
        """The state, with a health check."""
        state = self.state
        if state == "running" and not self.answers(health, timeout_s):
            return "not answering" if self.alive else "crashed"
        return state

    def answers(self, health: str, timeout_s: float = 2.0) -> bool:
        address = self.address
        if address is None:
            return False
        try:
            return http_request("GET", f"http://{address}{health}", timeout_s=timeout_s).status_code == 200
        except NoAnswerError:
            return False

    def last_lines(self, count: int = 20) -> list[str]:
        try:
            with open(self.log, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _LAST_BYTES))
                text = file.read().decode(errors="replace")
        except FileNotFoundError:
            return []
        return text.splitlines()[-count:]

    def family(self) -> list[psutil.Process]:
        """The process and everything in its session; empty if its id was reused by another process."""
        try:
            if abs(psutil.Process(self.pid).create_time() - self.created) >= 1:
                return []
        except psutil.NoSuchProcess:
            pass
        members = {process.pid: process for process in psutil.process_iter() if _session(process.pid) == self.pid}
        for process in list(members.values()):
            members |= {child.pid: child for child in _children(process)}
        return [process for process in members.values() if _counts(process)]


def spawn(
    folder: Path, number: int, command: Sequence[str], environment: Mapping[str, str] | None = None
) -> ServerProcess:
    """Starts process n of a server, detached from this one; its output is appended to the same log."""
    log, ready = folder / f"{number}.log", folder / f"{number}.ready"
    extra = dict(environment or {})
    with open(log, "ab") as output:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=Environment().everything() | extra,
        )
    created = psutil.Process(process.pid).create_time()
    return ServerProcess(process.pid, created, str(log), str(ready), tuple(command), extra)


def end(processes: Sequence[ServerProcess], grace_s: float, *, noticed_s: float = 0.0) -> None:
    """Asks every process to end, then kills those left. `noticed_s` is how long to wait until their parents have reaped
    them."""
    victims = [victim for process in processes for victim in process.family()]
    _signal(victims, signal.SIGTERM)
    stubborn = _wait_for_end(victims, grace_s)
    # What was started while the others ended is caught by looking again.
    left = {victim.pid: victim for process in processes for victim in process.family()}
    left |= {victim.pid: victim for victim in stubborn}
    _signal(list(left.values()), signal.SIGKILL)
    _wait_for_end(list(left.values()), grace_s)
    if noticed_s:
        psutil.wait_procs([*victims, *left.values()], timeout=noticed_s)


def _wait_for_end(processes: Sequence[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """The processes that still run after the timeout. A zombie counts as ended: in a container whose first process does
    not reap, it would stay forever."""
    deadline = time.monotonic() + timeout_s
    while (left := [process for process in processes if _counts(process)]) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    for process in processes:
        # Reaps them if they were started by this process.
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)
    return left


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return None


def _counts(process: psutil.Process) -> bool:
    """Whether a process runs; a zombie does not count."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _signal(processes: Sequence[psutil.Process], number: int) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)
