"""The broker process of a run: is it there, start it, stop it."""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from rldbg.agent import BrokerAddress, disarmed
from rldbg.core import Environment, PrerequisiteError, Run, UnreachableError
from rldbg.live.client.broker_client import BrokerClient

_START_S = 20.0


def is_alive(folder: Path) -> bool:
    """Whether the run has a broker that answers."""
    try:
        with BrokerClient(folder):
            return True
    except (UnreachableError, PrerequisiteError):
        return False


def start_broker(
    run: Run, *, host: str = "127.0.0.1", port: int = 0, owner_pid: int = 0, ray_url: str = ""
) -> BrokerAddress:
    """Starts the run's broker as a process of its own, unless one answers already."""
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
            [sys.executable, "-m", "rldbg.live.service", json.dumps(options)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=disarmed(Environment().everything()),
            start_new_session=True,
        )
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if (address := BrokerAddress.read(folder)) is not None:
            return address
        if process.poll() is not None:
            break
        time.sleep(0.02)
    raise PrerequisiteError(f"the broker of {folder} did not start", f"see its log: {folder}/logs/broker.log")


def stop_broker(folder: Path) -> None:
    """Asks the broker to end; the processes it held resume."""
    with BrokerClient(folder) as client:
        client.request("shutdown", timeout_s=10.0)
    deadline = time.monotonic() + 10.0
    while (folder / "broker.json").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
