"""The small tensors of a record that lie in host memory: one piece of memory for all, one copy each.

The training thread pays for the copies only; the pipeline's thread makes arrays of them.
"""

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rldbg.recording.recorder.tensors import array_from_bytes, name_of
from rldbg.recording.records import EncodedArray

# Called without releasing the GIL: getting it back can take longer than a small copy.
_MEMMOVE = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(
    ("memmove", ctypes.PyDLL(None))
)
_MOST_BYTES = 256 * 2**10
_ALIGNMENT = 16


class _Piece(NamedTuple):
    name: str
    dtype: Any
    shape: tuple[int, ...]
    start: int
    end: int


class SmallTensors:
    """Gathers a record's tensors; `copy` must be called before their owner may overwrite them."""

    __slots__ = ("_memory", "_pieces", "_size", "_tensors")

    def __init__(self) -> None:
        self._tensors: list[Any] = []
        self._pieces: list[_Piece] = []
        self._size = 0
        self._memory: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self._pieces)

    def takes(self, name: str, tensor: Any) -> bool:
        """Whether a plain tensor is small, in host memory and in one piece: then it is kept for `copy`."""
        size = tensor.nbytes
        if size > _MOST_BYTES or not tensor.is_cpu or not tensor.is_contiguous():
            return False
        self._tensors.append(tensor)
        self._pieces.append(_Piece(name, tensor.dtype, tensor.shape, self._size, self._size + size))
        self._size += -(-size // _ALIGNMENT) * _ALIGNMENT
        return True

    def copy(self, take: Callable[[int], np.ndarray]) -> None:
        """`take` gives the memory."""
        self._memory = take(self._size)
        address = self._memory.__array_interface__["data"][0]
        for tensor, piece in zip(self._tensors, self._pieces, strict=True):
            _MEMMOVE(address + piece.start, tensor.data_ptr(), piece.end - piece.start)
        self._tensors = []

    def arrays(self) -> dict[str, np.ndarray | EncodedArray]:
        assert self._memory is not None
        return {
            name: array_from_bytes(self._memory[start:end], name_of(dtype), tuple(shape))
            for name, dtype, shape, start, end in self._pieces
        }
