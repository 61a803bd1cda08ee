"""Servers that outlive the shell that started them: started in a session of their own, found again by name.

<home>/servers/<name>/server.json     what was started: backend, model, processes and their commands
<home>/servers/<name>/<n>.log         what process n printed
<home>/servers/<name>/<n>.ready       where process n listens: {"pid", "address"}
<home>/servers/<name>/<n>.report.json what process n had to say when it ended: {"summary", "findings"}
"""

import fcntl
import json
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from rldbg.core import IncompleteDataError, PrerequisiteError, UsageError, write_whole
from rldbg.inference.replica_process import STATES, ReplicaState, ServerProcess, end, spawn

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_POLL_S = 0.05
_GRACE_S = 10.0
_PROBE_S = 2.0


@dataclass(frozen=True, slots=True)
class Server:
    """A named server: one process, or several replicas."""

    name: str
    backend: str
    model: str
    folder: str
    started_at: float
    processes: tuple[ServerProcess, ...]
    health: str = "/health"

    @property
    def addresses(self) -> list[str]:
        return [address for process in self.processes if (address := process.address) is not None]

    @property
    def state(self) -> ReplicaState:
        """The worst of its processes'."""
        return _worst([process.state for process in self.processes])

    def to_dict(self, states: Sequence[ReplicaState] | None = None) -> dict[str, Any]:
        states = states or [process.state for process in self.processes]
        return {
            "name": self.name,
            "backend": self.backend,
            "model": self.model,
            "state": _worst(states),
            "addresses": self.addresses,
            "started_at": self.started_at,
            "folder": self.folder,
            "processes": [
                {"pid": process.pid, "state": state, "address": process.address, "log": process.log}
                | ({"last_lines": process.last_lines(5)} if state == "crashed" else {})
                for process, state in zip(self.processes, states, strict=True)
            ],
        }


