"""Two arrays of the same size, measured in one pass of bounded memory: equality first, the rest only where needed.

NaN equals NaN and an infinity equals itself; a NaN against a number is beyond any tolerance. Chunks fit the cache, and
bytes that were mapped from a file are given back to the system once they have been read.
"""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rldbg.analysis.tolerances import Tolerance
from rldbg.recording import EncodedArray

_CHUNK = 1 << 15
_CHUNKS_PER_RELEASE = 512
# Of the elements beyond tolerance in a chunk, so many are looked at for percentiles and ULPs.
_SAMPLED = 512
# The histogram of |a - b| has one bin a power of two, from 2**-64 (bin 0) on.
BINS = 128
LOWEST_EXPONENT = -64

Array = np.ndarray | EncodedArray


@dataclass(slots=True)
class Measured:
    """What was found over all elements seen so far. Adding two gives what both saw."""

    compared: int = 0
    beyond: int = 0
    max_abs: float = 0.0
    max_rel: float = 0.0
    max_ulp: float = 0.0
    sum_abs: float = 0.0
    dot_ab: float = 0.0
    dot_aa: float = 0.0
    dot_bb: float = 0.0
    nan_a: int = 0
    nan_b: int = 0
    inf_a: int = 0
    inf_b: int = 0
    # Flat indices: the first element beyond tolerance, the one furthest beyond, the first NaN or infinity.
    first: int | None = field(default=None)
    worst: int | None = field(default=None)
    worst_excess: float = -math.inf
    odd: int | None = field(default=None)
    histogram: np.ndarray | None = None

    @property
    def mean_abs(self) -> float:
        return self.sum_abs / self.compared if self.compared else 0.0

    @property
    def cosine(self) -> float:
        norm = math.sqrt(self.dot_aa) * math.sqrt(self.dot_bb)
        return self.dot_ab / norm if norm > 0 else 1.0

    def add(self, other: Measured) -> None:
        """Totals of both; places stay the caller's affair."""
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in _MAXIMA:
            setattr(self, name, max(getattr(self, name), getattr(other, name)))
        if other.histogram is not None:
            self.histogram = other.histogram if self.histogram is None else self.histogram + other.histogram

    def percentile(self, share: float) -> float | None:
        """|a - b| below which this share of the elements beyond tolerance lies, to a factor of two."""
        if self.histogram is None or not self.histogram.any():
            return None
        total = np.cumsum(self.histogram)
        number = int(np.searchsorted(total, share * total[-1]))
        return min(2.0 ** (number + LOWEST_EXPONENT + 1), self.max_abs)


_SUMS = ("compared", "beyond", "sum_abs", "dot_ab", "dot_aa", "dot_bb", "nan_a", "nan_b", "inf_a", "inf_b")
_MAXIMA = ("max_abs", "max_rel", "max_ulp")


