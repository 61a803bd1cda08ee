"""Lists of numbers as pickle opcodes, written by numpy: no Python object for a number, no GIL while it is done.

All numbers of a column get opcodes of one width, the narrowest that fits them all, so that row i of a ragged column is
a slice of its opcodes.
"""

from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from rldbg.recording.records import EncodedArray, Ragged


class NumberColumn:
    """Flat numbers of which lists are slices; their opcodes are made once, when the first list is written."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    @cached_property
    def opcodes(self) -> np.ndarray:
        """Shape [numbers, bytes of an opcode]."""
        return number_opcodes(self.values)


@dataclass(slots=True)
class AsList:
    """Numbers that must load as a Python list: a 1-D array, or Ragged for a list of lists."""

    values: np.ndarray | EncodedArray | Ragged
    _place: tuple[NumberColumn, int] | None = field(default=None, compare=False, repr=False)

    def opcodes(self) -> np.ndarray:
        """The bytes between MARK and APPENDS; for 1-D arrays only."""
        if self._place is None:
            return number_opcodes(np.asarray(self.values))
        column, start = self._place
        return column.opcodes[start : start + len(self.values)]


def as_lists(ragged: Ragged) -> list[AsList]:
    """The rows of a Ragged as lists that share one column."""
    values: Any = ragged.values
    flat: np.ndarray = values.decode() if isinstance(values, EncodedArray) else values
    column = NumberColumn(flat)
    return [AsList(flat[start:stop], (column, start)) for start, stop in pairwise(ragged.offsets.tolist())]


def number_opcodes(values: np.ndarray) -> np.ndarray:
    """The opcodes of these numbers, shape [numbers, bytes of an opcode]."""
    kind = values.dtype.kind
    if kind == "b":
        return np.where(values, np.uint8(0x88), np.uint8(0x89)).reshape(-1, 1)
    if kind == "f":
        return _filled(b"G", ">f8", values)
    if kind not in "iu":
        raise TypeError(f"an array of {values.dtype} cannot be written as a list of numbers")
    # One pass instead of two: numbers without a sign are below a power of two exactly when their union is.
    union = int(np.bitwise_or.reduce(values)) if len(values) else 0
    if 0 <= union < 1 << 8:
        return _filled(b"K", "u1", values)
    if 0 <= union < 1 << 16:
        return _filled(b"M", "<u2", values)
    if 0 <= union < 1 << 31 or (union < 0 and int(values.min()) >= -(1 << 31) and int(values.max()) < 1 << 31):
        return _filled(b"J", "<i4", values)
    if union < 1 << 63:
        return _filled(b"\x8a\x08", "<i8", values)
    return _filled(b"\x8a\x09", "<u8", values, tail=b"\x00")  # a ninth byte keeps the sign positive


def _filled(head: bytes, dtype: str, values: np.ndarray, tail: bytes = b"") -> np.ndarray:
    parts = [("head", "u1", len(head)), ("value", dtype), ("tail", "u1", len(tail))]
    items = np.empty(len(values), dtype=[part for part in parts if part[-1]])
    items["head"] = np.frombuffer(head, np.uint8) if len(head) > 1 else head[0]
    items["value"] = values
    if tail:
        items["tail"] = 0
    return items.view(np.uint8).reshape(len(values), items.itemsize)
