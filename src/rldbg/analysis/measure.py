"""Two arrays of the same size, measured in one pass of bounded memory: equality first, the rest only where needed.

NaN equals NaN and an infinity equals itself; a NaN against a number is beyond any tolerance. Chunks fit the cache, and
bytes that were mapped from a file are given back to the system once they have been read.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rldbg.analysis.tolerances import Tolerance
from rldbg.recording import EncodedArray, Ragged

_CHUNK = 1 << 17
_CHUNKS_PER_RELEASE = 64
# Up to this size, infinities are also counted where both sides are equal; NaNs always are.
_COUNT_INFINITIES_UP_TO = 1 << 19
# Of the elements beyond tolerance in a chunk, so many are looked at for percentiles and ULPs.
_SAMPLED = 512
# ... and only in one of so many chunks, where most elements of each are beyond.
_CROWDED_EVERY = 16
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
    scratch = _Scratch()
    for start in range(0, flat_a.size, _CHUNK):
        stop = start + _CHUNK
        mask = None if flat_valid is None else flat_valid[start:stop]
        raw_a, raw_b = flat_a.raw[start:stop], flat_b.raw[start:stop]
        if same_type and _equal_numbers(raw_a, raw_b, scratch):
            if is_float and (flat_a.encoding or flat_a.size <= _COUNT_INFINITIES_UP_TO):
                _count_equal(total, flat_a.values(start, stop), mask, start)
        elif same_type and same_bytes(raw_a, raw_b):
            _count_equal(total, flat_a.values(start, stop), mask, start)
        else:
            if atol is None:
                atol = tolerance.atol + tolerance.scale * _largest(flat_a, flat_b)
            part_a, part_b = flat_a.values(start, stop), flat_b.values(start, stop)
            _measure_chunk(total, part_a, part_b, mask, start, atol, tolerance.rtol, scratch)
        if (start // _CHUNK + 1) % _CHUNKS_PER_RELEASE == 0:
            flat_a.release(stop)
            flat_b.release(stop)
    flat_a.release(flat_a.size)
    flat_b.release(flat_b.size)
    return total


_PROBE = 64


def _equal_numbers(a: np.ndarray, b: np.ndarray, scratch: _Scratch) -> bool:
    """All equal as numbers, which also says that there is no NaN; chunks that differ at once end at once."""
    if not (a[:_PROBE] == b[:_PROBE]).all():
        return False
    return bool(np.equal(a, b, out=scratch.get("equal", np.bool_, len(a))).all())


def same_bytes(a: np.ndarray, b: np.ndarray) -> bool:
    """Bit for bit equal: so a NaN equals itself."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.ndim == 1 and a[:_PROBE].tobytes() != b[:_PROBE].tobytes():
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


def give_back(values: Iterable[Any]) -> None:
    """Lets go of all pages of the files that these arrays are views of; they are read again where needed again."""
    mapped = {}
    for value in values:
        array = value.values if isinstance(value, Ragged) else value
        array = array.bits if isinstance(array, EncodedArray) else array
        found = _mapping(array) if isinstance(array, np.ndarray) and array.size else None
        if found is not None:
            mapped[id(found[0])] = found[0]
    for one in mapped.values():
        one.madvise(mmap.MADV_DONTNEED)


def _count_equal(total: Measured, values: np.ndarray, mask: Any, start: int) -> None:
    """Equal chunks still count their NaNs and infinities; the extremes tell that there are none."""
    if values.size == 0 or (np.isfinite(values.max()) and np.isfinite(values.min())):
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


class _Scratch:
    """Room for one chunk's intermediate values, used again and again: allocating costs more than computing."""

    def __init__(self) -> None:
        self._room: dict[tuple[str, Any], np.ndarray] = {}

    def get(self, name: str, kind: Any, count: int) -> np.ndarray:
        if (name, kind) not in self._room:
            self._room[name, kind] = np.empty(_CHUNK, kind)
        return self._room[name, kind][:count]


