"""Ports and networks that nobody else on this machine uses, whatever else runs on it."""

import fcntl
import socket
import subprocess
import tempfile
from pathlib import Path

_LOCKS = []
"""Kept open: whoever holds a network's lock may use it until this process ends."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def free_network() -> str:
    """The first three numbers of a /24 that no interface has and no other test has taken."""
    used = subprocess.run(["ip", "-4", "-o", "addr"], capture_output=True, text=True, check=True).stdout
    for number in range(250):
        lock = open(Path(tempfile.gettempdir()) / f"rldbg-network-{number}.lock", "w")  # noqa: SIM115 - it stays open
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            continue
        if f" 10.77.{number}." not in used:
            _LOCKS.append(lock)
            return f"10.77.{number}"
        lock.close()
    raise AssertionError("every network of 10.77.0.0/16 is in use")
