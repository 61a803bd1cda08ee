"""What NCCL and torch's flight recorder say by themselves about ranks of this host, where they are switched on."""

import re
import socket
from collections.abc import Iterable
from pathlib import Path

from .kernel import environment_of

_RAS = "localhost:28028"
_CONNECT_S = 0.5
_ANSWER_S = 5.0
_MOST_BYTES = 1 << 20
_TELLING = re.compile(
    r"error|warning|mismatch|incomplete|missing|unresponsive|dead|timed? ?out|launched", re.IGNORECASE
)
_DUMPS = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")


def nccl_notes(pids: Iterable[int]) -> list[str]:
    """Lines of NCCL's RAS service that tell of trouble, and the command that reads flight recorder dumps."""
    found: list[str] = []
    asked: set[str] = set()
    for pid in pids:
        if not _uses_nccl(pid):
            continue
        environment = environment_of(pid)
        address = environment.get("NCCL_RAS_ADDR") or _RAS
        if environment.get("NCCL_RAS_ENABLE", "1") != "0" and address not in asked:
            asked.add(address)
            found += [f"NCCL RAS ({address}): {line}" for line in ras_lines(address)]
        found += _dumps(pid, environment)
    return list(dict.fromkeys(found))


def ras_lines(address: str) -> list[str]:
    """What the service at HOST:PORT says of trouble; empty when nobody listens there."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=_CONNECT_S) as connection:
            connection.settimeout(_ANSWER_S)
            connection.sendall(b"verbose status\n")
            data = b""
            while len(data) < _MOST_BYTES and (part := connection.recv(1 << 16)):
                data += part
    except (OSError, ValueError):
        return []
    lines = (line.strip() for line in data.decode("utf-8", "replace").splitlines())
    return [line for line in lines if _TELLING.search(line)][:10]


def _uses_nccl(pid: int) -> bool:
    try:
        return "libnccl" in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def _dumps(pid: int, environment: dict[str, str]) -> list[str]:
    """Dumps that were written since the process started."""
    prefix = next((environment[name] for name in _DUMPS if environment.get(name)), "/tmp/nccl_trace_rank_")
    file = Path(f"{prefix}{environment.get('RANK', '0')}")
    try:
        fresh = file.stat().st_mtime > Path(f"/proc/{pid}").stat().st_mtime
    except OSError:
        return []
    return [f"flight recorder dumps: rldbg stacks --diagnose --dumps {file.parent}"] if fresh else []
