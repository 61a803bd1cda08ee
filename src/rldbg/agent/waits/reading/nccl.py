"""What NCCL and torch's flight recorder say by themselves about ranks of this host, where they are switched on."""

import re
import socket
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from .kernel import Facts, environment_of

_RAS = "localhost:28028"
_CONNECT_S = 0.5
# The service waits 5 s for ranks that do not answer, once or twice: its answer is needed in just that case.
_ANSWER_S = 20.0
_MOST_BYTES = 1 << 20
_TROUBLE = re.compile(r"^(Errors|Warnings)\n=+\n", re.MULTILINE)
# `DEAD`, `TIMEOUT`, `#0-0 (5f4c1b) MISMATCH`; what is known about it follows, indented.
_HEAD = re.compile(r"(?:#(?P<communicator>\S+) \((?P<id>\w+)\) )?(?P<what>[A-Z]+)$")
_COUNTS = re.compile(r"Communicator ranks have different (?P<operation>\w+) operation counts")
_MOST_LAUNCHED = re.compile(r"\d+ ranks? ha(?:s|ve) launched up to operation (?P<launched>\d+)$")
_RANK = re.compile(
    r"Rank (?P<rank>\d+)(?P<says>.*?)"
    r"(?: has launched up to operation (?P<launched>\d+)| has not launched any operations)?"
    r" -- .*process (?P<pid>\d+) on node (?P<node>\S+)$"
)
_MOST = 10
_DUMPS = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")


def nccl_troubles(pids: Iterable[int]) -> list[Facts]:
    """What the RAS services of these processes say of trouble."""
    addresses: dict[str, None] = {}
    for pid in filter(_uses_nccl, pids):
        environment = environment_of(pid)
        if environment.get("NCCL_RAS_ENABLE", "1") != "0":
            addresses[environment.get("NCCL_RAS_ADDR") or _RAS] = None
    return [trouble | {"address": address} for address in addresses for trouble in ras_troubles(address)]


def lasting(before: Sequence[Facts], after: Sequence[Facts]) -> list[Facts]:
    """Without differences that were others a moment ago: ranks of a healthy job do not launch at the same time."""
    return [trouble for trouble in after if trouble["what"] != "MISMATCH" or trouble in before]


def nccl_notes(pids: Iterable[int], troubles: Iterable[Facts]) -> list[str]:
    """The troubles, a line each, and the command that reads flight recorder dumps."""
    dumps = [note for pid in pids if _uses_nccl(pid) for note in _dumps(pid, environment_of(pid))]
    return list(dict.fromkeys([*(f"NCCL RAS ({each['address']}): {trouble_text(each)}" for each in troubles), *dumps]))


def trouble_text(trouble: Facts) -> str:
    of = f" of communicator #{trouble['communicator']}" if trouble["communicator"] else ""
    return f"{trouble['what']}{of}: {'; '.join(trouble['lines'][:_MOST])}"


def ras_troubles(address: str) -> list[Facts]:
    """What the service at HOST:PORT says of trouble, by kind and communicator; empty when nothing listens.

    `ranks` are those it names, with what they have `launched` of an `operation`; `most` is the count of the others."""
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
        silence: Facts = {"what": "TIMEOUT", "communicator": "", "id": "", "ranks": [], "most": {}}
        return [*_troubles(data), silence | {"lines": [f"no complete answer within {_ANSWER_S:g} s"]}]
    except (OSError, ValueError):
        return _troubles(data)
    return _troubles(data)


def _troubles(data: bytes) -> list[Facts]:
    """The entries of the sections that tell of trouble; a healthy job has these sections too, empty."""
    text = data.decode("utf-8", "replace").replace("\r\n", "\n").replace("\0", "")
    first = _TROUBLE.search(text)
    entries: list[Facts] = []
    operation = ""
    for line in text[first.start() :].splitlines() if first is not None else ():
        if (head := _HEAD.match(line)) is not None:
            named = {name: head[name] or "" for name in ("what", "communicator", "id")}
            entries.append({**named, "lines": [], "ranks": [], "most": {}})
            operation = ""
        elif line.startswith("  ") and entries:
            entry, said = entries[-1], line.strip()
            entry["lines"].append(said)
            if counts := _COUNTS.match(said):
                operation = counts["operation"]
            elif most := _MOST_LAUNCHED.match(said):
                entry["most"][operation] = max(int(most["launched"]), entry["most"].get(operation, 0))
            elif rank := _RANK.match(said):
                entry["ranks"].append(_rank(rank, operation))
    return entries[:_MOST]


def _rank(found: re.Match[str], operation: str) -> Facts:
    facts: Facts = {"rank": int(found["rank"]), "pid": int(found["pid"]), "here": _is_here(found["node"])}
    return facts | {"operation": operation, "launched": int(found["launched"] or 0), "says": found["says"].strip()}


def _is_here(address: str) -> bool:
    """Whether an address is one of this host: only those can be bound."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(address, 0, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(place)
    except OSError:
        return False
    return True


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
