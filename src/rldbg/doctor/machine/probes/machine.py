"""A machine as the checks see it: files under a root, variables, limits, and short read-only commands."""

import os
import resource
import shutil
import socket
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rldbg.core import Environment
from rldbg.doctor.answer.diagnosis import ProbeResult

GIB = 1 << 30
Status = Literal["pass", "warn", "fail", "skip"]
ProbeOutcome = tuple[Status, str, *tuple[str, ...]]
"""Status, reason, and what to do about it."""
_COMMAND_S = 10.0


@dataclass(frozen=True)
class Machine:
    """This machine, or for tests a folder that looks like one."""

    root: Path = Path("/")
    variables: Mapping[str, str] = field(default_factory=lambda: Environment().everything())
    commands: bool = True
    """Whether programs such as nvidia-smi may be run."""

    def path(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def text(self, path: str) -> str | None:
        """The content of a small file, or None when it cannot be read."""
        try:
            return self.path(path).read_text(errors="replace").strip()
        except OSError:
            return None

    def number(self, path: str) -> int | None:
        """The number in a file; None for `max`, a missing file or anything else."""
        text = self.text(path)
        return int(text) if text and text.lstrip("-").isdigit() else None

    def space(self, path: str) -> tuple[int, int] | None:
        """(total, free) bytes of the file system at the nearest existing folder."""
        place = self.path(path)
        while not place.exists() and place != place.parent:
            place = place.parent
        try:
            usage = shutil.disk_usage(place)
        except OSError:
            return None
        return usage.total, usage.free

    def limit(self, which: int) -> int | None:
        """The soft limit; None when there is none."""
        soft, _hard = resource.getrlimit(which)
        return None if soft == resource.RLIM_INFINITY else soft

    def run(self, *command: str) -> str | None:
        """The output of a read-only command, or None when it is missing or fails."""
        if not self.commands or shutil.which(command[0]) is None:
            return None
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_S, check=True)
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    def addresses_of_own_name(self) -> list[str]:
        try:
            found = socket.getaddrinfo(socket.gethostname(), None, family=socket.AF_INET, type=socket.SOCK_STREAM)
        except OSError:
            return []
        return sorted({str(item[4][0]) for item in found})

    def cpus_allowed(self) -> tuple[int, int]:
        """(cores this process may use, cores of the machine)."""
        return len(os.sched_getaffinity(0)), os.cpu_count() or 1


def result(id: str, title: str, status: Status, reason: str, *fix: str) -> ProbeResult:
    """A result; the fix is dropped when nothing is wrong."""
    return ProbeResult(id, title, status, reason, fix if status in ("warn", "fail") else ())


@dataclass(frozen=True, slots=True)
class MachineCheck:
    """One look at a machine: its id is the function's name, and the function gives status, reason and fixes."""

    title: str
    look: Callable[[Machine], ProbeOutcome]
    is_pointless: Callable[[Machine], str]

    @property
    def id(self) -> str:
        return self.look.__name__.replace("_", "-")

    def __call__(self, machine: Machine) -> ProbeResult:
        pointless = self.is_pointless(machine)
        return result(self.id, self.title, *(("skip", pointless) if pointless else self.look(machine)))


def check(
    title: str, *, is_pointless: Callable[[Machine], str] = lambda _machine: ""
) -> Callable[[Callable[[Machine], ProbeOutcome]], MachineCheck]:
    """Make a function a check; `is_pointless` gives the reason to skip it on a machine, or nothing."""
    return lambda look: MachineCheck(title, look, is_pointless)


def gib(count: int) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / (1 << 20):.0f} MiB"
