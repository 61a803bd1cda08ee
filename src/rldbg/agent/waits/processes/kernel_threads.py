"""What the kernel says about a thread: the system call it is in, and what it waits for there."""

import platform
import re
import struct
import time

from ..reading.kernel import STATES, Facts, read_text
from .open_files import any_listens, file_facts

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


def thread_facts(pid: int, tid: int) -> Facts:
    """`state`, `cpu` (clock ticks used), and where the kernel tells: `call`, `arguments`, `file`, `channel`. `wakes`
    counts how often it has slept; a call with `one_end` ends by what it waits for and by nothing else, or by time.
    A sleep ends in `left_s` seconds."""
    folder = f"/proc/{pid}/task/{tid}"
    words = read_text(f"{folder}/stat").rpartition(")")[2].split()
    if len(words) < 13:
        return {}
    facts: Facts = {"state": STATES.get(words[0], words[0]), "cpu": int(words[11]) + int(words[12])}
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
            facts["listens"] = any_listens(pid, polled)
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
