"""Python lists of numbers into arrays, at a few nanoseconds per value, straight into the memory given.

`struct.pack_into` is the fastest checked conversion the standard library has (half of numpy's time), and `bytearray`
beats it for small integers such as masks. A type is tried, and the next wider one when a value does not fit it.
"""

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rldbg.recording.recorder.memory import SnapshotMemory
from rldbg.recording.records import Ragged


class _Type(NamedTuple):
    dtype: type[np.generic]
    code: str


_MASK, _BOOL, _FLOAT = _Type(np.uint8, "B"), _Type(np.bool_, "?"), _Type(np.float64, "d")
_INT32, _INT64 = _Type(np.int32, "i"), _Type(np.int64, "q")
# Integers among floats: only where float64 is sure to hold them exactly.
_MIXED = _Type(np.float64, "d")
_EXACT_BELOW = 2.0**53
_UNFIT = (struct.error, TypeError, ValueError, OverflowError)


def array_from_list(values: Sequence[Any], memory: SnapshotMemory) -> np.ndarray | None:
    """A flat list of numbers as an int64, float64 or bool array; None when it holds anything else."""
    for type_ in _candidates(values, (_INT64, _MIXED)):
        packed = _pack([values], type_, memory)
        if packed is not None:
            return packed
    return None


def ragged_from_lists(rows: Sequence[Sequence[Any]], memory: SnapshotMemory) -> Ragged | None:
    """Rows of numbers in the narrowest type that holds them all; None when they hold anything else."""
    first = next((row for row in rows if len(row)), ())
    for type_ in _candidates(first, (_MASK, _INT32, _INT64, _MIXED)):
        packed = _pack(rows, type_, memory)
        if packed is not None:
            offsets = np.zeros(len(rows) + 1, dtype=np.int64)
            np.cumsum([len(row) for row in rows], out=offsets[1:])
            return Ragged(packed, offsets)
    return None


def _candidates(values: Sequence[Any], integers: tuple[_Type, ...]) -> tuple[_Type, ...]:
    """What to try, judged by the first value: integers may still turn out to be mixed with floats."""
    if not len(values):
        return (_FLOAT,)
    if isinstance(values[0], bool | np.bool_):
        return (_BOOL, *integers)
    if hasattr(values[0], "__index__"):
        return integers
    return (_FLOAT,)


def _pack(rows: Sequence[Sequence[Any]], type_: _Type, memory: SnapshotMemory) -> np.ndarray | None:
    item_size = np.dtype(type_.dtype).itemsize
    target = memory.take(sum(map(len, rows)) * item_size)
    view = target.data
    start = 0
    try:
        for row in rows:
            end = start + len(row) * item_size
            if type_ is _MASK:
                view[start:end] = bytearray(row)
            elif type_ is _BOOL:
                view[start:end] = _booleans(row)
            else:
                struct.pack_into(f"{len(row)}{type_.code}", view, start, *row)
            start = end
        values = target[:start].view(type_.dtype)
        if type_ is _MIXED and np.any(np.abs(values[np.isfinite(values)]) >= _EXACT_BELOW):
            raise ValueError("integers too large for float64")
    except _UNFIT:
        memory.undo()
        return None
    return values


def _booleans(row: Sequence[Any]) -> bytearray:
    flags = bytearray(row)
    if flags and max(flags) > 1:
        raise ValueError("not all are booleans")
    return flags
