"""CUDA tensors on their way to host memory, without making the training stream or thread wait for the bus.

The caller's stream pays for a clone on the device. A side stream then copies the clones into pinned memory while
training goes on. When the clones not yet copied would exceed the device buffer, the caller's stream waits for the copy
of its own tensors instead; the thread does not.
"""

import itertools
import logging
from typing import Any

import numpy as np

from rldbg.recording.recorder.arena import Arena
from rldbg.recording.recorder.memory import Memory
from rldbg.recording.recorder.tensors import array_from_bytes, dtype_name, torch_module
from rldbg.recording.records import EncodedArray

_LOGGER = logging.getLogger(__name__)
_SLAB_BYTES = 32 * 2**20


class PinnedSlabs:
    """Page-locks the arena slab by slab as it is used, so that copies into it run at full speed beside training."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._base = int(arena.memory.ctypes.data)
        self._pinned: set[int] = set()
        self._refused = False

    def pin(self, target: np.ndarray) -> None:
        """Makes sure that the slabs under `target` are page-locked. Only for the thread that may take memory."""
        for slab in self._slabs_under(target):
            if slab in self._pinned or self._refused:
                continue
            start = slab * _SLAB_BYTES
            size = min(_SLAB_BYTES, self._arena.capacity - start)
            if int(_runtime().cudaHostRegister(self._base + start, size, 0)) != 0:
                self._refused = True
                _LOGGER.warning("the driver refuses to page-lock memory: recording CUDA tensors will be slower")
                return
            self._pinned.add(slab)

    def unpin(self) -> None:
        for slab in self._pinned:
            _runtime().cudaHostUnregister(self._base + slab * _SLAB_BYTES)
        self._pinned.clear()

    def cuts(self, target: np.ndarray) -> list[int]:
        """Where a copy into `target` must be cut, because one copy must not cross two page-locked ranges."""
        begin = int(target.ctypes.data) - self._base
        inner = [slab * _SLAB_BYTES - begin for slab in self._slabs_under(target)]
        return [0, *(cut for cut in inner if 0 < cut < target.nbytes), target.nbytes]

    def _slabs_under(self, target: np.ndarray) -> range:
        begin = int(target.ctypes.data) - self._base
        if not 0 <= begin < self._arena.capacity:  # memory of its own, for a record larger than the arena
            return range(0)
        return range(begin // _SLAB_BYTES, -(-(begin + target.nbytes) // _SLAB_BYTES))


class Landing:
    """One tensor and the host memory it is copied to."""

    def __init__(self, tensor: Any, memory: Memory) -> None:
        self.tensor = tensor
        self.nbytes = int(tensor.numel() * tensor.element_size())
        self._dtype = dtype_name(tensor)
        self._shape = tuple(tensor.shape)
        self.target = memory.take(self.nbytes)

    def array(self) -> np.ndarray | EncodedArray:
        """The tensor's values, once the transfer has finished."""
        return array_from_bytes(self.target, self._dtype, self._shape)


class Lane:
    """One device: its side stream and how much of its memory our clones take."""

    def __init__(self, device: Any, slabs: PinnedSlabs, buffer_bytes: int) -> None:
        self.slabs = slabs
        self.side_stream = _cuda().Stream(device=device)
        self._device = device
        self._buffer_bytes = buffer_bytes
        # Two counters with one writer each need no lock: what was taken, and what is free again.
        self._taken = 0
        self._freed = 0

    def send(self, landings: list[Landing]) -> "Transfer":
        """Starts the way of these tensors. The caller may overwrite them in stream order when this returns."""
        size = sum(landing.nbytes for landing in landings)
        for landing in landings:
            self.slabs.pin(landing.target)
        transfer = Transfer(self, landings)
        stream = _cuda().current_stream(self._device)
        if self._taken - self._freed + size <= self._buffer_bytes:
            self._taken += size
            transfer.held_bytes = size
            for landing in landings:
                landing.tensor = landing.tensor.clone(memory_format=_torch().contiguous_format)
            transfer.ready.record(stream)
        else:
            for landing in landings:
                landing.tensor = landing.tensor.contiguous()
            transfer.ready.record(stream)
            transfer.begin()
            stream.wait_event(transfer.landed)
        return transfer

    def free(self, size: int) -> None:
        """Only for the thread that finishes transfers."""
        self._freed += size


class Transfer:
    """The tensors of one record on one device. begin() and finish() belong to the pipeline's thread."""

    def __init__(self, lane: Lane, landings: list[Landing]) -> None:
        self.held_bytes = 0
        self.ready = _cuda().Event()
        # A blocking event lets the waiting thread sleep instead of spinning on a core.
        self.landed = _cuda().Event(blocking=True)
        self.lane = lane
        self._landings = landings
        self._begun = False

    def begin(self) -> None:
        """Queues the copies on the side stream, behind the point where the clones are ready."""
        if self._begun:
            return
        self._begun = True
        torch, side = _torch(), self.lane.side_stream
        side.wait_event(self.ready)
        with _cuda().stream(side):
            for landing in self._landings:
                if landing.nbytes == 0:
                    continue
                source = landing.tensor.reshape(-1).view(torch.uint8)
                target = torch.frombuffer(landing.target, dtype=torch.uint8)
                cuts = self.lane.slabs.cuts(landing.target)
                for start, end in itertools.pairwise(cuts):
                    target[start:end].copy_(source[start:end], non_blocking=True)
            self.landed.record(side)

    def finish(self) -> None:
        """Waits until the bytes are in host memory, then lets the clones go."""
        self.begin()
        self.landed.synchronize()
        for landing in self._landings:
            landing.tensor = None
        self.lane.free(self.held_bytes)


class Devices:
    """The lanes of a recorder, one per device, made when its first tensor comes."""

    def __init__(self, arena: Arena, buffer_bytes: int) -> None:
        self._slabs = PinnedSlabs(arena)
        self._buffer_bytes = buffer_bytes
        self._lanes: dict[Any, Lane] = {}

    def send(self, landings: list[Landing]) -> list[Transfer]:
        by_device: dict[Any, list[Landing]] = {}
        for landing in landings:
            by_device.setdefault(landing.tensor.device, []).append(landing)
        transfers = []
        for device, group in by_device.items():
            if device not in self._lanes:
                self._lanes[device] = Lane(device, self._slabs, self._buffer_bytes)
            transfers.append(self._lanes[device].send(group))
        return transfers

    def close(self) -> None:
        self._slabs.unpin()


def is_capturing() -> bool:
    """Whether the current stream is being captured into a CUDA graph, where nothing can be copied out."""
    return bool(_cuda().is_current_stream_capturing())


def _torch() -> Any:
    torch = torch_module()
    assert torch is not None, "a CUDA tensor exists only where torch is loaded"
    return torch


def _cuda() -> Any:
    return _torch().cuda


def _runtime() -> Any:
    return _cuda().cudart()
