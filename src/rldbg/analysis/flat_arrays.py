"""Flat arrays, and the pages of mapped files that they are views of.

Pages that were read are released from the process, not the page cache: memory stays bounded for files of any size.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from typing import Any

import numpy as np

from rldbg.recording import EncodedArray, Ragged

RecordedArray = np.ndarray | EncodedArray
# Pages of smaller arrays are released together with their record.
_RELEASED_FROM_BYTES = 1 << 23


class FlatArray:
    """An array as one run of elements; those of a type that numpy lacks are decoded chunk by chunk."""

    def __init__(self, array: RecordedArray) -> None:
        self.encoding = array.dtype if isinstance(array, EncodedArray) else ""
        raw = array.bits if isinstance(array, EncodedArray) else array
        self.raw = np.ascontiguousarray(raw).reshape(-1)
        self.size = self.raw.size
        self.is_float = bool(self.encoding) or self.raw.dtype.kind in "fc"
        self._map = mapping_of(self.raw)
        self._released = 0

    def values(self, start: int, stop: int) -> np.ndarray:
        part: np.ndarray = self.raw[start:stop]
        return EncodedArray(part, self.encoding).decode() if self.encoding else part

    def release(self, stop: int) -> None:
        """Releases the pages read so far."""
        if self._map is None or self.raw.nbytes < _RELEASED_FROM_BYTES:
            return
        mapped, offset = self._map
        start = -(-(offset + self._released * self.raw.itemsize) // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (offset + min(stop, self.size) * self.raw.itemsize) // mmap.PAGESIZE * mmap.PAGESIZE
        if end > start:
            mapped.madvise(mmap.MADV_DONTNEED, start, end - start)
        self._released = stop


def mapping_of(array: np.ndarray) -> tuple[mmap.mmap, int] | None:
    """The file mapping an array is a view of, and where in it the array begins."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    if not isinstance(base, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
        return None
    return base, array.ctypes.data - np.frombuffer(base, dtype=np.uint8, count=1).ctypes.data


def give_back(values: Iterable[Any]) -> None:
    """Releases all pages of the files that these arrays are views of; they are read again if needed."""
    mapped = {}
    for value in values:
        array = value.values if isinstance(value, Ragged) else value
        array = array.bits if isinstance(array, EncodedArray) else array
        found = mapping_of(array) if isinstance(array, np.ndarray) and array.size else None
        if found is not None:
            mapped[id(found[0])] = found[0]
    for one in mapped.values():
        one.madvise(mmap.MADV_DONTNEED)
