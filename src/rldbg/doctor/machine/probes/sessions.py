"""Ray sessions on this machine: the running one, and those that a crash or an earlier job left behind."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from rldbg.doctor.machine.probes.machine import Machine, ProbeOutcome, check

_DAEMONS = ("gcs_server", "raylet")
_DAEMON_SCRIPTS = ("/ray/dashboard/", "/ray/_private/", "/ray/autoscaler/", "ray.util.client.server", "ray::", "raylet")
_IDLE_TITLES = ("ray::IDLE", "ray::DashboardAgent", "ray::RuntimeEnvAgent")
_SESSION = re.compile(r"(/[^\s=,]*/session_20[\w-]+)")
_SOCKET_PATH = 107


@dataclass(frozen=True, slots=True)
class RaySession:
    """The daemons of one Ray session that run here under this user."""

    folder: str
    pids: tuple[int, ...]
    """In the order in which they are to be stopped."""
    in_use: bool
    """Whether a driver is connected to it, or a worker does something."""


def running_sessions() -> list[RaySession]:
    """Ray sessions of the same user, by the session folder their daemons were started with."""
    daemons: dict[str, list[psutil.Process]] = {}
    own = psutil.Process().uids().real
    for process in psutil.process_iter(("name", "cmdline", "uids")):
        info = process.info
        if info["uids"] is None or info["uids"].real != own:
            continue
        folder = _session_of(info["cmdline"] or [])
        if folder and any(name in (info["name"] or "") for name in _DAEMONS):
            daemons.setdefault(folder, []).append(process)
    return [
        RaySession(folder, tuple(process.pid for process in sorted(found, key=_stop_order)), _is_in_use(found))
        for folder, found in sorted(daemons.items())
    ]


def _stop_order(process: psutil.Process) -> tuple[bool, int]:
    """The raylets first: they unregister from the GCS when they end."""
    return "gcs_server" in (process.info["name"] or ""), process.pid


def _session_of(command: Sequence[str]) -> str | None:
    found = next((match for word in command if (match := _SESSION.search(word))), None)
    return found[1] if found else None


def _is_in_use(daemons: Sequence[psutil.Process]) -> bool:
    """Whether a worker is busy, or a process that is not a Ray daemon talks to one of the session's ports."""
    try:
        children = [child for daemon in daemons for child in daemon.children(recursive=True)]
        titles = [" ".join(child.cmdline()) for child in children]
        if any(title.startswith("ray::") and not title.startswith(_IDLE_TITLES) for title in titles):
            return True
        family = {process.pid for process in (*daemons, *children)}
        ports = {c.laddr.port for daemon in daemons for c in daemon.net_connections("tcp") if c.status == "LISTEN"}
        talking = {c.pid for c in psutil.net_connections("tcp") if c.raddr and c.raddr.port in ports and c.pid}
        return any(not _is_daemon(pid) for pid in talking - family)
    except psutil.Error:
        return True


def _is_daemon(pid: int) -> bool:
    line = " ".join(psutil.Process(pid).cmdline())
    return any(word in line for word in _DAEMON_SCRIPTS)


@check("Ray sessions")
def ray_stale_session(machine: Machine) -> ProbeOutcome:
    if not machine.commands:
        return "skip", "not checked"
    idle = [session for session in running_sessions() if not session.in_use]
    if not idle:
        return "pass", "none left over"
    fix = "if it is left over: ray stop (rldbg doctor --fix nccl-invalid-arg-stale-ray stops it after asking)"
    return "warn", f"{idle[0].folder} runs and is unused (pids {', '.join(map(str, idle[0].pids))})", fix


@check("Ray's temporary folder")
def ray_tmpdir(machine: Machine) -> ProbeOutcome:
    folder = machine.variables.get("RAY_TMPDIR") or "/tmp/ray"
    needed = len(f"{folder}/session_2026-11-15_00-00-00_000000_0000000/sockets/plasma_store")
    if needed > _SOCKET_PATH:
        fix = "export RAY_TMPDIR=/tmp, or a short link to the scratch folder"
        return "fail", f"{folder} is too deep for a socket", fix
    return "pass", folder
