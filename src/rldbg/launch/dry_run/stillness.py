"""Decides when a script that sleeps forever will start nothing more, and when a script has run long enough. Judged by
the state of its processes, not by elapsed time: on a busy machine a process may wait for a CPU longer than any fixed
limit.
"""

import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

_IDLE_TURNS = 5
"""A loop that slept this often after the last call starts nothing more."""
_ASLEEP = "SIZ"
"""Not those that run, wait for a processor, or wait for a disk."""
_STAT = re.compile(r"\d+ \(.*\) (\S) (\d+) (?:\S+ ){9}(\d+) (\d+) (\d+) (\d+)", re.DOTALL)
"""State, parent, and the processor time of a process and of its children that have ended, in and outside the kernel."""
_LOOK_EVERY_S = 0.25
_LONGEST_WAITS = 10
"""Times the limit: the longest that a script may take on a machine that gives it hardly any processor time."""
_SWITCHES = re.compile(r"ctxt_switches:\s*(\d+)")
_OWN_PID = re.compile(r"^NSpid:.*?(\d+)$", re.MULTILINE)


class _Process(NamedTuple):
    state: str
    parent: int
    own_pid: str
    """Its number inside the sandbox."""
    words: list[str]
    switches: list[str]
    """How often it got and left a processor: unchanged when it did not run meanwhile."""
    processor_s: float
    """Processor time, with that of its children that have ended."""


class Stillness:
    """Looks at the processes below `pid` again and again; the stub of `sleep` writes down who slept, in `results`."""

    def __init__(self, pid: int, results: Path) -> None:
        self._pid = pid
        self._results = results
        self._newest: tuple[int, int] | None = None
        self._turns: Mapping[str, int] = {}

    def is_reached(self) -> bool:
        """Whether one process sleeps forever, all others sleep too, and polling loops have repeated without starting
        anything."""
        marker = self._results / "waiting"
        if not marker.exists():
            return False
        turns = {file.name: file.stat().st_size for file in self._results.glob("sleeps.*")}
        newest = (self._results / "calls").stat().st_mtime_ns, marker.stat().st_mtime_ns
        if newest != self._newest:
            self._newest, self._turns = newest, turns
        below = _below(self._pid)
        if not below or any(process.state not in _ASLEEP for process in below.values()):
            return False
        if below != _below(self._pid):  # they are read one by one: equal twice, all were asleep at the same moment
            return False
        return all(turns.get(loop, 0) >= self._turns.get(loop, 0) + _IDLE_TURNS for loop in _loops(below))


class Effort:
    """How much the processes below `pid` have worked: the limit is processor time. Those that do not ask for any, and
    have not for as long, wait for something that does not come."""

    def __init__(self, pid: int, limit_s: float) -> None:
        self._pid = pid
        self._limit_s = limit_s
        self._began = self._looked = self._worked = time.monotonic()
        self._before: Mapping[int, _Process] = {}

    def is_spent(self) -> bool:
        now = time.monotonic()
        if now < self._looked + _LOOK_EVERY_S:
            return False
        self._looked = now
        below = _below(self._pid)
        if below != self._before or any(process.state not in _ASLEEP for process in below.values()):
            self._before, self._worked = below, now
        spent = sum(process.processor_s for process in below.values())
        idle, lasted = now - self._worked, now - self._began
        return spent > self._limit_s or idle > self._limit_s or lasted > _LONGEST_WAITS * self._limit_s


def _below(pid: int) -> dict[int, _Process]:
    """The processes that a process started, and those that they did."""
    stats = {int(folder.name): _STAT.match(_text(folder / "stat")) for folder in Path("/proc").glob("[0-9]*")}
    children: dict[int, list[int]] = {}
    for each, stat in stats.items():
        if stat is not None:
            children.setdefault(int(stat[2]), []).append(each)
    below = list(children.get(pid, ()))
    for each in below:
        below += children.get(each, ())
    return {each: _process(each, stat) for each in below if (stat := stats[each]) is not None}


def _process(pid: int, stat: re.Match[str]) -> _Process:
    folder = Path(f"/proc/{pid}")
    status = _text(folder / "status")
    own_pid = _OWN_PID.search(status)
    words = _text(folder / "cmdline").split("\0")
    processor_s = sum(int(ticks) for ticks in stat.groups()[2:]) / os.sysconf("SC_CLK_TCK")
    return _Process(stat[1], int(stat[2]), own_pid[1] if own_pid else "", words, _SWITCHES.findall(status), processor_s)


def _loops(processes: Mapping[int, _Process]) -> Iterator[str]:
    """The notes of the shells that are in a short sleep now: shell, stub of `sleep`, the real one."""
    for process in processes.values():
        if process.words[0] == "sleep" and process.words[1].startswith("0."):
            stub = processes.get(process.parent)
            shell = processes.get(stub.parent) if stub else None
            yield f"sleeps.{shell.own_pid if shell else ''}"


def _text(file: Path) -> str:
    """A file of the kernel; empty when its process has ended meanwhile."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
