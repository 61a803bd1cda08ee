"""What comparing arrays found, as numbers that add up."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

# The histogram of |a - b| has one bin per power of two, from 2**-64 (bin 0) on.
BINS = 128
LOWEST_EXPONENT = -64


@dataclass(slots=True)
class Measured:
    """What was found over all elements seen so far. Adding two gives what both saw."""

    compared: int = 0
    beyond: int = 0
    # Beyond their own tolerance, and within what upstream differences allow.
    allowed: int = 0
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
        """Totals of both; places are left to the caller."""
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


_SUMS = ("compared", "beyond", "allowed", "sum_abs", "dot_ab", "dot_aa", "dot_bb", "nan_a", "nan_b", "inf_a", "inf_b")
_MAXIMA = ("max_abs", "max_rel", "max_ulp")
