"""Two arrays of the same size, measured in one pass of bounded memory: equality first, the rest only where needed.

NaN equals NaN and an infinity equals itself; a NaN against a number is beyond any tolerance. Chunks fit the cache, and
bytes that were mapped from a file are released once they have been read.

Exact always: equality, which elements are beyond tolerance and how many, the first and the worst of them, the largest
and the mean |a - b|, NaNs and infinities. Sampled where most of a chunk is beyond: relative size, cosine, percentiles
and ULPs.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from rldbg.analysis.flat_arrays import FlatArray, RecordedArray
from rldbg.analysis.measured import BINS, LOWEST_EXPONENT, Measured
from rldbg.analysis.tolerances import Tolerance

_CHUNK = 1 << 18
_CHUNKS_PER_RELEASE = 32
# Up to this size, infinities are also counted where both sides are equal; NaNs always are.
_COUNT_INFINITIES_UP_TO = 1 << 19
# Number of elements beyond tolerance per chunk that are sampled for percentiles and ULPs.
_SAMPLED = 512
# Where most elements of a chunk are beyond, only one in this many chunks is sampled.
_CROWDED_EVERY = 16
# Where most of a chunk is beyond: the fractions of chunk and chunks that give direction and relative size.
_LIKENESS_PART = 8
_LIKENESS_EVERY = 4


@contextmanager
def non_finite_numbers() -> Iterator[None]:
    """Suppresses numpy's warnings in code that handles NaNs and infinities itself."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


