"""Saved batches for losses."""

import numpy as np

from rldbg.core import SampleId
from rldbg.recording import write_batch


def save_batch(file, *, rewards=None, logprobs=True, n=6):
    """A batch of three groups, rows of different lengths, and a tool's token inside one response."""
    numbers = np.random.default_rng(0)
    length, prompt = numbers.integers(6, 12, n), 3
    columns = np.arange(int(length.max()))[None, :]
    real = columns < length[:, None]
    mask = real & (columns >= prompt)
    mask[0, 4] = False
    drawn = -numbers.random(real.shape) - 0.3 if logprobs else np.nan
    write_batch(
        file,
        {
            "input_ids": np.where(real, numbers.integers(2, 40, real.shape), 0).astype(np.int32),
            "loss_mask": mask.astype(np.int32),
            "attention_mask": real,
            "logprobs": np.where(mask, drawn, 0.0).astype(np.float32),
            "versions": np.where(mask, 0, -1).astype(np.int32),
            "rewards": (np.arange(n) % 2 if rewards is None else rewards).astype(np.float32),
        },
        [SampleId(f"g{row // 2}", row % 2) for row in range(n)],
    )
