"""Servers that outlive the shell that started them: started in a session of their own, found again by name.

    <home>/servers/<name>/server.json    what was started: backend, model, command, processes
    <home>/servers/<name>/<n>.log        what process n printed
    <home>/servers/<name>/<n>.ready      written by process n when it listens: {"pid", "address"}

A process is recognised by its id and its start time, so that an id used again is never mistaken for ours.
"""

import json
import re
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from rldbg.core import IncompleteDataError, PrerequisiteError, UsageError

State = Literal["running", "starting", "crashed"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_POLL_S = 0.05
_GRACE_S = 10.0


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """One process of a server, as it was started."""

    pid: int
    created: float
    log: str
    ready: str

    @property
    def alive(self) -> bool:
        try:
            process = psutil.Process(self.pid)
            return abs(process.create_time() - self.created) < 1 and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    @property
    def address(self) -> str | None:
        """Where it listens; None until it has said so."""
        try:
            return str(json.loads(Path(self.ready).read_text(encoding="utf-8"))["address"])
        except (OSError, ValueError, KeyError):
            return None

    @property
    def state(self) -> State:
        if not self.alive:
            return "crashed"
        return "starting" if self.address is None else "running"

    def last_lines(self, count: int = 20) -> list[str]:
        try:
            text = Path(self.log).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return []
        return text.splitlines()[-count:]


@dataclass(frozen=True, slots=True)
class Server:
    """A named server: one process, or several replicas."""

    name: str
    backend: str
    model: str
    folder: str
    started_at: float
    processes: tuple[ServerProcess, ...]

    @property
    def addresses(self) -> list[str]:
        return [address for process in self.processes if (address := process.address) is not None]

    @property
    def state(self) -> State:
        """The worst of its processes'."""
        states = {process.state for process in self.processes}
        return next((state for state in ("crashed", "starting") if state in states), "running")  # type: ignore[return-value]

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "backend": self.backend,
            "model": self.model,
            "state": self.state,
            "addresses": self.addresses,
            "started_at": self.started_at,
            "folder": self.folder,
            "processes": [
                {"pid": process.pid, "state": process.state, "address": process.address, "log": process.log}
                for process in self.processes
            ],
        }


# Builds the command of process n, given the file it must announce itself in.
CommandBuilder = Callable[[int, Path], Sequence[str]]


class Registry:
    """The servers under one home folder. Several shells may use it at once; each name belongs to one server."""

    def __init__(self, home: Path) -> None:
        self._folder = home.absolute() / "servers"

    def start(
        self,
        name: str,
        *,
        backend: str,
        model: str,
        command: CommandBuilder,
        count: int = 1,
        environment: Mapping[str, str] | None = None,
    ) -> Server:
        """Starts the processes, detached from this one; they are not yet ready when this returns."""
        folder = self._claim(name)
        processes = tuple(_spawn(folder, number, command, environment) for number in range(count))
        server = Server(name, backend, model, str(folder), time.time(), processes)
        temporary = folder / ".server.json"
        temporary.write_text(json.dumps(asdict(server)), encoding="utf-8")
        temporary.replace(folder / "server.json")
        return server

    def wait(self, server: Server, *, health: str, timeout_s: float) -> None:
        """Returns when every process answers GET `health`; one that dies first is an error with its last words."""
        deadline = time.monotonic() + timeout_s
        for process in server.processes:
            while not _answers(process, health):
                if not process.alive:
                    raise _died(server, process)
                if time.monotonic() > deadline:
                    raise PrerequisiteError(
                        f"server {server.name} is not ready after {timeout_s:g} s",
                        f"see `rldbg serve logs {server.name}`; `rldbg serve down {server.name}` ends it",
                    )
                time.sleep(_POLL_S)

    def servers(self) -> list[Server]:
        """All servers, by name; those that crashed are still there until they are taken down."""
        files = sorted(self._folder.glob("*/server.json"))
        return [server for file in files if (server := _read(file)) is not None]

    def find(self, name: str) -> Server:
        server = _read(self._folder / name / "server.json") if _NAME.fullmatch(name) else None
        if server is None:
            known = ", ".join(item.name for item in self.servers()) or "none"
            raise IncompleteDataError(f"no server named {name!r}; there is {known}", "see `rldbg serve ls`")
        return server

    def stop(self, server: Server, *, grace_s: float = _GRACE_S) -> None:
        """Ends every process of the server and all their children, then forgets it."""
        victims = [victim for process in server.processes if process.alive for victim in _family(process.pid)]
        _signal(victims, signal.SIGTERM)
        _, stubborn = psutil.wait_procs(victims, timeout=grace_s)
        _signal(stubborn, signal.SIGKILL)
        psutil.wait_procs(stubborn, timeout=grace_s)
        shutil.rmtree(server.folder, ignore_errors=True)

    def _claim(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise UsageError(f"{name!r} is no name for a server", "use letters, digits, . _ - (64 at most)")
        folder = self._folder / name
        existing = _read(folder / "server.json")
        if existing is not None and any(process.alive for process in existing.processes):
            raise UsageError(
                f"a server named {name!r} is running", f"choose another --name, or `rldbg serve down {name}`"
            )
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(mode=0o700, parents=True)
        return folder

    def free_name(self, stem: str) -> str:
        """A name nobody uses: the stem, or the stem with a number."""
        taken = {server.name for server in self.servers()}
        return next(name for n in range(len(taken) + 1) if (name := stem if n == 0 else f"{stem}-{n + 1}") not in taken)


def _spawn(folder: Path, number: int, command: CommandBuilder, environment: Mapping[str, str] | None) -> ServerProcess:
    log, ready = folder / f"{number}.log", folder / f"{number}.ready"
    with open(log, "ab") as output:
        process = subprocess.Popen(
            list(command(number, ready)),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=None if environment is None else dict(environment),
        )
    return ServerProcess(process.pid, psutil.Process(process.pid).create_time(), str(log), str(ready))


def _read(file: Path) -> Server | None:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        return Server(**{**data, "processes": tuple(ServerProcess(**item) for item in data["processes"])})
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise IncompleteDataError(f"{file} is damaged: {error}", f"remove {file.parent}") from error


def _answers(process: ServerProcess, health: str) -> bool:
    address = process.address
    if address is None:
        return False
    try:
        with urllib.request.urlopen(f"http://{address}{health}", timeout=2) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _died(server: Server, process: ServerProcess) -> PrerequisiteError:
    words = "\n".join(process.last_lines(5)) or "it said nothing"
    return PrerequisiteError(
        f"server {server.name} ended before it was ready: {words}", f"see {process.log}, then start it again"
    )


def _family(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _signal(processes: Sequence[psutil.Process], number: int) -> None:
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            continue