def measure(
    a: RecordedArray,
    b: RecordedArray,
    tolerance: Tolerance,
    valid: np.ndarray | None = None,
    allowance: np.ndarray | None = None,
) -> Measured:
    """Every element where `valid` is set (all when None). Places are flat indices into the arrays.

    `allowance` is added to the tolerance of each element.
    """
    flat_a, flat_b = FlatArray(a), FlatArray(b)
    flat_valid = None if valid is None else valid.reshape(-1)
    flat_allowance = None if allowance is None else np.broadcast_to(allowance.reshape(-1), (flat_a.size,))
    total = Measured(compared=flat_a.size if flat_valid is None else int(np.count_nonzero(flat_valid)))
    same_type = flat_a.raw.dtype == flat_b.raw.dtype and flat_a.encoding == flat_b.encoding
    is_float = flat_a.is_float or flat_b.is_float
    atol: float | None = None if tolerance.scale else tolerance.atol
    scratch = _Scratch()
    was_equal = True
    for start in range(0, flat_a.size, _CHUNK):
        stop = start + _CHUNK
        mask = None if flat_valid is None else flat_valid[start:stop]
        raw_a, raw_b = flat_a.raw[start:stop], flat_b.raw[start:stop]
        is_equal = same_type and _equal_numbers(raw_a, raw_b, scratch, probe=not was_equal)
        was_equal = is_equal
        if is_equal:
            if is_float and (flat_a.encoding or flat_a.size <= _COUNT_INFINITIES_UP_TO):
                _count_equal(total, flat_a.values(start, stop), mask, start)
        elif same_type and same_bytes(raw_a, raw_b):
            _count_equal(total, flat_a.values(start, stop), mask, start)
        else:
            if atol is None:
                atol = tolerance.atol + tolerance.scale * _largest(flat_a, flat_b)
            part_a, part_b = flat_a.values(start, stop), flat_b.values(start, stop)
            extra = None if flat_allowance is None else flat_allowance[start:stop]
            _measure_chunk(total, part_a, part_b, mask, start, atol, tolerance.rtol, scratch, extra)
        if (start // _CHUNK + 1) % _CHUNKS_PER_RELEASE == 0:
            flat_a.release(stop)
            flat_b.release(stop)
    flat_a.release(flat_a.size)
    flat_b.release(flat_b.size)
    return total


_PROBE = 64


def _equal_numbers(a: np.ndarray, b: np.ndarray, scratch: _Scratch, *, probe: bool) -> bool:
    """All equal as numbers, which also says that there is no NaN; with `probe` a chunk that differs at once ends at
    once, as the next one after a difference often does."""
    if probe and a[:_PROBE].tobytes() != b[:_PROBE].tobytes():
        return False
    equal = np.equal(a, b, out=scratch.get("equal", np.bool_, len(a)))
    return int(np.count_nonzero(equal)) == len(a)


def same_bytes(a: np.ndarray, b: np.ndarray) -> bool:
    """Bit for bit equal: so a NaN equals itself."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.ndim == 1 and a[:_PROBE].tobytes() != b[:_PROBE].tobytes():
        return False
    return bool(np.array_equal(_bits(np.ascontiguousarray(a)), _bits(np.ascontiguousarray(b))))


def _bits(flat: np.ndarray) -> np.ndarray:
    """A contiguous array, flat, in the widest integers that fit."""
    flat = flat.reshape(-1) if flat.ndim else flat
    if flat.dtype.kind == "i" or flat.ndim == 0:
        return flat
    if flat.nbytes % 8 == 0 and flat.ctypes.data % 8 == 0:
        return flat.view(np.uint64)
    return flat.view(np.uint8)


def _count_equal(total: Measured, values: np.ndarray, mask: Any, start: int) -> None:
    """Equal chunks still count their NaNs and infinities; the extremes show whether there are any."""
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
    """Room for one chunk's intermediate values, reused: allocating costs more than computing."""

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
    allowance: np.ndarray | None,
) -> None:
    kind = np.float32 if a.dtype == b.dtype == np.float32 else np.float64
    # A double holds only 53 bits of an integer.
    exact = a != b if atol == rtol == 0 and a.dtype.kind in "iub" and b.dtype.kind in "iub" else None
    wide_a, wide_b = _real(a, kind), _real(b, kind)
    use = None if mask is None or mask.all() else mask.astype(np.bool_, copy=False)
    if use is not None and exact is not None:
        exact &= use
    gap = scratch.get("gap", kind, len(a))
    with np.errstate(all="ignore"):
        np.abs(np.subtract(wide_a, wide_b, out=gap), out=gap)
        if use is not None:
            np.multiply(gap, use, out=gap)
        largest = float(gap.max(initial=0.0))
    clash = None
    if not math.isfinite(largest):
        wide_a, wide_b, use = _where(use, wide_a), _where(use, wide_b), None
        clash = _count_odd(total, wide_a, wide_b, start)
        plain = np.isfinite(wide_a) & np.isfinite(wide_b)
        wide_a, wide_b = np.where(plain, wide_a, 0), np.where(plain, wide_b, 0)
        gap = np.abs(wide_a.astype(np.float64) - wide_b.astype(np.float64))
        largest = float(gap.max(initial=0.0))
    total.max_abs = max(total.max_abs, largest)
    total.sum_abs += _sum(gap)
    beyond, count = _beyond(wide_a, wide_b, gap, largest, atol, rtol, scratch) if exact is None else (exact, -1)
    if allowance is not None and count:
        sizes = np.maximum(np.abs(wide_a), np.abs(wide_b))
        excused = beyond & (gap <= atol + rtol * sizes + allowance)
        total.allowed += int(np.count_nonzero(excused))
        beyond, count = beyond & ~excused, -1
    if clash is not None:
        beyond, count = beyond | clash, -1
    count = int(np.count_nonzero(beyond)) if count < 0 else count
    is_crowded = count * 8 > len(a)
    if not is_crowded or (start // _CHUNK) % _LIKENESS_EVERY == 0:
        part = slice(0, -(-len(a) // _LIKENESS_PART) if is_crowded else None)
        stands_for = len(a) * (_LIKENESS_EVERY if is_crowded else 1)
        used = None if use is None else use[part]
        _note_likeness(total, _where(used, wide_a[part]), _where(used, wide_b[part]), gap[part], stands_for)
    if clash is not None and clash.any():
        gap[clash] = largest = math.inf
    if count:
        _note_beyond(total, a, b, gap, beyond, count, start, largest)


def _beyond(
    a: np.ndarray, b: np.ndarray, gap: np.ndarray, largest: float, atol: float, rtol: float, scratch: _Scratch
) -> tuple[np.ndarray, int]:
    """Where gap > atol + rtol * max(|a|, |b|), and how often.

    A gap above the tolerance of a number larger than any here is beyond, and one up to atol is within: the tolerance
    of an element is only worked out where neither is so.
    """
    kind = gap.dtype.type
    found = scratch.get("beyond", np.bool_, len(gap))
    if largest <= atol:
        found[:] = False
        return found, 0
    # With a margin for rounding.
    bound = atol + 1.01 * rtol * (max(float(a.max()), -float(a.min())) + largest) if rtol else atol
    np.greater(gap, kind(bound), out=found)
    count = int(np.count_nonzero(found))
    if rtol and count < len(gap):
        maybe = ~found if count * 8 > len(gap) * 7 else (gap > kind(atol)) & ~found
        unsure = np.flatnonzero(maybe)
        sizes = np.maximum(np.abs(a[unsure]), np.abs(b[unsure]))
        found[unsure] = gap[unsure] > kind(atol) + sizes * kind(rtol)
        count += int(np.count_nonzero(found[unsure]))
    return found, count


def _where(use: np.ndarray | None, values: np.ndarray) -> np.ndarray:
    """Zero where a value does not count."""
    return values if use is None else np.where(use, values, 0)


def _sum(values: np.ndarray) -> float:
    """Added column by column, which runs many times as fast as along a row."""
    whole = len(values) // _COLUMNS * _COLUMNS
    columns = np.add.reduce(values[:whole].reshape(-1, _COLUMNS), axis=0, dtype=values.dtype)
    return float(np.add.reduce(columns, dtype=np.float64)) + float(np.add.reduce(values[whole:], dtype=np.float64))


_COLUMNS = 512


def _note_likeness(total: Measured, a: np.ndarray, b: np.ndarray, gap: np.ndarray, stands_for: int) -> None:
    """Relative size and direction of the difference."""
    weight = stands_for / len(a)
    total.dot_ab += float(np.einsum("i,i", a, b)) * weight
    total.dot_aa += float(np.einsum("i,i", a, a)) * weight
    total.dot_bb += float(np.einsum("i,i", b, b)) * weight
    size = np.maximum(np.abs(a), np.abs(b))
    np.maximum(size, _TINY[size.dtype.type], out=size)
    total.max_rel = max(total.max_rel, float((gap / size).max(initial=0.0)))


# The smallest normal numbers; asking numpy for them takes longer than comparing a megabyte.
_TINY: dict[Any, Any] = {np.float32: np.float32(2.0**-126), np.float64: np.float64(2.0**-1022)}


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
        worst = int(np.argmax(gap))
        if not beyond[worst]:
            worst = int(np.argmax(np.where(beyond, gap, -1)))
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


def _largest(*arrays: FlatArray) -> float:
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
