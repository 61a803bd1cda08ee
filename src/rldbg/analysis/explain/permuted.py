"""Rows assigned to the wrong samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rldbg.analysis.explain.evidence import largest


def permutation(a: np.ndarray, b: np.ndarray, noise: float) -> str | None:
    """How B's values of the samples are A's in a different order; None when they are not.

    A rotation or reversal is recognised by itself; any other order only where values differ enough to prove it.
    """
    if len(a) < 4 or largest(a - b) <= noise or largest(np.sort(a) - np.sort(b)) > noise:
        return None
    for shift in range(1, len(a)):
        if largest(np.roll(a, shift) - b) <= noise:
            return f"rotated by {shift if shift <= len(a) // 2 else shift - len(a)}"
    if largest(a[::-1] - b) <= noise:
        return "reversed"
    for size in (size for size in range(2, len(a) // 2 + 1) if len(a) % size == 0):
        if largest(a.reshape(-1, size)[::-1].ravel() - b) <= noise:
            return f"with its parts of {size} samples in the opposite order"
    return "in a different order" if len(np.unique(np.round(a, 6))) > len(a) // 2 else None


def permuted_rows(a: Sequence[np.ndarray], b: Sequence[np.ndarray], noise: float) -> int:
    """How many rows of B are another sample's of A, as far as they overlap; 0 unless that holds for all that differ."""
    moved = 0
    for row, mine in zip(a, b, strict=True):
        if _overlap(row, mine, noise):
            continue
        if not any(other is not row and len(other) > 1 and _overlap(other, mine, noise) for other in a):
            return 0
        moved += 1
    return moved


def _overlap(a: np.ndarray, b: np.ndarray, noise: float) -> bool:
    """Equal up to the shorter one's end; what is beyond it may only be padding."""
    length = min(len(a), len(b))
    return length > 0 and largest(a[:length] - b[:length]) <= noise and not np.any(b[length:])
