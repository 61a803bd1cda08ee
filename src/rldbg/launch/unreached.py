"""Python processes of a run without an agent, with the reason."""

import contextlib
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from rldbg.agent import NOT_THE_USERS, STARTUP, program_of
from rldbg.core import Finding
from rldbg.launch.command_line import is_interpreter
from rldbg.launch.findings import finding

_YOUNG_S = 5.0
"""A process may still be starting its agent for this long."""
_HELPERS = (*NOT_THE_USERS, "rldbg.live.service", "rldbg_agent.profiling.nsys_supervisor")
_RAY_DAEMON = re.compile(r"ray::(?:DashboardAgent|RuntimeEnvAgent|LogMonitor)$|ray-dashboard")
_TOOLS = frozenset(
    {"ray", "rldbg", "pip", "pip3", "uv", "py-spy", "torchrun", "deepspeed", "accelerate", "tensorboard", "wandb"}
)


@dataclass(frozen=True, slots=True)
class UnreachedProcess:
    pid: int
    name: str
    reason: str

    def to_finding(self) -> Finding:
        return finding("launch.unreached", f"{self.name} (process {self.pid})", self.reason)


def unreached_processes(child_pid: int, known: set[int], run: Path) -> Iterator[UnreachedProcess]:
    """The child's Python processes, and Ray workers of this user, that have not reported in."""
    for process in _candidates(child_pid, run):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            is_young = process.create_time() > time.time() - _YOUNG_S
            # Read once: a process that ends meanwhile has no words left.
            words = process.cmdline()
            if words and process.pid not in known and not is_young and not _is_helper(process, words):
                yield UnreachedProcess(process.pid, _name(words), _reason(process, words))


def _candidates(child_pid: int, run: Path) -> Iterator[psutil.Process]:
    """All below the child; and those that left it (Ray's daemons) but carry the run in their environment."""
    try:
        family = {process.pid for process in psutil.Process(child_pid).children(recursive=True)} | {child_pid}
    except psutil.NoSuchProcess:
        family = set()
    mine = os.getuid()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied, OSError):
            if process.uids().real != mine or not _is_python(process):
                continue
            if process.pid in family or process.environ().get("RLDBG_RUN") == str(run):
                yield process


def _is_python(process: psutil.Process) -> bool:
    words = process.cmdline()
    return bool(words) and (is_interpreter(words[0]) or words[0].startswith("ray::") or is_interpreter(process.exe()))


def _is_helper(process: psutil.Process, words: Sequence[str]) -> bool:
    _, name, _ = program_of(words)
    is_tool = any(part in word for word in words[:5] for part in _HELPERS) or Path(name).name in _TOOLS
    # What a daemon of Ray starts (the fork server of its dashboard) does not look like it.
    return is_tool or _is_ray_daemon(words) or any(_is_ray_daemon(each.cmdline()) for each in process.parents())


def _is_ray_daemon(words: Sequence[str]) -> bool:
    return bool(words) and (bool(_RAY_DAEMON.match(words[0])) or any("/ray/dashboard/" in word for word in words[:5]))


def _name(words: Sequence[str]) -> str:
    if words[0].startswith("ray::"):
        return words[0]
    kind, name, _ = program_of(words)
    return name if kind in ("module", "script") else " ".join(words[:3])[:80]


def _reason(process: psutil.Process, words: Sequence[str]) -> str:
    environment = process.environ()
    flags = [word for word in words[1:4] if word.startswith("-") and not word.startswith("--")]
    closed = next((flag for flag in flags if set(flag[1:]) & set("IES") and flag[1] not in "mcXW"), "")
    if closed:
        return f"its interpreter was started with {closed}, which disables the start-up hook"
    if STARTUP not in environment.get("PYTHONPATH", "").split(os.pathsep):
        return "its PYTHONPATH lacks the start-up folder: something replaced it"
    if not environment.get("RLDBG_RUN"):
        return "its environment lacks RLDBG_RUN: something cleared it"
    return "it has the start-up folder, but no agent has connected yet: it is still starting, or it hangs"
