"""What the kernel says about processes: their state, relatives, environment, and whether they may be inspected."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Facts = dict[str, Any]
_SERVICE = re.compile(
    r"/ray/(dashboard|_private|core|autoscaler)/|/raylet/raylet|gcs_server|ray-dashboard|ray::(DashboardAgent|RuntimeEnvAgent)"
)
_WITH_THREADS = {
    "OpenMP": r"lib[gi]?omp5?[-.]",
    "OpenBLAS": "openblas",
    "MKL": "libmkl_",
    "CUDA": r"libcudart|libcuda\.",
}
STATES = {"R": "running", "S": "sleeping", "D": "disk", "T": "stopped", "t": "traced", "Z": "zombie", "X": "dead"}


def process_facts(pid: int) -> Facts:
    """State, parent, command line and exit status of a process; empty when it is gone."""
    words = read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    if len(words) < 2:
        return {}
    given = read_text(f"/proc/{pid}/cmdline").replace("\0", " ") or read_text(f"/proc/{pid}/comm")
    command = " ".join(given.split())
    facts: Facts = {
        "pid": pid,
        "parent": int(words[1]),
        "state": STATES.get(words[0], words[0]),
        "command": command[:300],
    }
    if facts["state"] == "zombie" and len(words) > 49:
        status = int(words[49])
        facts["exit"] = f"signal {status & 127}" if status & 127 else f"exit code {status >> 8}"
    return facts


def all_processes() -> dict[int, Facts]:
    pids = [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]
    return {pid: facts for pid in pids if (facts := process_facts(pid))}


def thread_numbers(pid: int) -> set[int]:
    try:
        return {int(each.name) for each in Path(f"/proc/{pid}/task").iterdir()}
    except OSError:
        return set()


def threading_libraries(pid: int) -> list[str]:
    """Libraries in a process that keep threads of their own, which a fork does not copy."""
    mapped = read_text(f"/proc/{pid}/maps")
    return [name for name, file in _WITH_THREADS.items() if re.search(file, mapped)]


def children_of(pid: int) -> list[Facts]:
    """The processes that a process started and has not waited for; asked of the kernel, which knows them by thread."""
    files = list(Path(f"/proc/{pid}/task").glob("*/children"))
    if not files:
        return [facts for facts in all_processes().values() if facts["parent"] == pid]
    pids = [int(word) for file in files for word in read_text(str(file)).split()]
    return [facts for child in pids if (facts := process_facts(child))]


def descendants(pid: int, everyone: dict[int, Facts]) -> list[int]:
    """Children, their children and so on; without the services of Ray and what is below them."""
    found: list[int] = []
    below = [pid]
    while below:
        below = [
            each
            for each, facts in everyone.items()
            if facts["parent"] in below and each not in found and not _SERVICE.search(facts["command"])
        ]
        found += below
    return found


def hidden_relatives(pid: int, everyone: Mapping[int, Facts]) -> bool:
    """Whether a process that may have inherited a pipe of this one cannot be inspected (sudo, setuid)."""
    top = pid
    while (parent := int(everyone.get(top, {}).get("parent") or 0)) in everyone and _owner(parent) == _owner(pid):
        top = parent
    # A process that has ended has no open files, but only root may see that.
    living = [each for each in descendants(top, dict(everyone)) if everyone[each]["state"] not in ("zombie", "dead")]
    return any(not os.access(f"/proc/{each}/fd", os.R_OK) and process_facts(each) for each in living)


def environment_of(pid: int) -> dict[str, str]:
    try:
        data = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.partition("=") for entry in data.decode("utf-8", "replace").split("\0"))
    return {name: value for name, found, value in pairs if found}


def tracing_note(pid: int) -> str:
    """Why this process cannot be inspected, and how to get the right to."""
    me, owner = os.geteuid(), _owner(pid)
    if owner is None:
        return f"process {pid} does not exist on this host"
    capabilities = int((read_text("/proc/self/status").partition("CapEff:")[2].split() or ["0"])[0], 16)
    if me not in (0, owner):
        return f"process {pid} belongs to uid {owner}: run as that user, or as root (sudo rldbg stacks ...)"
    scope = read_text("/proc/sys/kernel/yama/ptrace_scope").strip()
    if me == 0 and not capabilities >> 19 & 1:
        return (
            "this container may not trace processes: start it with `docker run --cap-add SYS_PTRACE` "
            "(Kubernetes: securityContext.capabilities.add: [SYS_PTRACE])"
        )
    if scope not in ("", "0") and not capabilities >> 19 & 1:
        return (
            f"kernel.yama.ptrace_scope is {scope}: `sudo sysctl kernel.yama.ptrace_scope=0` allows it, "
            "or run as root (sudo rldbg stacks ...)"
        )
    return "tracing was refused: run as root (sudo rldbg stacks ...), or give CAP_SYS_PTRACE"


def _owner(pid: int) -> int | None:
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return None


def read_text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
