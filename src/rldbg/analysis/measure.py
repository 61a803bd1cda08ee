"""Two arrays of the same shape, measured in one pass of bounded memory: equality first, the rest only where needed.

NaN equals NaN and an infinity equals itself; a NaN against a number is beyond any tolerance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rldbg.analysis.tolerances import Tolerance

_CHUNK = 1 << 18


@dataclass(slots=True)
class Measured:
    """What was found over all elements seen so far. Adding two gives what both saw."""

    compared: int = 0
    beyond: int = 0
    max_abs: float = 0.0
    max_rel: float = 0.0
    sum_abs: float = 0.0
    dot_ab: float = 0.0
    dot_aa: float = 0.0
    dot_bb: float = 0.0
    nan_a: int = 0
    nan_b: int = 0
    inf_a: int = 0
    inf_b: int = 0
    first: int | None = field(default=None)
    worst: int | None = field(default=None)
    worst_excess: float = -math.inf

    @property
    def mean_abs(self) -> float:
        return self.sum_abs / self.compared if self.compared else 0.0

    @property
    def cosine(self) -> float:
        norm = math.sqrt(self.dot_aa) * math.sqrt(self.dot_bb)
        return self.dot_ab / norm if norm > 0 else 1.0

    def add(self, other: Measured) -> None:
        """Totals of both; places stay the caller's affair."""
        for name in ("compared", "beyond", "sum_abs", "dot_ab", "dot_aa", "dot_bb", "nan_a", "nan_b", "inf_a", "inf_b"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.max_abs = max(self.max_abs, other.max_abs)
        self.max_rel = max(self.max_rel, other.max_rel)


def same_bytes(a: np.ndarray, b: np.ndarray) -> bool:
    """Bit for bit equal, found at the speed of reading both."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not (a.flags.c_contiguous and b.flags.c_contiguous):
        return bool(np.array_equal(_bits(np.ascontiguousarray(a)), _bits(np.ascontiguousarray(b))))
    flat_a, flat_b = _bits(a), _bits(b)
    return all(
        np.array_equal(flat_a[start : start + _CHUNK], flat_b[start : start + _CHUNK])
        for start in range(0, flat_a.size, _CHUNK)
    )


def _bits(array: np.ndarray) -> np.ndarray:
    """The bytes of a contiguous array in the widest integers that fit."""
    flat = array.reshape(-1).view(np.uint8)
    return flat.view(np.uint64) if flat.size % 8 == 0 and flat.ctypes.data % 8 == 0 else flat


def measure(a: np.ndarray, b: np.ndarray, tolerance: Tolerance, valid: np.ndarray | None = None) -> Measured:
    """Every element where `valid` is set (all when None). Places are flat indices into the arrays."""
    total = Measured(compared=int(a.size if valid is None else np.count_nonzero(valid)))
    if same_bytes(a, b):
        return total
    flat_a, flat_b = a.reshape(-1), b.reshape(-1)
    flat_valid = None if valid is None else valid.reshape(-1)
    atol = tolerance.atol + (tolerance.scale * _largest(flat_a, flat_b) if tolerance.scale else 0.0)
    for start in range(0, flat_a.size, _CHUNK):
        part_a, part_b = flat_a[start : start + _CHUNK], flat_b[start : start + _CHUNK]
        if np.array_equal(part_a, part_b):
            continue
        mask = None if flat_valid is None else flat_valid[start : start + _CHUNK]
        _measure_chunk(total, part_a, part_b, mask, start, atol, tolerance.rtol)
    return total


def _measure_chunk(
    total: Measured, a: np.ndarray, b: np.ndarray, valid: Any, start: int, atol: float, rtol: float
) -> None:
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    use = np.ones(a.shape, dtype=bool) if valid is None else valid != 0
    nan_a, nan_b = np.isnan(wide_a) & use, np.isnan(wide_b) & use
    inf_a, inf_b = np.isinf(wide_a) & use, np.isinf(wide_b) & use
    total.nan_a += int(nan_a.sum())
    total.nan_b += int(nan_b.sum())
    total.inf_a += int(inf_a.sum())
    total.inf_b += int(inf_b.sum())
    odd = nan_a | nan_b | inf_a | inf_b
    clash = odd & ~((nan_a & nan_b) | (wide_a == wide_b))
    plain = use & ~odd
    wide_a, wide_b = np.where(plain, wide_a, 0.0), np.where(plain, wide_b, 0.0)
    gap = np.abs(wide_a - wide_b)
    size = np.maximum(np.abs(wide_a), np.abs(wide_b))
    excess = gap - (atol + rtol * size)
    excess[clash] = np.inf
    beyond = (excess > 0) & use
    total.sum_abs += float(gap.sum())
    total.max_abs = max(total.max_abs, float(gap.max(initial=0.0)))
    with np.errstate(invalid="ignore", divide="ignore"):
        total.max_rel = max(total.max_rel, float(np.where(size > 0, gap / size, 0.0).max(initial=0.0)))
    total.dot_ab += float(wide_a @ wide_b)
    total.dot_aa += float(wide_a @ wide_a)
    total.dot_bb += float(wide_b @ wide_b)
    count = int(np.count_nonzero(beyond))
    if not count:
        return
    total.beyond += count
    if total.first is None:
        total.first = start + int(np.argmax(beyond))
    worst = int(np.argmax(np.where(beyond, excess, -np.inf)))
    if float(excess[worst]) > total.worst_excess:
        total.worst, total.worst_excess = start + worst, float(excess[worst])


def _largest(a: np.ndarray, b: np.ndarray) -> float:
    """The largest finite magnitude in either array."""
    best = 0.0
    for array in (a, b):
        for start in range(0, array.size, _CHUNK):
            part = np.abs(array[start : start + _CHUNK].astype(np.float64))
            best = max(best, float(part[np.isfinite(part)].max(initial=0.0)))
    return best
