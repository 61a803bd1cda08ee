"""Lists of lists of numbers, which is how NexRL stores tokens and log probs, into ragged arrays."""

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from rldbg.recording.records import Ragged

# array.array converts a list in one C loop, about twice as fast as numpy, and refuses what does not fit.
_TYPE_CODES = {"int64": "q", "int32": "i", "int16": "h", "int8": "b", "uint8": "B", "float64": "d", "float32": "f"}


def ragged_from_lists(rows: Sequence[Any], dtype: Any) -> Ragged:
    """Rows (lists of numbers, or 1-D arrays) as one Ragged. Raises TypeError or ValueError for anything else."""
    wanted = np.dtype(dtype)
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    if {type(row) for row in rows} == {np.ndarray} and len({(row.dtype, row.ndim) for row in rows}) == 1:
        # Millions of numbers in short rows: what is asked of each row costs more than its copy.
        return Ragged(_row(np.concatenate(rows), wanted).astype(wanted, copy=False), offsets)
    values = np.empty(int(offsets[-1]), dtype=wanted)
    for row, start, stop in zip(rows, offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        values[start:stop] = _row(row, wanted)
    return Ragged(values, offsets)


def _row(row: Any, dtype: np.dtype[Any]) -> np.ndarray:
    if isinstance(row, np.ndarray):
        if row.ndim != 1:
            raise ValueError(f"a row has {row.ndim} dimensions instead of 1")
        return _fitting(row, dtype)
    code = _TYPE_CODES.get(dtype.name)
    if code is None:
        return np.array(row, dtype=dtype)
    try:
        return np.frombuffer(array(code, row), dtype=dtype)
    except OverflowError as error:
        raise ValueError(f"a row holds a number that {dtype} cannot: {error}") from error


def _fitting(row: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """An array as it is, once it is certain that the assignment to come neither wraps integers nor cuts fractions."""
    if not np.can_cast(row.dtype, dtype, "same_kind") and row.size:
        raise TypeError(f"a row of {row.dtype} where {dtype} is expected")
    if dtype.kind in "iu" and row.dtype.kind in "iu" and row.size and not np.can_cast(row.dtype, dtype):
        limits = np.iinfo(dtype)
        if not limits.min <= int(row.min()) <= int(row.max()) <= limits.max:
            raise ValueError(f"a row holds a number that {dtype} cannot")
    return row
