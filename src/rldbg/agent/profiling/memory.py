"""How much memory this process holds, cheaply: host memory from the kernel, GPU memory from torch's own counters.

Nothing is reset: the counters of peaks belong to the program. All numbers are KiB.
"""

import os
import resource
import sys
from typing import Any, NamedTuple

SLEEPS = ("sleep", "offload")
"""Phases that give memory back in ways that torch does not count: there, what the whole device holds is measured."""
_PAGE_KIB = resource.getpagesize() // 1024
_STATM = "/proc/self/statm"


class Held(NamedTuple):
    """Resident host memory and its highest value so far; memory that torch holds on the current GPU, likewise."""

    host: int
    host_peak: int
    gpu: int | None
    gpu_peak: int | None


def held(*, whole_device: bool = False) -> Held:
    host_peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return Held(_resident(host_peak), host_peak, *_of_gpu(whole_device))


def during(before: Held, after: Held) -> list[int | None]:
    """Entry, peak and exit of host memory, then of GPU memory. A peak is known exactly when it was the highest so
    far; else it is the larger of both ends."""
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
