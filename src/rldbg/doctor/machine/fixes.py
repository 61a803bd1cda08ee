"""Automatic fixes: each first shows what it would do, and does only that.

Nothing is overwritten, and only processes of the same user are stopped. Variables and limits are not changed in the
shell (a child cannot); they are noted in `<RLDBG_HOME>/run_settings.json`, which `rldbg run` applies to its job.
"""

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from rldbg.core import Environment, PrerequisiteError
from rldbg.doctor.machine.probes import Machine, RaySession, running_sessions
from rldbg.doctor.machine.probes.gpus import VENDOR_FILES
from rldbg.doctor.machine.settings import FILE, RunSettings

EGL_VENDOR = """{
    "file_format_version" : "1.0.0",
    "ICD" : {
        "library_path" : "libEGL_nvidia.so.0"
    }
}
"""
_STOP_S = 8.0
_STOP_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Step:
    """One action of a fix: its description and its function."""

    text: str
    act: Callable[[], None]


def steps_of(remedy: str, *, machine: Machine, home: Path) -> list[Step]:
    """The actions of a fix on this machine; empty if there is nothing to do."""
    if remedy == "egl-vendor-file":
        return _egl(machine)
    if remedy == "stop-stale-ray":
        return [_stop(session) for session in running_sessions() if not session.in_use]
    settings = _settings(remedy, machine.variables)
    return [_note(settings, home)] if settings is not None else []


def home_folder() -> Path:
    return Path(Environment().text("RLDBG_HOME"))


def _egl(machine: Machine) -> list[Step]:
    if any(machine.path(file).exists() for file in VENDOR_FILES):
        return []
    folders = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")
    if not any(machine.path(f"{folder}/libEGL_nvidia.so.0").exists() for folder in folders):
        raise PrerequisiteError(
            "libEGL_nvidia.so.0 is not installed, so a vendor file would point to a missing library",
            "apt install libnvidia-gl-<driver-version> first",
        )
    file = machine.path(VENDOR_FILES[0])

    def write() -> None:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with open(file, "x", encoding="utf-8") as stream:
                stream.write(EGL_VENDOR)
        except PermissionError as error:
            raise PrerequisiteError(f"cannot write {file}: {error.strerror}", "run it as root (sudo)") from error

    return [Step(f"write {file}:\n{EGL_VENDOR}", write)]


def _stop(session: RaySession) -> Step:
    """Stops the daemons in Ray's own order, raylet before GCS: SIGTERM, then SIGKILL."""

    def stop() -> None:
        for asked in (signal.SIGTERM, signal.SIGKILL):
            for pid in session.pids:
                _end(pid, asked)
        alive = [pid for pid in session.pids if _is_alive(pid)]
        if alive:
            pids = " ".join(map(str, alive))
            raise PrerequisiteError(f"processes {pids} did not stop", f"inspect them: ps -fp {pids}")

    pids = " ".join(map(str, session.pids))
    return Step(f"stop the Ray session {session.folder} that is unused (SIGTERM, then SIGKILL, to {pids})", stop)


def _end(pid: int, asked: signal.Signals) -> None:
    """Sends a signal to one process and waits for its end for a while."""
    if not _is_alive(pid):
        return
    psutil.Process(pid).send_signal(asked)
    deadline = time.monotonic() + _STOP_S
    while _is_alive(pid) and time.monotonic() < deadline:
        time.sleep(_STOP_POLL_S)


def _is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not count."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _settings(remedy: str, variables: Any) -> RunSettings | None:
    """The settings that a fix saves for jobs, or None if the variables are right already."""
    if remedy == "raise-limits":
        return RunSettings(raise_limits=True)
    if remedy == "no-nvls":
        return RunSettings({"NCCL_NVLS_ENABLE": "0"})
    if remedy == "no-proxy":
        names = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
        return _unsetting(names, variables)
    if remedy == "no-rocr-mask":
        return _unsetting(("ROCR_VISIBLE_DEVICES",), variables)
    if remedy == "post-mortem-name":
        unset = _unsetting(("RAY_DEBUG_POSTMORTEM",), variables) or RunSettings()
        return RunSettings({"RAY_DEBUG_POST_MORTEM": "1"}, unset.unset)
    if remedy == "no-expandable-segments":
        return _without_expandable(variables)
    raise ValueError(f"unknown fix: {remedy}")


def _unsetting(names: Sequence[str], variables: Any) -> RunSettings | None:
    found = tuple(name for name in names if name in variables)
    return RunSettings(unset=found) if found else None


def _without_expandable(variables: Any) -> RunSettings:
    settings = {}
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        kept = [
            item for item in variables.get(name, "").split(",") if item and not item.startswith("expandable_segments")
        ]
        if name == "PYTORCH_CUDA_ALLOC_CONF" or name in variables:
            settings[name] = ",".join([*kept, "expandable_segments:False"])
    return RunSettings(settings)


def _note(settings: RunSettings, home: Path) -> Step:
    text = f"for jobs started by `rldbg run` ({home / FILE}): {'; '.join(settings.words())}"
    return Step(text, lambda: RunSettings.load(home).merged(settings).save(home))
