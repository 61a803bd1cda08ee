"""How much memory this process holds, cheaply: host memory from the kernel and the allocators, GPU memory from torch's
own counters.

Nothing is reset: the counters of peaks belong to the program. All numbers are KiB.
"""

import os
import resource
import sys
from typing import Any, NamedTuple

from .in_use import InUse, in_use

SLEEPS = ("sleep", "offload")
"""Phases that give memory back in ways that torch does not count: there, what the whole device holds is measured."""
_PAGE_KIB = resource.getpagesize() // 1024
_STATM = "/proc/self/statm"


class Held(NamedTuple):
    """Resident host memory and its highest value so far; memory that torch holds on the current GPU, likewise; what
    the program has in use of the host's."""

    host: int
    host_peak: int
    gpu: int | None
    gpu_peak: int | None
    used: InUse | None = None


def held(*, whole_device: bool = False, since: Held | None = None) -> Held:
    """At the end of a phase `since` is what was held at its beginning."""
    host_peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    used = in_use(always=since is not None) if since is None or since.used is not None else None
    return Held(_resident(host_peak), host_peak, *_of_gpu(whole_device), used)


def during(before: Held, after: Held) -> list[int | None]:
    """Entry, peak and exit of host memory, then of GPU memory. A peak is known exactly when it was the highest so
    far; else it is the larger of both ends. Then, where it is known, what malloc has in use at entry and exit, and
    Python's blocks."""
    return [*_three_each(before, after), *_used(before.used, after.used)]


def _used(before: InUse | None, after: InUse | None) -> list[int | None]:
    if before is None or after is None:
        return []
    return [before.malloc_kib, after.malloc_kib, before.blocks, after.blocks]


def _three_each(before: Held, after: Held) -> list[int | None]:
    host = after.host_peak if after.host_peak > before.host_peak else max(before.host, after.host)
    numbers: list[int | None] = [before.host, host, after.host]
    if before.gpu is None or after.gpu is None or before.gpu_peak is None or after.gpu_peak is None:
        return [*numbers, None, None, None]
    gpu = after.gpu_peak if after.gpu_peak > before.gpu_peak else max(before.gpu, after.gpu)
    return [*numbers, before.gpu, gpu, after.gpu]


def _resident(otherwise: int) -> int:
    try:
        file = os.open(_STATM, os.O_RDONLY)
    except OSError:
        return otherwise
    try:
        return int(os.read(file, 128).split()[1]) * _PAGE_KIB
    finally:
        os.close(file)


def _of_gpu(whole_device: bool) -> tuple[int | None, int | None]:
    """None until the program itself has used a GPU: asking earlier would initialise it."""
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not getattr(cuda, "is_initialized", bool)():
        return None, None
    try:
        if whole_device:
            free, total = cuda.mem_get_info()
            return (total - free) // 1024, (total - free) // 1024
        return cuda.memory_allocated() // 1024, cuda.max_memory_allocated() // 1024
    except Exception:  # noqa: BLE001 - a device that is lost must not end a training
        return None, None
