"""Runs of numbers in a pickle, read by numpy instead of opcode by opcode.

A pickled list of numbers is MARK, opcodes of 2 to 10 bytes each, APPENDS. Where all opcodes are of one width, a run is
a strided column and is read as one. Runs of mixed widths (token ids) are read by number_lanes.
"""

import struct
from typing import NamedTuple

import numpy as np

from rldbg.recording.formats.number_lanes import MIXABLE, NumberLanes

_MARK, _APPENDS = ord("("), ord("e")
_BATCH = 1000  # CPython's pickler writes lists in batches of this many items
_LONG1 = 0x8A
_TRUE, _FALSE = 0x88, 0x89
_PROBE = 1024
_SHORT = 9

# opcode: (bytes it takes, dtype of its operand, which ends it)
_COLUMNS = {
    ord("K"): (2, "u1"),
    ord("M"): (3, "<u2"),
    ord("J"): (5, "<i4"),
    ord("G"): (9, ">f8"),
    _LONG1: (10, "<i8"),  # of 8 bytes, the only length read here
}
_OPERANDS = {ord(op): struct.Struct(form) for op, form in (("K", "B"), ("M", "<H"), ("J", "<i"), ("G", ">d"))}
NUMBER_OPCODES = frozenset({*_COLUMNS, _TRUE, _FALSE})


def _wide(op: int) -> type[np.float64 | np.int64]:
    return np.float64 if op == ord("G") else np.int64


class NumberRun(NamedTuple):
    """Numbers (int64, float64 or bool) up to, not including, the APPENDS or APPEND at `end`."""

    values: np.ndarray
    end: int


class NumberRuns:
    """Finds the runs of one pickle, asked for in the order in which they lie there; decodes them if told to."""

    def __init__(self, pickled: bytes, *, decode: bool) -> None:
        self._pickled = pickled
        self._decode = decode
        self._bytes = np.frombuffer(pickled, np.uint8)
        self._lanes = NumberLanes(pickled, decode=decode)

    def at(self, start: int) -> NumberRun | None:
        """The run whose first number opcode is at `start`, if all of it is numbers followed by APPENDS."""
        op = self._pickled[start]
        if op in (_TRUE, _FALSE):
            return self._booleans(start)
        if (known := self._lanes.known(start)) is not None:
            return NumberRun(*known)
        size, dtype = _COLUMNS[op]
        count = self._count(start, size, op)
        end = start + count * size
        after = self._pickled[end] if end < len(self._pickled) else 0
        if after != _APPENDS:
            if after not in MIXABLE or op not in MIXABLE:
                return None
            if (short := self._short(start)) is not None:
                return short
            found = self._lanes.at(start)
            return None if found is None else NumberRun(*found)
        if op == _LONG1 and not (self._bytes[start + 1 : end : size] == 8).all():
            return None
        column: np.ndarray = np.ndarray(
            (count,), dtype, self._pickled, start + size - np.dtype(dtype).itemsize, (size,)
        )
        return NumberRun(column.astype(_wide(op)), end)

    def _short(self, start: int) -> NumberRun | None:
        """A mixed run of a few numbers, such as a shape: stepping through lanes would take longer than reading it."""
        values: list[int | float] = []
        place = start
        for _ in range(_SHORT):
            op = self._pickled[place]
            if op == _APPENDS:
                kind = np.float64 if any(isinstance(value, float) for value in values) else np.int64
                return NumberRun(np.array(values, kind), place)
            if op not in MIXABLE:
                return None
            values += _OPERANDS[op].unpack_from(self._pickled, place + 1)
            place += _COLUMNS[op][0]
        return None

    def batches(self, mark: int) -> NumberRun | None:
        """The full batches from the MARK of a list on, if there are several and all their opcodes are of one kind."""
        data, op = self._pickled, self._pickled[mark + 1]
        size, dtype = _COLUMNS.get(op, (0, ""))
        if not size or op == _LONG1 or self._lanes.known(mark + 1) is not None:
            return None
        period = 1 + _BATCH * size + 1
        last = len(data) - period
        count, start = 0, mark
        while start <= last and data[start] == _MARK and data[start + period - 1] == _APPENDS:
            count, start = count + 1, start + period
        if count < 2:
            return None
        opcodes: np.ndarray = np.ndarray((count, _BATCH), "u1", data, mark + 1, (period, size))
        if not (opcodes == op).all():
            return None
        values: np.ndarray = np.ndarray((count, _BATCH), dtype, data, mark + 2, (period, size))
        return NumberRun(values.astype(_wide(op)).reshape(-1), start - 1)

    def single(self, start: int) -> NumberRun | None:
        """The number at `start` if APPEND follows it, which is how a last batch of one item is written."""
        op = self._pickled[start]
        size, dtype = _COLUMNS.get(op, (1, ""))
        if op == _LONG1 or op not in NUMBER_OPCODES or self._pickled[start + size : start + size + 1] != b"a":
            return None
        if not dtype:
            return NumberRun(np.array([op == _TRUE]), start + size)
        value = np.frombuffer(self._pickled, dtype, 1, start + 1)
        return NumberRun(value.astype(_wide(op)), start + size)

    def _count(self, start: int, size: int, op: int) -> int:
        """How many whole opcodes of this kind follow each other."""
        limit = (len(self._bytes) - start) // size
        count, probe = 0, _PROBE
        while count < limit:
            differs = self._bytes[start + count * size : start + min(count + probe, limit) * size : size] != op
            first = int(differs.argmax())
            if differs[first]:
                return count + first
            count += len(differs)
            probe *= 8
        return limit

    def _booleans(self, start: int) -> NumberRun | None:
        end = self._pickled.find(b"e", start)
        flags = self._bytes[start:end]
        if end < 0 or not ((flags == _TRUE) | (flags == _FALSE)).all():
            return None
        return NumberRun(flags == _TRUE, end)
