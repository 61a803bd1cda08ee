"""CUDA tensors on their way to host memory, without making the training stream or thread wait for the bus.

The caller's stream pays for a clone on the device. A side stream then copies the clones into pinned memory while
training continues. When the clones not yet copied would exceed the device buffer, the caller's stream waits for the
copy of its own tensors instead; the thread does not.
"""

import itertools
import logging
from collections.abc import Callable
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from rldbg.recording.recorder.arena import Arena
from rldbg.recording.recorder.tensors import array_from_bytes, name_of, torch_module
from rldbg.recording.records import EncodedArray

_LOGGER = logging.getLogger(__name__)
_SLAB_BYTES = 32 * 2**20

Take = Callable[[int], np.ndarray]
"""Returns that many bytes of host memory."""


class PinnedSlabs:
    """Page-locks the arena slab by slab as it is used, so that copies into it run at full speed during training."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._base = _address(arena.memory)
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
        begin = _address(target) - self._base
        inner = [slab * _SLAB_BYTES - begin for slab in self._slabs_under(target)]
        return [0, *(cut for cut in inner if 0 < cut < target.nbytes), target.nbytes]

    def _slabs_under(self, target: np.ndarray) -> range:
        begin = _address(target) - self._base
        if not 0 <= begin < self._arena.capacity:  # memory of its own, for a record larger than the arena
            return range(0)
        return range(begin // _SLAB_BYTES, -(-(begin + target.nbytes) // _SLAB_BYTES))


class PendingCopy:
    """One tensor on its way to host memory."""

    __slots__ = ("_dtype", "_shape", "itemsize", "nbytes", "target", "tensor")

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor
        self.nbytes: int = tensor.nbytes
        self.itemsize: int = tensor.itemsize
        self.target: np.ndarray  # given by its batch
        self._dtype = tensor.dtype
        self._shape = tensor.shape

    def array(self) -> np.ndarray | EncodedArray:
        """The tensor's values, once the transfer has finished."""
        return array_from_bytes(self.target, name_of(self._dtype), tuple(self._shape))


_NBYTES, _ITEMSIZE = attrgetter("nbytes"), attrgetter("itemsize")


class _Copy(NamedTuple):
    """Bytes on the device and as many in host memory."""

    source: Any
    target: np.ndarray


class TransferBatch:
    """Tensors that are transferred as one: one piece of host memory, one clone, one copy."""

    def __init__(self, pending: list[PendingCopy], take: Take) -> None:
        # Wide values first, so that each tensor's bytes are aligned for its type.
        self._pending = sorted(pending, key=_ITEMSIZE, reverse=True)
        self.nbytes = sum(map(_NBYTES, pending))
        self.target = take(self.nbytes)
        start = 0
        for copy in self._pending:
            copy.target = self.target[start : start + copy.nbytes]
            start += copy.nbytes

    def clone(self) -> list[_Copy]:
        if len(self._pending) == 1:
            (tensor,) = self._tensors()
            return [_Copy(_bytes(tensor.clone(memory_format=_torch().contiguous_format)), self.target)]
        return [_Copy(_torch().cat([_bytes(tensor) for tensor in self._tensors()]), self.target)]

    def in_place(self) -> list[_Copy]:
        """The caller's own tensors, each by a copy of its own; one that is scattered in memory is put together."""
        targets = (copy.target for copy in self._pending)
        return [_Copy(_bytes(tensor), target) for tensor, target in zip(self._tensors(), targets, strict=True)]

    def _tensors(self) -> list[Any]:
        """Returns the tensors and drops the references to them, so that their memory is freed after the copy."""
        tensors = [copy.tensor for copy in self._pending]
        for copy in self._pending:
            copy.tensor = None
        return tensors


def _bytes(tensor: Any) -> Any:
    return tensor.contiguous().view(-1).view(_torch().uint8)


def transfer_batches(pending: list[PendingCopy], take: Take) -> list[TransferBatch]:
    """Neighbours that together have at most the bytes of a slab, so that the buffer need not hold more in one piece."""
    groups: list[list[PendingCopy]] = [[]]
    size = 0
    for copy in pending:
        size += copy.nbytes
        if size > _SLAB_BYTES and groups[-1]:
            groups.append([])
            size = copy.nbytes
        groups[-1].append(copy)
    return [TransferBatch(group, take) for group in groups]