# Builds the command of process n, given the file it must announce itself in.
CommandBuilder = Callable[[int, Path], Sequence[str]]
# Additional environment variables of process n.
EnvironmentBuilder = Callable[[int], Mapping[str, str]]


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
        environment: EnvironmentBuilder = lambda _number: {},
        health: str = "/health",
    ) -> Server:
        """Starts the processes, detached from this one; they are not yet ready when this returns."""
        with self._alone():
            folder = self.claim(name)
            # Build all commands first, so that an error is known before the first replica is started.
            planned = [(command(number, folder / f"{number}.ready"), environment(number)) for number in range(count)]
            server = Server(name, backend, model, str(folder), time.time(), (), health)
            try:
                for number, (arguments, variables) in enumerate(planned):
                    process = spawn(folder, number, arguments, variables)
                    server = replace(server, processes=(*server.processes, process))
                    _write(server)
            except OSError as error:
                self.stop(server)
                program = planned[0][0][0]
                raise PrerequisiteError(f"{program} cannot be started: {error}", "see `rldbg serve ls`") from error
            return server

    def restart(self, server: Server) -> Server:
        """Ends what is left of the processes and starts them again, at the addresses they had."""
        addresses = [process.address for process in server.processes]
        end(server.processes, _GRACE_S)
        again = []
        for number, (process, address) in enumerate(zip(server.processes, addresses, strict=True)):
            Path(process.ready).unlink(missing_ok=True)
            command = _at_port(process.command, address)
            again.append(spawn(Path(server.folder), number, command, process.environment))
        server = replace(server, processes=tuple(again), started_at=time.time())
        _write(server)
        return server

    def wait(self, server: Server, *, timeout_s: float, health: str | None = None) -> None:
        """Returns when every process answers GET `health`; one that ends first is an error with the end of its log."""
        deadline = time.monotonic() + timeout_s
        for process in server.processes:
            while not process.answers(health or server.health):
                dead = next((item for item in server.processes if not item.alive), None)
                if dead is not None:
                    raise _died(server, dead)
                if time.monotonic() > deadline:
                    raise PrerequisiteError(
                        f"server {server.name} is not ready after {timeout_s:g} s",
                        f"see `rldbg serve logs {server.name}`; `rldbg serve down {server.name}` stops it",
                    )
                time.sleep(_POLL_S)

    def servers(self) -> list[Server]:
        """All servers, by name. Those that crashed stay until they are taken down; those of an earlier boot of the
        machine are stale and are removed."""
        booted = psutil.boot_time()
        found = []
        for file in sorted(self._folder.glob("*/server.json")):
            server = _read(file)
            if server is None:
                continue
            if server.started_at < booted and not any(process.alive for process in server.processes):
                shutil.rmtree(server.folder, ignore_errors=True)
                continue
            found.append(server)
        return found

    def probe(self, servers: Sequence[Server]) -> list[list[ReplicaState]]:
        """The state of every process of these servers, by a health check of each."""
        asked = [(server, process) for server in servers for process in server.processes]
        with ThreadPoolExecutor(max_workers=max(1, min(32, len(asked)))) as pool:
            states = iter(list(pool.map(lambda pair: pair[1].probed(pair[0].health, _PROBE_S), asked)))
        return [[next(states) for _ in server.processes] for server in servers]

    def find(self, name: str) -> Server:
        server = _read(self._folder / name / "server.json") if _NAME.fullmatch(name) else None
        if server is None:
            known = ", ".join(item.name for item in self.servers()) or "none"
            raise IncompleteDataError(f"no server named {name!r}; known names: {known}", "see `rldbg serve ls`")
        return server

    def stop(self, server: Server, *, grace_s: float = _GRACE_S, noticed_s: float = 0.0) -> list[dict[str, Any]]:
        """Ends every process of the server and their children, removes it, and returns their final reports."""
        end(server.processes, grace_s, noticed_s=noticed_s)
        reports = [_report(file) for file in sorted(Path(server.folder).glob("*.report.json"))]
        shutil.rmtree(server.folder, ignore_errors=True)
        return reports

    def claim(self, name: str) -> Path:
        """The folder of a new server; what a crashed one of that name left is removed."""
        if not _NAME.fullmatch(name):
            raise UsageError(f"{name!r} is not a valid name of a server", "use letters, digits, . _ - (64 at most)")
        folder = self._folder / name
        existing = _read(folder / "server.json")
        if existing is not None:
            if any(process.alive for process in existing.processes):
                raise UsageError(
                    f"a server named {name!r} is running", f"choose another --name, or `rldbg serve down {name}`"
                )
            end(existing.processes, _GRACE_S)
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(mode=0o700, parents=True)
        return folder

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Serialises two shells that ask for the same name at the same moment."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(self._folder / ".lock", "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def free_name(self, stem: str) -> str:
        """An unused name: the stem, or the stem with a number."""
        taken = {server.name for server in self.servers()}
        return next(name for n in range(len(taken) + 1) if (name := stem if n == 0 else f"{stem}-{n + 1}") not in taken)


def _write(server: Server) -> None:
    write_whole(Path(server.folder) / "server.json", json.dumps(asdict(server)))


def _read(file: Path) -> Server | None:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        processes = (ServerProcess(**{**item, "command": tuple(item.get("command", ()))}) for item in data["processes"])
        return Server(**{**data, "processes": tuple(processes)})
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise IncompleteDataError(f"{file} is damaged: {error}", f"remove {file.parent}") from error


def _report(file: Path) -> dict[str, Any]:
    try:
        report: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise IncompleteDataError(f"{file} is damaged: {error}", "start the server again") from error
    return report


def _at_port(command: Sequence[str], address: str | None) -> list[str]:
    """The command with the port it got, instead of the one it asked for or did not name."""
    if address is None:
        return list(command)
    port = address.rpartition(":")[2]
    if "--port" in command:
        place = command.index("--port") + 1
        return [*command[:place], port, *command[place + 1 :]]
    return [*(word for word in command if not word.startswith("--port=")), f"--port={port}"]


def _worst(states: Sequence[ReplicaState]) -> ReplicaState:
    return next((state for state in STATES if state in states), "running")


def _died(server: Server, process: ServerProcess) -> PrerequisiteError:
    words = "\n".join(process.last_lines(5)) or "no output"
    return PrerequisiteError(
        f"server {server.name} ended before it was ready: {words}", "fix that, then start it again"
    )
