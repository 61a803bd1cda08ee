"""CRC-32 of a file in pieces: threads sum pieces in any order, and the sums are joined afterwards.

Joining uses that appending n bytes to a message multiplies its CRC by x^(8n) modulo the CRC polynomial. Numbers are
polynomials over GF(2) with the lowest power in the highest bit, as zlib's crc32 has them.
"""

import threading
import zlib
from collections.abc import Sequence
from functools import lru_cache

_POLYNOMIAL = 0xEDB88320
_ONE = 0x80000000

Piece = Sequence[memoryview]


class SharedSum:
    """The CRC of a list of pieces, summed by whoever has time. Each piece is summed exactly once."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._pieces = pieces
        self._sums = [0] * len(pieces)
        self._lock = threading.Lock()
        self._front, self._back = 0, len(pieces)
        self._missing = len(pieces)
        self._complete = threading.Event()

    def help_from_front(self) -> None:
        """Sums pieces until none is left that nobody has begun."""
        while (index := self._claim(front=True)) is not None:
            self._sum(index)

    def result(self) -> int:
        """The CRC of everything; sums what nobody has begun, then waits for those who help."""
        while (index := self._claim(front=False)) is not None:
            self._sum(index)
        if self._pieces:
            self._complete.wait()
        total = 0
        for piece, value in zip(self._pieces, self._sums, strict=True):
            total = join(total, value, sum(view.nbytes for view in piece))
        return total

    def _claim(self, front: bool) -> int | None:
        with self._lock:
            if self._front == self._back:
                return None
            if front:
                self._front += 1
                return self._front - 1
            self._back -= 1
            return self._back

    def _sum(self, index: int) -> None:
        self._sums[index] = crc32(self._pieces[index])
        with self._lock:
            self._missing -= 1
            if not self._missing:
                self._complete.set()


def crc32(piece: Piece) -> int:
    value = 0
    for view in piece:
        value = zlib.crc32(view, value)
    return value


def join(first: int, second: int, second_length: int) -> int:
    """The CRC of two messages one after the other, from the CRC of each."""
    return _multiply(_power_of_x(8 * second_length), first) ^ second


def _multiply(a: int, b: int) -> int:
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = (a << 1) & 0xFFFFFFFF
        b = (b >> 1) ^ _POLYNOMIAL if b & 1 else b >> 1
    return product


@lru_cache(maxsize=16)  # nearly all pieces are of one length
def _power_of_x(exponent: int) -> int:
    result, square = _ONE, _ONE >> 1
    while exponent:
        if exponent & 1:
            result = _multiply(square, result)
        square = _multiply(square, square)
        exponent >>= 1
    return result