class DeviceStream:
    """One device: its side stream and how much of its memory our clones take."""

    def __init__(self, device: Any, slabs: PinnedSlabs, buffer_bytes: int) -> None:
        self.slabs = slabs
        self.side_stream = _cuda().Stream(device=device)
        self._device = device
        self._buffer_bytes = buffer_bytes
        # Two counters with one writer each need no lock: what was taken, and what is free again.
        self._taken = 0
        self._freed = 0

    def send(self, pending: list[PendingCopy], take: Take) -> "Transfer":
        """Starts the transfer of these tensors. The caller may overwrite them in stream order when this returns."""
        batches = transfer_batches(pending, take)
        for batch in batches:
            self.slabs.pin(batch.target)
        size = sum(batch.nbytes for batch in batches)
        stream = _cuda().current_stream(self._device)
        if self._taken - self._freed + size <= self._buffer_bytes:
            transfer = Transfer(self, [copy for batch in batches for copy in batch.clone()], held_bytes=size)
            self._taken += size
            transfer.ready.record(stream)
        else:
            transfer = Transfer(self, [copy for batch in batches for copy in batch.in_place()])
            transfer.ready.record(stream)
            transfer.begin()
            stream.wait_event(transfer.copied)
        return transfer

    def free(self, size: int) -> None:
        """Frees device memory; only for the thread that finishes transfers."""
        self._freed += size


class Transfer:
    """The tensors of one record on one device. begin() and finish() belong to the pipeline's thread."""

    def __init__(self, stream: DeviceStream, copies: list[_Copy], held_bytes: int = 0) -> None:
        self.ready = _cuda().Event()
        # A blocking event lets the waiting thread sleep instead of spinning on a core.
        self.copied = _cuda().Event(blocking=True)
        self.stream = stream
        self._copies = copies
        self._held_bytes = held_bytes
        self._begun = False

    def begin(self) -> None:
        """Queues the copies on the side stream, after the clones are ready."""
        if self._begun:
            return
        self._begun = True
        torch, side = _torch(), self.stream.side_stream
        side.wait_event(self.ready)
        with _cuda().stream(side):
            for source, target in self._copies:
                if target.nbytes == 0:
                    continue
                destination = torch.frombuffer(target, dtype=torch.uint8)
                for start, end in itertools.pairwise(self.stream.slabs.cuts(target)):
                    destination[start:end].copy_(source[start:end], non_blocking=True)
            self.copied.record(side)

    def finish(self) -> None:
        """Waits until the bytes are in host memory, then frees the clones."""
        self.begin()
        self.copied.synchronize()
        self._copies = []
        self.stream.free(self._held_bytes)


class Devices:
    """The streams of a recorder, one per device, made when its first tensor comes."""

    def __init__(self, arena: Arena, buffer_bytes: int) -> None:
        self._slabs = PinnedSlabs(arena)
        self._buffer_bytes = buffer_bytes
        self._streams: dict[Any, DeviceStream] = {}

    def send(self, pending: list[PendingCopy], take: Take) -> list[Transfer]:
        """Starts the transfer of these tensors into newly taken memory."""
        if _cuda().is_current_stream_capturing():
            raise ValueError("nothing can be recorded while a CUDA graph is being captured")
        by_device: dict[Any, list[PendingCopy]] = {}
        for copy in pending:
            by_device.setdefault(copy.tensor.device, []).append(copy)
        transfers = []
        for device, group in by_device.items():
            if device not in self._streams:
                self._streams[device] = DeviceStream(device, self._slabs, self._buffer_bytes)
            transfers.append(self._streams[device].send(group, take))
        return transfers

    def close(self) -> None:
        self._slabs.unpin()


def _address(memory: np.ndarray) -> int:
    # `.ctypes.data` would execute much Python code on the training thread.
    return int(memory.__array_interface__["data"][0])


def _torch() -> Any:
    torch = torch_module()
    assert torch is not None, "a CUDA tensor exists only where torch is loaded"
    return torch


def _cuda() -> Any:
    return _torch().cuda


def _runtime() -> Any:
    return _cuda().cudart()
