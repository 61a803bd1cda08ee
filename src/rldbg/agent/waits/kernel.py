"""What the kernel says about threads: the system call they are in, and what is behind the file descriptors they use."""

import os
import platform
import re
import socket
import stat
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .unix_sockets import listening_path

Facts = dict[str, Any]
# Number of each call that can wait: x86_64, aarch64 (None where there is no such call).
_CALLS: dict[str, tuple[int | None, int | None]] = {
    "read": (0, 63),
    "write": (1, 64),
    "poll": (7, None),
    "ioctl": (16, 29),
    "pread64": (17, 67),
    "readv": (19, 65),
    "writev": (20, 66),
    "select": (23, None),
    "pause": (34, None),
    "nanosleep": (35, 101),
    "connect": (42, 203),
    "accept": (43, 202),
    "sendto": (44, 206),
    "recvfrom": (45, 207),
    "sendmsg": (46, 211),
    "recvmsg": (47, 212),
    "wait4": (61, 260),
    "semop": (65, 193),
    "fcntl": (72, 25),
    "flock": (73, 32),
    "fsync": (74, 82),
    "fdatasync": (75, 83),
    "rt_sigtimedwait": (128, 137),
    "futex": (202, 98),
    "semtimedop": (220, 192),
    "clock_nanosleep": (230, 115),
    "epoll_wait": (232, None),
    "waitid": (247, 95),
    "openat": (257, 56),
    "pselect6": (270, 72),
    "ppoll": (271, 73),
    "epoll_pwait": (281, 22),
    "accept4": (288, 242),
    "epoll_pwait2": (441, 441),
}
_COLUMN = {"x86_64": 0, "aarch64": 1}.get(platform.machine())
_NAMES = {} if _COLUMN is None else {numbers[_COLUMN]: name for name, numbers in _CALLS.items()}
_WITHOUT_FILE = frozenset(
    {"pause", "nanosleep", "clock_nanosleep", "wait4", "waitid", "semop"}
    | {"semtimedop", "futex", "openat", "rt_sigtimedwait"}
)
POLLING = frozenset({"poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "epoll_pwait2"})
_MOST_POLLED = 8
_FUTEX_TIMEOUT = 3
_UNTIL = 1  # TIMER_ABSTIME of clock_nanosleep
_ENDED_BY_ONE_THING = frozenset({"read", "nanosleep", "clock_nanosleep"})
_SLEPT = re.compile(r"^voluntary_ctxt_switches:\s*(\d+)", re.M)
_SERVICE = re.compile(
    r"/ray/(dashboard|_private|core|autoscaler)/|/raylet/raylet|gcs_server|ray-dashboard|ray::(DashboardAgent|RuntimeEnvAgent)"
)
_WITH_THREADS = {
    "OpenMP": r"lib[gi]?omp5?[-.]",
    "OpenBLAS": "openblas",
    "MKL": "libmkl_",
    "CUDA": r"libcudart|libcuda\.",
}
_STATES = {"R": "running", "S": "sleeping", "D": "disk", "T": "stopped", "t": "traced", "Z": "zombie", "X": "dead"}


def thread_facts(pid: int, tid: int) -> Facts:
    """`state`, `cpu` (clock ticks used), and where the kernel tells: `call`, `arguments`, `file`, `channel`. `wakes`
    counts how often it has slept; a call with `one_end` ends by what it waits for and by nothing else, or by time.
    A sleep ends in `left_s` seconds."""
    folder = f"/proc/{pid}/task/{tid}"
    words = read_text(f"{folder}/stat").rpartition(")")[2].split()
    if len(words) < 13:
        return {}
    facts: Facts = {"state": _STATES.get(words[0], words[0]), "cpu": int(words[11]) + int(words[12])}
    if channel := read_text(f"{folder}/wchan").strip("0\n"):
        facts["channel"] = channel
    call = read_text(f"{folder}/syscall").split()
    if len(call) > 6 and call[0].lstrip("-").isdigit():
        facts["call"] = _NAMES.get(int(call[0]), "")
        arguments = [int(word, 16) for word in call[1:7]]
        facts["arguments"] = arguments
        telling = facts["call"] in _ENDED_BY_ONE_THING or (facts["call"] == "futex" and not arguments[_FUTEX_TIMEOUT])
        facts["one_end"] = telling
        if slept := _SLEPT.search(read_text(f"{folder}/status")):
            facts["wakes"] = int(slept[1])
        if facts["call"] in POLLING:
            polled = _polled(pid, facts["call"], arguments)
            facts["polled"] = len(polled)
            facts["listens"] = _any_listens(pid, polled)
            facts["files"] = [file_facts(pid, each) for each in polled] if len(polled) <= _MOST_POLLED else []
            if len(polled) == 1:
                facts["file"] = facts["files"][0]
        elif facts["call"] and facts["call"] not in _WITHOUT_FILE:
            facts["file"] = file_facts(pid, arguments[0])
        elif facts["call"] == "openat":
            facts["path"] = _text_at(pid, arguments[1])
        elif facts["call"] == "clock_nanosleep" and (left_s := _sleep_left(pid, arguments)) is not None:
            facts["left_s"] = left_s
    return facts


def _sleep_left(pid: int, arguments: list[int]) -> float | None:
    """Seconds until a sleep ends that was given its end (as `time.sleep` does), not its length."""
    clock, flags, address = arguments[:3]
    until = _memory(pid, address, 16)
    if not flags & _UNTIL or len(until) < 16:
        return None
    seconds, nanoseconds = struct.unpack("<qq", until)
    left_s: float = seconds + nanoseconds / 1e9 - time.clock_gettime(clock)
    return max(left_s, 0.0)


def _polled(pid: int, call: str, arguments: list[int]) -> list[int]:
    """The descriptors that a thread waits for at once."""
    if call.startswith("epoll"):
        return [
            int(each) for each in re.findall(r"^tfd:\s*(\d+)", read_text(f"/proc/{pid}/fdinfo/{arguments[0]}"), re.M)
        ]
    if call in ("poll", "ppoll"):
        entries = _memory(pid, arguments[0], min(arguments[1], 1024) * 8) if arguments[1] else b""
        return [each for each, _, _ in struct.iter_unpack("<ihh", entries[: len(entries) // 8 * 8])]
    sets = [_memory(pid, address, min(arguments[0], 1024) // 8 + 1) for address in arguments[1:4] if address]
    return [n for n in range(min(arguments[0], 1024)) if any(len(s) > n // 8 and s[n // 8] >> n % 8 & 1 for s in sets)]


def _text_at(pid: int, address: int) -> str:
    return _memory(pid, address, 4096).partition(b"\0")[0].decode("utf-8", "replace")


def _memory(pid: int, address: int, size: int) -> bytes:
    """Empty where it cannot be read."""
    try:
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            memory.seek(address)
            return memory.read(size)
    except (OSError, OverflowError):
        return b""


def file_facts(pid: int, descriptor: int) -> Facts:
    """What is behind a descriptor: kind, path, and for sockets and pipes the other end."""
    try:
        target = str(Path(f"/proc/{pid}/fd/{descriptor}").readlink())
    except OSError:
        return {"descriptor": descriptor, "kind": "unknown"}
    facts: Facts = {"descriptor": descriptor, "path": target}
    if target.startswith("pipe:"):
        return facts | {"kind": "pipe", "inode": target[6:-1]}
    if _is_named_pipe(pid, descriptor):
        return facts | {"kind": "pipe", "inode": target}
    if target.startswith("socket:["):
        return facts | {"kind": "socket", "inode": target[8:-1]} | _socket_facts(pid, target[8:-1])
    if target.startswith("anon_inode:"):
        return facts | {"kind": "events"}
    if target.startswith(("/dev/pts/", "/dev/tty", "/dev/console")):
        return facts | {"kind": "terminal"}
    return facts | {"kind": "file"}


def _is_named_pipe(pid: int, descriptor: int) -> bool:
    """Its ends are known by its path, where others are known by a number."""
    try:
        return stat.S_ISFIFO(Path(f"/proc/{pid}/fd/{descriptor}").stat().st_mode)
    except OSError:
        return False


def _socket_facts(pid: int, inode: str) -> Facts:
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in read_text(f"/proc/{pid}/net/{table}").splitlines()[1:]:
            words = line.split()
            if len(words) > 9 and words[9] == inode:
                listens = words[3] == "0A"
                return {
                    "local": _address(words[1], family),
                    "peer": "" if listens else _address(words[2], family),
                    "connection": _TCP.get(words[3], words[3]),
                    "unanswered_bytes": int(words[4].split(":")[0], 16),
                }
    path = listening_path(read_text(f"/proc/{pid}/net/unix"), inode)
    return {"local": path} if path else {}


def _any_listens(pid: int, descriptors: list[int]) -> bool:
    """Whether one of them is a socket that accepts connections."""
    tables = [read_text(f"/proc/{pid}/net/{table}") for table in ("tcp", "tcp6")] if descriptors else []
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    listening = {f"socket:[{row[9]}]" for row in rows if len(row) > 9 and row[3] == "0A"}
    local = read_text(f"/proc/{pid}/net/unix") if descriptors else ""
    for descriptor in descriptors:
        try:
            target = str(Path(f"/proc/{pid}/fd/{descriptor}").readlink())
        except OSError:
            continue
        if target in listening or (target.startswith("socket:[") and listening_path(local, target[8:-1])):
            return True
    return False


def other_end(pid: int, file: Facts) -> str | None:
    """The inode of the other end of a connection within this host: "" when it is closed, "0" when it was not accepted
    yet. None for connections to other hosts."""
    if str(file["peer"]).rpartition(":")[0] not in ("127.0.0.1", "::1", str(file["local"]).rpartition(":")[0]):
        return None
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in read_text(f"/proc/{pid}/net/{table}").splitlines()[1:]:
            words = line.split()
            if _address(words[1], family) == file["peer"] and _address(words[2], family) == file["local"]:
                return words[9]
    return ""


def listener(pid: int, address: str) -> str:
    """The inode of the socket of this host that listens at an address, on it alone or on all; empty when none does."""
    port = address.rpartition(":")[2]
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in read_text(f"/proc/{pid}/net/{table}").splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and _address(words[1], family) in (address, f"0.0.0.0:{port}", f":::{port}"):
                return words[9]
    return ""


_TCP = {"01": "established", "02": "connecting", "08": "closed by its peer", "0A": "listening", "04": "closing"}


def addresses_of(words: list[str], family: int) -> tuple[str, str]:
    """Own and other address in a line of the kernel's table of connections."""
    return _address(words[1], family), _address(words[2], family)


def _address(text: str, family: int) -> str:
    host, _, port = text.partition(":")
    raw = bytes.fromhex(host)
    # Each group of four bytes is in the order of this machine.
    swapped = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))
    name = socket.inet_ntop(family, swapped)
    return f"{name.removeprefix('::ffff:')}:{int(port, 16)}"


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
        "state": _STATES.get(words[0], words[0]),
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


def ends_of(inode: str, everyone: dict[int, Facts]) -> list[Facts]:
    """Who holds a pipe or socket open: process, descriptor, and whether it can read or write there."""
    found = []
    wanted = (f"pipe:[{inode}]", f"socket:[{inode}]", inode)
    for pid in everyone:
        try:
            descriptors = [each.name for each in Path(f"/proc/{pid}/fd").iterdir()]
        except OSError:
            continue
        for descriptor in descriptors:
            try:
                if str(Path(f"/proc/{pid}/fd/{descriptor}").readlink()) in wanted:
                    flags = int(read_text(f"/proc/{pid}/fdinfo/{descriptor}").partition("flags:")[2].split()[0], 8)
                    found.append({"pid": pid, "descriptor": int(descriptor), "writes": flags & 3 > 0})
            except (OSError, ValueError, IndexError):
                continue
    return found


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


def _held_locks() -> list[list[str]]:
    """Locks that are held: kind, mode, type, process and file of each."""
    try:
        rows = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        return []
    return [row for row in rows if len(row) > 5 and row[1] != "->"]


def file_lock_holders(pid: int, path: str) -> list[int]:
    """Processes that hold a lock on a file; a path that is not absolute begins at the process's own folder."""
    try:
        facts = Path(f"/proc/{pid}/root{path}" if path.startswith("/") else f"/proc/{pid}/cwd/{path}").stat()
    except OSError:
        return []
    name = _lock_name(facts)
    takers = [int(row[4]) for row in _held_locks() if row[5] == name]
    # Who took it may have ended or closed the file: those that inherited it keep the lock.
    keepers = _keeping_open(name) if takers else []
    hidden = [pid for pid in takers if process_facts(pid) and not os.access(f"/proc/{pid}/fd", os.R_OK)]
    return list(dict.fromkeys([*keepers, *hidden]))


def _keeping_open(name: str) -> list[int]:
    """Processes with an open file that has a lock, by the name of the file in `/proc/locks`."""
    found = []
    for pid in (int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()):
        try:
            descriptors = [each.name for each in Path(f"/proc/{pid}/fd").iterdir()]
        except OSError:
            continue
        files = [each for each in descriptors if _name_of_open(pid, each) == name]
        if any("lock:" in read_text(f"/proc/{pid}/fdinfo/{each}") for each in files):
            found.append(pid)
    return found


def _name_of_open(pid: int, descriptor: str) -> str:
    try:
        return _lock_name(Path(f"/proc/{pid}/fd/{descriptor}").stat())
    except OSError:
        # It was closed meanwhile.
        return ""


def contested_file(pid: int, *, own: bool = False) -> str:
    """A file that a process has open and another one (with `own`, any) has locked; empty when there is none."""
    locked = {row[5] for row in _held_locks() if own or row[4] != str(pid)}
    for descriptor in sorted(Path(f"/proc/{pid}/fd").iterdir()) if locked else ():
        try:
            facts, target = descriptor.stat(), str(descriptor.readlink())
        except OSError:
            continue
        if target.startswith("/") and _lock_name(facts) in locked:
            return target
    return ""


def _lock_name(facts: os.stat_result) -> str:
    """A file as `/proc/locks` names it."""
    return f"{os.major(facts.st_dev):02x}:{os.minor(facts.st_dev):02x}:{facts.st_ino}"
