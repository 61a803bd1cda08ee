"""One spelling for numpy and torch: every function of this package takes arrays of either and returns the same.

Shapes in names: b samples, t tokens, r response tokens, v vocabulary (`rewards_b`, `mask_bt`).
"""

from typing import Any

import numpy as np

# A numpy array or a torch tensor; all arguments of one call are of the same library.
Array = Any


def is_torch(array: Array) -> bool:
    """Whether this is a torch tensor, found without importing torch."""
    return type(array).__module__.partition(".")[0] == "torch"


def library(array: Array) -> Any:
    """The module whose functions work on this array: torch or numpy."""
    if is_torch(array):
        import torch

        return torch
    return np


def as_float64(array: Array) -> Array:
    """The values in double precision, for sums whose result must not depend on the order of the samples."""
    return array.double() if is_torch(array) else np.asarray(array, dtype=np.float64)


def as_type_of(array: Array, like: Array) -> Array:
    """The values in the precision of another array."""
    return array.to(like.dtype) if is_torch(like) else array.astype(np.asarray(like).dtype)


def masked(values: Array, mask: Array) -> Array:
    """The values where the mask is set and exactly 0 elsewhere, even where padding holds NaN or Inf."""
    xp = library(values)
    return xp.where(mask != 0, values, xp.zeros_like(values))
