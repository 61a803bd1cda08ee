"""How much an optimizer may amplify a gradient difference: a bound per element over the updates of one tensor.

Every optimizer in use moves an element by rate * m / (s + eps), with m a weighted mean and s a root mean square of its
gradients (Adam, AdamW), or by rate * m (SGD). Gradients that differ by at most d move m by at most d and, by the
triangle inequality, s by at most d. So the step differs by at most rate * (1 + |m| / s) * d / s, and never by more
than two whole steps. docs/tolerances.md has the derivation.
"""

from __future__ import annotations

import numpy as np

# A weighting of past gradients lies between these two: all alike, and the last ten or so (beta2 from 0.9 on).
_SHORT_MEMORY = 0.9


class OptimizerSensitivity:
    """One tensor of both sides, update after update."""

    def __init__(self) -> None:
        # The largest gradient difference so far: moments keep it.
        self._difference: np.ndarray | None = None
        self._sums: list[np.ndarray] = []
        self._recent: list[np.ndarray] = []
        self._count = 0
        self._weight = 0.0

    def see(self, a: np.ndarray, b: np.ndarray, norm_gap: float = 0.0) -> None:
        """The gradients of one update, before the optimizer used them.

        `norm_gap` is the relative difference of the norms of the whole gradients: clipping divides every element by it.
        """
        gap = np.abs(a - b)
        if norm_gap > 0:
            gap += norm_gap * np.maximum(np.abs(a), np.abs(b))
        squares = [np.square(a), np.square(b)]
        self._count += 1
        self._weight = _SHORT_MEMORY * self._weight + 1
        if self._difference is None:
            self._difference, self._sums, self._recent = gap, squares, [part.copy() for part in squares]
            return
        np.maximum(self._difference, gap, out=self._difference)
        for total, recent, square in zip(self._sums, self._recent, squares, strict=True):
            total += square
            recent *= _SHORT_MEMORY
            recent += square

    @property
    def size(self) -> np.ndarray | None:
        """The smallest root mean square that any weighting of either side's gradients gives; None without gradients."""
        if self._difference is None:
            return None
        means = [total / self._count for total in self._sums] + [part / self._weight for part in self._recent]
        size: np.ndarray = np.sqrt(np.minimum.reduce(means))
        return size

    @property
    def weight(self) -> float:
        """How much the tensor counts: the root mean square of its gradients; 1 without gradients."""
        size = self.size
        if size is None:
            return 1.0
        kept = size[np.isfinite(size)]
        return float(np.sqrt(np.mean(np.square(kept)))) if kept.size else 0.0

    @property
    def error(self) -> float:
        """By what share of their size gradients usually differ; 0 without gradients."""
        size = self.size
        if size is None or self._difference is None:
            return 0.0
        kept = (size > 0) & np.isfinite(size)
        return min(1.0, float(np.median(self._difference[kept] / size[kept]))) if kept.any() else 0.0

    def relative(self) -> np.ndarray | None:
        """By how many steps the next one may differ, at most 2; 0 where the gradients were bit for bit equal."""
        size = self.size
        if size is None or self._difference is None:
            return None
        share = np.divide(2 * self._difference, size, out=np.full_like(size, 2.0), where=size > 0)
        bounded: np.ndarray = np.where(self._difference > 0, np.minimum(share, 2.0), 0.0)
        return bounded