def _measure_chunk(
    total: Measured,
    a: np.ndarray,
    b: np.ndarray,
    mask: Any,
    start: int,
    atol: float,
    rtol: float,
    scratch: _Scratch,
) -> None:
    kind = np.float32 if a.dtype == b.dtype == np.float32 else np.float64
    # A double holds only 53 bits of an integer.
    exact = a != b if atol == rtol == 0 and a.dtype.kind in "iub" and b.dtype.kind in "iub" else None
    wide_a, wide_b = _real(a, kind), _real(b, kind)
    if mask is not None and not mask.all():
        use = mask != 0
        wide_a, wide_b = np.where(use, wide_a, 0), np.where(use, wide_b, 0)
        exact = None if exact is None else exact & use
    gap, size, other = (scratch.get(name, kind, len(a)) for name in ("gap", "size", "other"))
    with np.errstate(all="ignore"):
        np.abs(np.subtract(wide_a, wide_b, out=gap), out=gap)
        largest = float(gap.max(initial=0.0))
    clash = None
    if not math.isfinite(largest):
        clash = _count_odd(total, wide_a, wide_b, start)
        plain = np.isfinite(wide_a) & np.isfinite(wide_b)
        wide_a, wide_b = np.where(plain, wide_a, 0), np.where(plain, wide_b, 0)
        gap = np.abs(wide_a.astype(np.float64) - wide_b.astype(np.float64))
        largest = float(gap.max(initial=0.0))
    np.maximum(np.abs(wide_a, out=size), np.abs(wide_b, out=other), out=size)
    total.max_abs = max(total.max_abs, largest)
    total.sum_abs += _sum(gap)
    beyond = exact
    if beyond is None:
        np.add(np.multiply(size, kind(rtol), out=other), kind(atol), out=other)
        beyond = np.greater(gap, other, out=scratch.get("beyond", np.bool_, len(a)))
    if clash is not None:
        beyond = beyond | clash
    count = int(np.count_nonzero(beyond))
    # Where most of a chunk differs, a quarter of it tells how alike both sides are.
    part = slice(None) if count * 8 <= len(a) else slice(0, -(-len(a) // 4))
    _note_likeness(total, wide_a[part], wide_b[part], gap[part], size[part], len(a))
    if clash is not None and clash.any():
        gap[clash] = largest = math.inf
    if count:
        _note_beyond(total, a, b, gap, beyond, count, start, largest)


def _sum(values: np.ndarray) -> float:
    """Added column by column, which runs many times as fast as along a row."""
    whole = len(values) // _COLUMNS * _COLUMNS
    columns = np.add.reduce(values[:whole].reshape(-1, _COLUMNS), axis=0, dtype=values.dtype)
    return float(np.add.reduce(columns, dtype=np.float64)) + float(np.add.reduce(values[whole:], dtype=np.float64))


_COLUMNS = 512


def _note_likeness(
    total: Measured, a: np.ndarray, b: np.ndarray, gap: np.ndarray, size: np.ndarray, stands_for: int
) -> None:
    """Relative size and direction of the difference."""
    weight = stands_for / len(a)
    total.dot_ab += float(np.einsum("i,i", a, b)) * weight
    total.dot_aa += float(np.einsum("i,i", a, a)) * weight
    total.dot_bb += float(np.einsum("i,i", b, b)) * weight
    np.maximum(size, _TINY[size.dtype.type], out=size)
    total.max_rel = max(total.max_rel, float((gap / size).max(initial=0.0)))


_TINY: dict[Any, Any] = {kind: np.finfo(kind).tiny for kind in (np.float32, np.float64)}


def _real(array: np.ndarray, kind: Any) -> np.ndarray:
    """Complex numbers by their magnitude, everything else as it is."""
    values: np.ndarray = np.abs(array) if array.dtype.kind == "c" else array
    return values if kind is None else values.astype(kind, copy=False)


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
    beyond: np.ndarray,
    count: int,
    start: int,
    largest: float,
) -> None:
    total.beyond += count
    if total.first is None:
        total.first = start + int(np.argmax(beyond))
    if largest > total.worst_excess:
        worst = int(np.argmax(gap)) if count == len(gap) else int(np.argmax(np.where(beyond, gap, -1)))
        if float(gap[worst]) > total.worst_excess:
            total.worst, total.worst_excess = start + worst, float(gap[worst])
    is_crowded = count > len(beyond) // 8
    if is_crowded and (start // _CHUNK) % _CROWDED_EVERY:
        return
    stride = max(1, len(beyond) // _SAMPLED) if is_crowded else 1
    sampled = np.flatnonzero(beyond[::stride]) * stride
    sampled = sampled[np.isfinite(gap[sampled])]
    if len(sampled) == 0:
        return
    exponents = np.frexp(gap[sampled])[1] - 1 - LOWEST_EXPONENT
    weight = count / len(sampled) * (_CROWDED_EVERY if is_crowded else 1)
    bins = np.bincount(np.minimum(np.maximum(exponents, 0), BINS - 1), minlength=BINS) * weight
    total.histogram = bins if total.histogram is None else total.histogram + bins
    if a.dtype == b.dtype and a.dtype.kind == "f":
        spacing = np.spacing(np.maximum(np.abs(a[sampled]), np.abs(b[sampled])))
        total.max_ulp = max(total.max_ulp, float((gap[sampled] / spacing).max(initial=0.0)))


def _largest(*arrays: _Flat) -> float:
    """The largest finite magnitude in any of the arrays."""
    best = 0.0
    for array in arrays:
        for start in range(0, array.size, _CHUNK):
            part = _real(array.values(start, start + _CHUNK), np.float64 if array.raw.dtype.kind != "f" else None)
            high = max(float(part.max()), -float(part.min()))
            if not math.isfinite(high):
                high = float(np.abs(part[np.isfinite(part)]).max(initial=0.0))
            best = max(best, high)
    return best
