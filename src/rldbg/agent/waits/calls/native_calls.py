"""What native code waits for, by the names of its frames: a GPU that does not finish looks like a busy processor."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..reading.kernel import Facts
from ..reading.objects import Frame
from ..reading.spied import find_py_spy, spied_threads

_GPU_CALL = re.compile(r"(cu|cuda|hip)(Ctx|Device|Stream|Event)(Synchronize|Query)\w*|(cu|cuda|hip)Memcpy\w*")
_GPU_LIBRARY = re.compile(r"/(libcuda|libcudart|libamdhip64|libhsa-runtime64)[.-][^/]*$")
_NCCL_CALL = re.compile(r"p?nccl(CommInit\w*|CommSplit|GroupEnd|CommFinalize|CommDestroy)")
# Waits that Python frames and the kernel alone do not show.
_UNCLEAR = frozenset({"computing", "unknown", "native"})


def may_wait_for_gpu(pid: int, threads: Sequence[Facts]) -> bool:
    """Whether native frames could say more about a thread of the user: it is busy, and the process uses a GPU."""
    if not any(map(_is_unclear, threads)):
        return False
    try:
        maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return any(_GPU_LIBRARY.search(line) for line in maps.splitlines())


def may_wait_for_interpreter(threads: Sequence[Facts]) -> bool:
    """Whether a thread of the user is where nothing waits: another one may be in C code and keep the interpreter."""
    return len(threads) > 1 and any(_is_unclear(t) and t["kernel"].get("call") == "futex" for t in threads)


def add_native_waits(pid: int, threads: Sequence[Facts], tool: str = "") -> Mapping[int, Sequence[Frame]] | str:
    """Corrects what unclear threads wait for. The frames by thread, else the reason why there are none."""
    spied = spied_threads(pid, tool or find_py_spy(), native=True)
    if isinstance(spied, str):
        return spied
    frames = {thread.native: thread.frames for thread in spied}
    for thread in filter(_is_unclear, threads):
        if (wait := native_wait(frames.get(thread["native"], ()))) is not None:
            thread["wait"] = wait
    _add_interpreter_waits(threads, [thread.native for thread in spied if thread.owns_gil])
    return frames


def _add_interpreter_waits(threads: Sequence[Facts], owners: Sequence[int]) -> None:
    """A thread that holds the GIL while it sleeps in the kernel blocks all others."""
    owner = next((t for t in threads if t["native"] in owners and t["kernel"].get("state") == "sleeping"), None)
    if owner is None:
        return
    for thread in filter(_is_unclear, threads):
        if thread is not owner and thread["kernel"].get("call") == "futex":
            thread["wait"] = {"kind": "gil", "owner": owner["ident"]}
    owner["wait"] = {"kind": "holds_gil"}


def _is_unclear(thread: Facts) -> bool:
    return not thread.get("background", True) and thread["wait"]["kind"] in _UNCLEAR


def native_wait(frames: Sequence[Frame]) -> Facts | None:
    """The outermost native call that is known, of the frames below the innermost Python one."""
    native = []
    for frame in frames:
        if frame.file.endswith(".py") or frame.file.startswith("<"):
            break
        native.append(frame)
    for frame in reversed(native):
        if call := _GPU_CALL.fullmatch(frame.function):
            return {"kind": "cuda", "call": call[0]}
        if call := _NCCL_CALL.fullmatch(frame.function):
            return {"kind": "rendezvous", "call": call[0]}
    if native and _GPU_LIBRARY.search(native[0].file):
        return {"kind": "cuda", "call": Path(native[0].file).name}
    return None
