"""Random numbers that belong to a token, not to a generator's history.

A token's number follows from (seed, step, group_id, run_id, position) alone. Batches may be cut, merged, repeated or
come in any order: the same token is always drawn with the same number.
"""

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from rldbg.core import SampleId

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def sample_key(seed: int, step: int, sample: SampleId) -> int:
    """64 bits that name one sample of one step of one run."""
    text = f"{seed}\0{step}\0{sample.group_id}\0{sample.run_id}".encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")


def uniform(keys: Sequence[int], positions: Sequence[int]) -> np.ndarray:
    """One number in [0, 1) for each (key, position): splitmix64 of the key advanced by the position."""
    state = np.asarray(keys, dtype=np.uint64) + _GOLDEN * (np.asarray(positions, dtype=np.uint64) + np.uint64(1))
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    state = state ^ (state >> np.uint64(31))
    numbers: np.ndarray = (state >> np.uint64(11)).astype(np.float64) / 2.0**53
    return numbers
