"""Outcomes of episodes as one padded batch, in the order of the data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rldbg.core import SampleId
from rldbg.inference.workflows.completions import Trained
from rldbg.inference.workflows.outcome import Outcome


def samples_of(outcomes: Sequence[Outcome]) -> list[tuple[SampleId, Trained]]:
    """Each row with its id. Where episodes give several rows, run ids are spread: run * most rows + row."""
    width = max((len(outcome.rows) for outcome in outcomes), default=1) or 1
    return [
        (SampleId(outcome.spec.row.group_id, outcome.spec.run * width + place), row)
        for outcome in outcomes
        for place, row in enumerate(outcome.rows)
    ]


def padded_batch(rows: Sequence[Trained]) -> tuple[dict[str, np.ndarray], list[str]]:
    """The tensors of a batch by AReaL's names, padded on the right; and the names of what could not be kept."""
    lengths = np.array([len(row) for row in rows])
    tensors: dict[str, np.ndarray] = {
        "input_ids": _padded([row.tokens for row in rows], 0, np.int32),
        "loss_mask": _padded([row.loss_mask for row in rows], 0, np.int32),
        "logprobs": _padded([row.logprobs for row in rows], 0.0, np.float32),
        "versions": _padded([row.versions for row in rows], -1, np.int32),
        "attention_mask": np.arange(lengths.max())[None, :] < lengths[:, None],
        "rewards": np.array([row.reward for row in rows], np.float32),
    }
    dropped = []
    for name in dict.fromkeys(name for row in rows for name in row.extra):
        values = [row.extra.get(name) for row in rows]
        column = None if name in tensors else _extra(values, lengths)
        if column is None:
            dropped.append(name)
        else:
            tensors[name] = column
    return tensors, dropped


def _padded(rows: Sequence[np.ndarray], fill: float, dtype: Any) -> np.ndarray:
    padded = np.full((len(rows), max(len(row) for row in rows)), fill, dtype)
    for number, row in enumerate(rows):
        padded[number, : len(row)] = row
    return padded


def _extra(values: Sequence[Any], lengths: np.ndarray) -> np.ndarray | None:
    """A workflow's own column, if every row has it in the same form: one value, or one per token."""
    arrays = [np.asarray(value) for value in values if value is not None]
    if len(arrays) != len(lengths):
        return None
    if all(array.ndim == 0 for array in arrays):
        return np.stack(arrays)
    if all(array.shape == (length,) for array, length in zip(arrays, lengths, strict=True)):
        return _padded(arrays, 0, np.result_type(*{array.dtype for array in arrays}))
    return None
