"""While the training runs: reports stopped processes and processes without an agent, and keeps the broker running.
Facts that are lost when the run ends, such as Ray's log folders, are noted.
"""

import contextlib
import re
import shlex
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from rldbg.agent import BrokerAddress
from rldbg.core import Finding, PrerequisiteError, Run, Severity, UnreachableError
from rldbg.launch.unreached import UnreachedProcess, unreached_processes
from rldbg.live import BrokerClient, breakpoint_warning, is_alive, start_broker

_LOOK_FOR_UNREACHED_EVERY_S = 2.0
# Signals wait for us meanwhile.
_ANSWER_S = 2.0
_SESSION_FOLDER = re.compile(r"--session[_-]dir[=\0](?P<folder>[^\0]+)")


@dataclass
class RunMonitor:
    """Polled regularly; reports each event once."""

    run: Run
    say: Callable[[str], None]
    owner_pid: int
    host: str = "127.0.0.1"
    breakpoints: Sequence[tuple[str, int]] = ()
    child_pid: int = 0
    unreached: dict[int, UnreachedProcess] = field(default_factory=dict)
    reported: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    ray_logs: dict[Path, None] = field(default_factory=dict)
    """Session folders and logs of Ray that belong to this run, in the order in which they were met."""
    _client: BrokerClient | None = None
    _said: set[tuple[Any, ...]] = field(default_factory=set)
    _breaks: list[dict[str, Any]] = field(default_factory=list)
    _numbers: dict[tuple[str, int], int] = field(default_factory=dict)
    _next_look: float = 0.0

    def begin(self) -> None:
        """Before the child starts, so that breakpoints are there when its processes are."""
        self.start_broker()
        self._connect()
        self._announce_address()

    def start_broker(self) -> None:
        start_broker(self.run, host=self.host, owner_pid=self.owner_pid)

    def follow(self, child_pid: int) -> None:
        self.child_pid = child_pid
        self._next_look = time.monotonic() + _LOOK_FOR_UNREACHED_EVERY_S

    def tick(self) -> None:
        try:
            self._look()
        except UnreachableError:
            if is_alive(self.run.path):
                # Suspended or busy: a new broker would not know the stopped processes.
                self._once(("silent",), "the broker is running but does not answer; waiting for it")
            else:
                # `pkill python` in a script takes the broker with it; the agents find the next one by themselves.
                self._restart()

    def asked_to_end(self, signal: str) -> None:
        """Exceptions from now on, also on other hosts, are not held."""
        if self._client is not None:
            with contextlib.suppress(UnreachableError):
                self._client.request("ending", signal=signal, timeout_s=_ANSWER_S)

    def left_over(self) -> list[int]:
        """Processes of this host that are still connected to the broker, and so keep it alive."""
        if self._client is None:
            return []
        try:
            processes = self._client.request("ps", timeout_s=_ANSWER_S)["processes"]
        except UnreachableError:
            return []
        here = socket.gethostname()
        return [int(each["pid"]) for each in processes if each["state"] != "exited" and each["host"] == here]

    def finish(self) -> list[Finding]:
        """The last look, and what it says about breakpoints that were never reached."""
        try:
            self._look()
            if self._client is not None and self._breaks:
                self._breaks = self._client.request("break_list", timeout_s=5.0)["breaks"]
        except UnreachableError:
            self.say("the broker has ended; the last known state is shown")
        return [*self._never_hit(), *(process.to_finding() for process in self.unreached.values())]

    def close(self) -> None:
        if self._client is not None:
            self._client.__exit__()
            self._client = None

    def _connect(self) -> None:
        self._client = BrokerClient(self.run.path.resolve())
        # A broker that took the place of another has kept them, without those that were cleared since.
        answer = self._client.request("break_list", timeout_s=10.0)
        self._breaks = answer["breaks"]
        self._numbers |= {(each["file"], each["line"]): each["id"] for each in self._breaks}
        for file, line in dict.fromkeys(self.breakpoints):
            if (file, line) in self._numbers and self._numbers[file, line] <= answer["last_id"]:
                continue
            made = self._client.request("break_set", file=file, line=line, timeout_s=10.0)
            if doubt := breakpoint_warning(made):
                self._once(("break", file, line), f"--break {file}:{line}: {doubt}")
            self._numbers[file, line] = made["id"]
            self._breaks.append(made)

    def _restart(self) -> None:
        self.close()
        try:
            self.begin()
        except (UnreachableError, PrerequisiteError, OSError) as error:
            self._once(("broker",), f"the broker is unreachable: {error}")
            return
        self._once(("restarted", time.monotonic()), "the broker was killed and was restarted")

    def _look(self) -> None:
        assert self._client is not None
        self._announce_address()
        answer = self._client.request("ps", all=True, timeout_s=_ANSWER_S)
        for problem in answer["advice"]:
            self._once(("problem", problem), problem)
        for process in answer["processes"]:
            self.reported[(str(process["host"]), int(process["pid"] or 0))] = process
            self._announce(process)
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + _LOOK_FOR_UNREACHED_EVERY_S
            self._look_for_unreached()
            self._note_ray_logs()

    def _announce_address(self) -> None:
        """Prints the broker's addresses, also when they change."""
        address = BrokerAddress.read(self.run.path)
        if address is not None:
            everywhere = {"0.0.0.0": " (all interfaces)", "::": " (all interfaces, IPv6)"}.get(self.host, "")
            place = f"{address.place}{everywhere}"
            self._once(("address", place), f"the broker listens at {place}; only this run's token opens it")

    def _announce(self, process: dict[str, Any]) -> None:
        dashboard = process["ray"].get("dashboard")
        if dashboard:
            self._once(("dashboard", dashboard), f"Ray cluster started at: {dashboard}")
            paste = f"cluster {dashboard.removeprefix('http://')}, local folder {Path.cwd()}"
            self._once(("extension", dashboard), f"for VS Code's Ray extension (with --ray-breakpoints): {paste}")
        if process["state"] == "stopped" and process["reason"] != "step":
            place = f"{process['file']}:{process['line']}"
            command = f"rldbg attach {shlex.quote(process['who'])} --run {shlex.quote(str(self.run.path))}"
            text = f"{process['who']} stopped at {place}: {command}"
            self._once(("stopped", process["pid"], process["stop_number"]), text)
        if process["message"]:
            crash = (process["pid"], process["crash_file"] or process["message"])
            message = process["message"].partition("\n")[0][:200]
            # Without a file where the disk is full.
            command = f": rldbg attach {shlex.quote(process['crash_file'])}" if process["crash_file"] else ""
            self._once(("crash", *crash), f"{process['crashed_as']} crashed: {message}{command}")
            if process["hold"]:
                self._once(("hold", *crash), f"{process['crashed_as']} is {process['hold']}")

    def _note_ray_logs(self) -> None:
        mine = self.run.path.resolve()
        own = list(session_folders(mine))
        pids = [] if own else [pid for _, pid in self.reported if pid]
        self.ray_logs |= dict.fromkeys([*own, *worker_logs(pids)])

    def _look_for_unreached(self) -> None:
        known = {pid for _, pid in self.reported}
        for process in unreached_processes(self.child_pid, known, self.run.path.resolve()):
            if process.pid not in self.unreached:
                self.unreached[process.pid] = process
                self.say(f"not reached: {process.name} (process {process.pid}): {process.reason}")
        for pid in known.intersection(self.unreached):
            del self.unreached[pid]

    def _never_hit(self) -> list[Finding]:
        found = []
        for made in self._breaks:
            if not any(made["hits"].values()):
                places = sorted(who for who, is_set in made["set_in"].items() if is_set)
                found.append(
                    Finding(
                        "launch.breakpoint-never-reached",
                        Severity.WARNING,
                        f"{made['file']}:{made['line']}",
                        (f"set in {', '.join(places)}" if places else "set in no process: no process has this file",),
                        "no process stopped at this line",
                        ("check that this file is executed, not a copy of it",),
                    )
                )
        return found

    def _once(self, key: tuple[Any, ...], text: str) -> None:
        if key not in self._said:
            self._said.add(key)
            self.say(text)


def session_folders(run: Path) -> Iterator[Path]:
    """Sessions that the run itself has started: everything in them belongs to it."""
    for process in psutil.process_iter(["name"]):
        if process.info["name"] == "raylet":
            try:
                if process.environ().get("RLDBG_RUN") == str(run):
                    yield from _session_of(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
                continue


def worker_logs(pids: Iterable[int]) -> Iterator[Path]:
    """The logs of these workers where they run in a session that was there before the run."""
    for pid in pids:
        try:
            parent = psutil.Process(pid).parent()
            sessions = list(_session_of(parent)) if parent is not None and parent.name() == "raylet" else []
        except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
            continue
        for session in sessions:
            yield from session.glob(f"logs/*worker-*-{pid}.*")


def _session_of(raylet: psutil.Process) -> Iterator[Path]:
    if found := _SESSION_FOLDER.search("\0".join(raylet.cmdline())):
        yield Path(found["folder"])
