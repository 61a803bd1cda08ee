"""The broker process of a run: check, start and stop it."""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from rldbg.agent import BrokerAddress, Silent, WireError, dial, disarmed
from rldbg.core import Environment, PrerequisiteError, Run, UnreachableError
from rldbg.live.broker_lock import TakenError, broker_lock, is_held
from rldbg.live.client.broker_client import BrokerClient

_START_S = 20.0
_DYING_S = 2.0
# Its address and its token, in one block of any file system.
_NEEDED_BYTES = 4096


def is_alive(folder: Path) -> bool:
    """Whether the run has a broker process, even if it does not answer."""
    return is_held(folder) and BrokerAddress.read(folder) is not None


def broker_token(folder: Path) -> str:
    """The token of the run's broker, which its owner alone can read; UnreachableError where there is no broker."""
    address = BrokerAddress.read(folder)
    if address is None:
        raise UnreachableError(f"the run {folder} has no broker", "start a job in it: rldbg run --run DIR -- COMMAND")
    return address.token


def start_broker(
    run: Run, *, host: str = "127.0.0.1", port: int = 0, owner_pid: int = 0, ray_url: str = ""
) -> BrokerAddress:
    """Starts the run's broker as a process of its own, unless there is one already."""
    folder = run.path.resolve()
    deadline = time.monotonic() + _DYING_S
    while is_held(folder) and (there := BrokerAddress.read(folder)) is not None:
        # A broker on another host may be unreachable from here, but it exists.
        if there.is_out_of_reach(os.uname().nodename) or _is_there(there) or time.monotonic() > deadline:
            return there
        time.sleep(0.02)
    (folder / "logs").mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    replaces = False
    while True:
        try:
            with broker_lock(folder), contextlib.suppress(FileNotFoundError):
                # The file of a dead broker; only the holder of the lock may remove it.
                (folder / "broker.json").unlink()
                replaces = True
            break
        except TakenError:
            if (there := _address(folder, None)) is not None:
                return there
    options = {"run": str(folder), "host": host, "port": port, "owner_pid": owner_pid, "ray_url": ray_url}
    options |= {"replaces": replaces}
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
    if (made := _address(folder, process)) is None:
        raise _failure(folder, host)
    return made


def _failure(folder: Path, host: str) -> PrerequisiteError:
    disk = os.statvfs(folder)
    if disk.f_bavail * disk.f_frsize < _NEEDED_BYTES:
        # Its log, too, is empty then.
        words = f"the broker did not start: no space is left on the disk of {folder}"
        return PrerequisiteError(words, "free space there, or choose another place with --run DIR")
    log = folder / "logs" / "broker.log"
    hint = "" if host.startswith("127.") else f"{host} must be an address of this host, as `ip addr` lists them; "
    return PrerequisiteError(f"the broker did not start{_last_line(log)}", f"{hint}see its log: {log}")


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f": {last}" if last else ""


def _is_there(address: BrokerAddress) -> bool:
    """False for a broker that was just killed and still holds its lock; True for one that does not answer."""
    try:
        dial(address, kind="client", token=address.token, about={}, timeout_s=1.0).close()
    except (Silent, TimeoutError):
        return True
    except (OSError, WireError):
        return False
    return True


def _address(folder: Path, process: "subprocess.Popen[bytes] | None") -> BrokerAddress | None:
    """The address, once a broker runs: the one started as `process`, or another that was faster; None if it has
    ended."""
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if (address := BrokerAddress.read(folder)) is not None:
            return address
        if (process is None or process.poll() is not None) and not is_held(folder):
            break
        time.sleep(0.02)
    return None


def stop_broker(folder: Path) -> None:
    """Asks the broker to end; the processes it held resume."""
    with BrokerClient(folder) as client:
        client.request("shutdown", timeout_s=10.0)
    deadline = time.monotonic() + 10.0
    while (folder / "broker.json").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
