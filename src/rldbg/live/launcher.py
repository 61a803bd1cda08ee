"""Starting and stopping the broker process of a run, and arming an environment for it."""

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import rldbg.agent
from rldbg.agent import PATIENCE_S, BrokerAddress
from rldbg.core import Environment, PrerequisiteError, Run
from rldbg.live.client import BrokerClient
from rldbg.live.target import is_alive

_START_S = 20.0


@dataclass(frozen=True, slots=True)
class Arming:
    """What the processes of an armed run shall do beyond being reachable."""

    post_mortem_wait_s: float = 0.0
    ray_breakpoints: bool = False
    redact: bool = True
    collective_timeout_s: float = PATIENCE_S


def start_broker(
    run: Run, *, host: str = "127.0.0.1", port: int = 0, owner_pid: int = 0, ray_url: str = ""
) -> BrokerAddress:
    """Starts the run's broker as a process of its own, unless it has one that answers."""
    folder = run.path.resolve()
    if is_alive(folder):
        address = BrokerAddress.read(folder)
        assert address is not None
        return address
    (folder / "logs").mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    with contextlib.suppress(FileNotFoundError):
        (folder / "broker.json").unlink()
    options = {"run": str(folder), "host": host, "port": port, "owner_pid": owner_pid, "ray_url": ray_url}
    private = os.open(folder / "logs" / "broker.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with open(private, "a", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "rldbg.live.broker.service", json.dumps(options)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=_disarmed(Environment().everything()),
            start_new_session=True,
        )
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if (address := BrokerAddress.read(folder)) is not None:
            return address
        if process.poll() is not None:
            break
        time.sleep(0.02)
    raise PrerequisiteError(f"the broker of {folder} did not start", f"its last words are in {folder}/logs/broker.log")


def stop_broker(folder: Path) -> None:
    """Asks the broker to end; whatever it held runs on."""
    with BrokerClient(folder) as client:
        client.request("shutdown", timeout_s=10.0)
    deadline = time.monotonic() + 10.0
    while (folder / "broker.json").exists() and time.monotonic() < deadline:
        time.sleep(0.02)


def armed_environment(
    run: Run | Path, arming: Arming | None = None, *, base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The variables that make every Python process below it load the agent of this run; merge them over `base`.

    PYTHONPATH gets one entry in front (a folder that holds only the start-up hook), Ray's runtime-env hook carries the
    same into workers of a cluster that runs already; a hook of the user's is called first.
    """
    base = Environment().everything() if base is None else base
    arming = arming or Arming()
    folder = (run.path if isinstance(run, Run) else run).resolve()
    startup = str(Path(rldbg.agent.__file__).parent / "startup")
    others = [entry for entry in base.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != startup]
    armed = {
        "PYTHONPATH": os.pathsep.join([startup, *others]),
        "RLDBG_RUN": str(folder),
        "RLDBG_REDACT": "1" if arming.redact else "0",
        "RLDBG_DEBUGPY": _own_debugpy(),
        "RAY_RUNTIME_ENV_HOOK": "rldbg_startup.runtime_env_hook",
    }
    previous = base.get("RAY_RUNTIME_ENV_HOOK", "")
    if previous and previous != armed["RAY_RUNTIME_ENV_HOOK"]:
        armed["RLDBG_NEXT_RAY_HOOK"] = previous
    if arming.post_mortem_wait_s:
        armed["RLDBG_POST_MORTEM"] = f"{arming.post_mortem_wait_s:g}"
    if arming.ray_breakpoints:
        armed["RLDBG_RAY_BREAKPOINTS"] = "1"
    if arming.collective_timeout_s:
        armed["RLDBG_COLLECTIVE_TIMEOUT_S"] = f"{arming.collective_timeout_s:g}"
        armed["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"] = f"{arming.collective_timeout_s:.0f}"
    return armed


def _own_debugpy() -> str:
    spec = importlib.util.find_spec("debugpy")
    return str(Path(spec.origin).parent) if spec is not None and spec.origin else ""


def _disarmed(environment: Mapping[str, str]) -> dict[str, str]:
    """The broker itself is nobody's debuggee, even when it is started from inside an armed run."""
    startup = str(Path(rldbg.agent.__file__).parent / "startup")
    clean = {name: value for name, value in environment.items() if not name.startswith("RLDBG_AGENT")}
    clean.pop("RLDBG_RUN", None)
    entries = [entry for entry in clean.pop("PYTHONPATH", "").split(os.pathsep) if entry and entry != startup]
    return clean | ({"PYTHONPATH": os.pathsep.join(entries)} if entries else {})
