"""What NCCL and torch's flight recorder say by themselves about ranks of this host, where they are switched on."""

import re
import socket
import time
from collections.abc import Iterable
from pathlib import Path

from .kernel import environment_of

_RAS = "localhost:28028"
_CONNECT_S = 0.5
# The service waits 5 s for ranks that do not answer, once or twice: its answer is needed in just that case.
_ANSWER_S = 20.0
_MOST_BYTES = 1 << 20
_TROUBLE = re.compile(r"^(Errors|Warnings)\n=+\n", re.MULTILINE)
# `DEAD`, `TIMEOUT`, `#0-0 (5f4c1b) MISMATCH`; what is known about it follows, indented.
_HEAD = re.compile(r"(?:#(?P<communicator>\S+) \(\w+\) )?(?P<what>[A-Z]+)$")
_MOST = 10
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
    """What the service at HOST:PORT says of trouble, a line per kind and communicator; empty when nothing listens."""
    host, _, port = address.rpartition(":")
    data, deadline = b"", time.monotonic() + _ANSWER_S
    try:
        with socket.create_connection((host, int(port)), timeout=_CONNECT_S) as connection:
            connection.sendall(b"verbose status\n")
            while len(data) < _MOST_BYTES:
                connection.settimeout(max(deadline - time.monotonic(), 0.01))
                if not (part := connection.recv(1 << 16)):
                    break
                data += part
    except TimeoutError:
        return [*_troubles(data), f"no complete answer within {_ANSWER_S:g} s"]
    except (OSError, ValueError):
        return _troubles(data)
    return _troubles(data)


def _troubles(data: bytes) -> list[str]:
    """The entries of the sections that tell of trouble; a healthy job has these sections too, empty."""
    text = data.decode("utf-8", "replace").replace("\r\n", "\n").replace("\0", "")
    first = _TROUBLE.search(text)
    entries: list[list[str]] = []
    for line in text[first.start() :].splitlines() if first is not None else ():
        head = _HEAD.match(line)
        if head is not None:
            of = f" of communicator #{head['communicator']}" if head["communicator"] else ""
            entries.append([f"{head['what']}{of}"])
        elif line.startswith("  ") and entries:
            entries[-1].append(line.strip())
    return [f"{entry[0]}: {'; '.join(entry[1 : 1 + _MOST])}" for entry in entries[:_MOST]]


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