def measure(a: Array, b: Array, tolerance: Tolerance, valid: np.ndarray | None = None) -> Measured:
    """Every element where `valid` is set (all when None). Places are flat indices into the arrays."""
    flat_a, flat_b = _Flat(a), _Flat(b)
    flat_valid = None if valid is None else valid.reshape(-1)
    total = Measured(compared=flat_a.size if flat_valid is None else int(np.count_nonzero(flat_valid)))
    same_type = flat_a.raw.dtype == flat_b.raw.dtype and flat_a.encoding == flat_b.encoding
    is_float = flat_a.is_float or flat_b.is_float
    atol: float | None = None if tolerance.scale else tolerance.atol
    for start in range(0, flat_a.size, _CHUNK):
        stop = start + _CHUNK
        mask = None if flat_valid is None else flat_valid[start:stop]
        if same_type and same_bytes(flat_a.raw[start:stop], flat_b.raw[start:stop]):
            if is_float:
                _count_equal(total, flat_a.values(start, stop), mask, start)
        else:
            if atol is None:
                atol = tolerance.atol + tolerance.scale * _largest(flat_a, flat_b)
            part_a, part_b = flat_a.values(start, stop), flat_b.values(start, stop)
            _measure_chunk(total, part_a, part_b, mask, start, atol, tolerance.rtol)
        if (start // _CHUNK + 1) % _CHUNKS_PER_RELEASE == 0:
            flat_a.release(stop)
            flat_b.release(stop)
    return total


def same_bytes(a: np.ndarray, b: np.ndarray) -> bool:
    """Bit for bit equal: so a NaN equals itself."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return bool(np.array_equal(_bits(np.ascontiguousarray(a)), _bits(np.ascontiguousarray(b))))


def _bits(flat: np.ndarray) -> np.ndarray:
    """A contiguous array in the widest integers that fit."""
    if flat.dtype.kind == "i" or flat.ndim == 0:
        return flat
    if flat.nbytes % 8 == 0 and flat.ctypes.data % 8 == 0:
        return flat.view(np.uint64)
    return flat.view(np.uint8)


class _Flat:
    """An array as one run of elements; those of a type that numpy lacks are decoded chunk by chunk."""

    def __init__(self, array: Array) -> None:
        self.encoding = array.dtype if isinstance(array, EncodedArray) else ""
        raw = array.bits if isinstance(array, EncodedArray) else array
        self.raw = np.ascontiguousarray(raw).reshape(-1)
        self.size = self.raw.size
        self.is_float = bool(self.encoding) or self.raw.dtype.kind in "fc"
        self._map = _mapping(self.raw)
        self._released = 0

    def values(self, start: int, stop: int) -> np.ndarray:
        part: np.ndarray = self.raw[start:stop]
        return EncodedArray(part, self.encoding).decode() if self.encoding else part

    def release(self, stop: int) -> None:
        """Pages read so far leave the process, not the page cache: memory stays bounded however large the file is."""
        if self._map is None:
            return
        mapped, offset = self._map
        start = -(-(offset + self._released * self.raw.itemsize) // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (offset + min(stop, self.size) * self.raw.itemsize) // mmap.PAGESIZE * mmap.PAGESIZE
        if end > start:
            mapped.madvise(mmap.MADV_DONTNEED, start, end - start)
        self._released = stop


def _mapping(array: np.ndarray) -> tuple[mmap.mmap, int] | None:
    """The file mapping an array is a view of, and where in it the array begins."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    if not isinstance(base, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
        return None
    return base, array.ctypes.data - np.frombuffer(base, dtype=np.uint8, count=1).ctypes.data


def _count_equal(total: Measured, values: np.ndarray, mask: Any, start: int) -> None:
    """Equal chunks still count their NaNs and infinities; one sum tells that there are none."""
    with np.errstate(all="ignore"):
        if np.isfinite(np.add.reduce(values)):
            return
    use = ~np.isfinite(values)
    if mask is not None:
        use &= mask != 0
    nan = int(np.count_nonzero(np.isnan(values) & use))
    odd = int(np.count_nonzero(use))
    total.nan_a += nan
    total.nan_b += nan
    total.inf_a += odd - nan
    total.inf_b += odd - nan
    if odd and total.odd is None:
        total.odd = start + int(np.argmax(use))


def _measure_chunk(
    total: Measured, a: np.ndarray, b: np.ndarray, mask: Any, start: int, atol: float, rtol: float
) -> None:
    kind = np.float32 if a.dtype == b.dtype == np.float32 else np.float64
    # A double holds only 53 bits of an integer.
    exact = a != b if atol == rtol == 0 and a.dtype.kind in "iub" and b.dtype.kind in "iub" else None
    wide_a, wide_b = _real(a, kind), _real(b, kind)
    if mask is not None and not mask.all():
        use = mask != 0
        wide_a, wide_b = np.where(use, wide_a, 0), np.where(use, wide_b, 0)
        exact = None if exact is None else exact & use
    with np.errstate(all="ignore"):
        gap = np.abs(wide_a - wide_b)
        summed = float(np.add.reduce(gap))
    clash = None
    if not math.isfinite(summed):
        clash = _count_odd(total, wide_a, wide_b, start)
        plain = np.isfinite(wide_a) & np.isfinite(wide_b)
        wide_a, wide_b = np.where(plain, wide_a, 0), np.where(plain, wide_b, 0)
        gap = np.abs(wide_a.astype(np.float64) - wide_b.astype(np.float64))
        summed = float(np.add.reduce(gap))
    size = np.maximum(np.abs(wide_a), np.abs(wide_b))
    total.sum_abs += summed
    total.max_abs = max(total.max_abs, float(gap.max(initial=0.0)))
    for name, x, y in (("dot_ab", wide_a, wide_b), ("dot_aa", wide_a, wide_a), ("dot_bb", wide_b, wide_b)):
        setattr(total, name, getattr(total, name) + float(np.einsum("i,i", x, y)))
    excess = gap - kind(atol)
    if rtol:
        excess -= size * kind(rtol)
    if clash is not None:
        excess[clash] = np.inf
    beyond = excess > 0 if exact is None else exact
    np.maximum(size, np.finfo(kind).tiny, out=size)
    total.max_rel = max(total.max_rel, float((gap / size).max(initial=0.0)))
    count = int(np.count_nonzero(beyond))
    if count:
        _note_beyond(total, a, b, gap, excess, beyond, count, start)


def _real(array: np.ndarray, kind: Any) -> np.ndarray:
    """Complex numbers by their magnitude, everything else as it is."""
    values: np.ndarray = np.abs(array) if array.dtype.kind == "c" else array
    return values.astype(kind, copy=False)


def _count_odd(total: Measured, a: np.ndarray, b: np.ndarray, start: int) -> np.ndarray:
    """Counts NaNs and infinities; where they clash: on one side only, or infinities of different signs."""
    nan_a, nan_b, inf_a, inf_b = np.isnan(a), np.isnan(b), np.isinf(a), np.isinf(b)
    total.nan_a += int(np.count_nonzero(nan_a))
    total.nan_b += int(np.count_nonzero(nan_b))
    total.inf_a += int(np.count_nonzero(inf_a))
    total.inf_b += int(np.count_nonzero(inf_b))
    odd = nan_a | nan_b | inf_a | inf_b
    if total.odd is None and odd.any():
        total.odd = start + int(np.argmax(odd))
    clash: np.ndarray = odd & ~((nan_a & nan_b) | (a == b))
    return clash


def _note_beyond(
    total: Measured,
    a: np.ndarray,
    b: np.ndarray,
    gap: np.ndarray,
    excess: np.ndarray,
    beyond: np.ndarray,
    count: int,
    start: int,
) -> None:
    total.beyond += count
    if total.first is None:
        total.first = start + int(np.argmax(beyond))
    worst = int(np.argmax(excess)) if count > 1 else int(np.argmax(beyond))
    if not beyond[worst]:
        worst = int(np.argmax(np.where(beyond, excess, -np.inf)))
    if float(excess[worst]) > total.worst_excess:
        total.worst, total.worst_excess = start + worst, float(excess[worst])
    places = np.flatnonzero(beyond)
    sampled = places[:: max(1, count // _SAMPLED)]
    exponents = np.frexp(gap[sampled])[1] - 1 - LOWEST_EXPONENT
    bins = np.bincount(np.clip(exponents, 0, BINS - 1), minlength=BINS) * (count / len(sampled))
    total.histogram = bins if total.histogram is None else total.histogram + bins
    if a.dtype == b.dtype and a.dtype.kind == "f":
        spacing = np.spacing(np.maximum(np.abs(a[sampled]), np.abs(b[sampled])))
        with np.errstate(all="ignore"):
            steps = gap[sampled] / spacing
        total.max_ulp = max(total.max_ulp, float(steps[np.isfinite(steps)].max(initial=0.0)))


def _largest(*arrays: _Flat) -> float:
    """The largest finite magnitude in any of the arrays."""
    best = 0.0
    for array in arrays:
        for start in range(0, array.size, _CHUNK):
            part = np.abs(_real(array.values(start, start + _CHUNK), np.float64))
            best = max(best, float(part[np.isfinite(part)].max(initial=0.0)))
    return best
