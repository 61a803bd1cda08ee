"""Datums as padded tensors, in micro-batches that fit. Shapes in comments: b datums, t positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rldbg.training_service.datums import Datum

if TYPE_CHECKING:
    import torch

# One request is one micro-batch, unless its padded size would be more positions than this.
MICRO_BATCH_POSITIONS = 1 << 16


@dataclass(frozen=True, slots=True)
class Batch:
    """Datums as padded tensors: right padding, inputs 0 wherever the mask is."""

    datums: tuple[Datum, ...]
    input_ids: torch.Tensor  # [b, t]
    attention_mask: torch.Tensor
    targets: torch.Tensor
    mask: torch.Tensor
    trained: torch.Tensor
    inputs: Mapping[str, torch.Tensor]


def cut(datums: Sequence[Datum]) -> list[Sequence[Datum]]:
    """Micro-batches in order, each as many datums as fit."""
    parts: list[list[Datum]] = [[]]
    width = 0
    for datum in datums:
        width = max(width, len(datum.tokens))
        if parts[-1] and (len(parts[-1]) + 1) * width > MICRO_BATCH_POSITIONS:
            parts.append([])
            width = len(datum.tokens)
        parts[-1].append(datum)
    return list(parts)


def pad(datums: Sequence[Datum], device: Any) -> Batch:
    import torch

    width = max(len(datum.tokens) for datum in datums)

    def padded(rows: Sequence[np.ndarray], dtype: type) -> torch.Tensor:
        array: np.ndarray = np.zeros((len(rows), width), dtype=dtype)
        for number, row in enumerate(rows):
            array[number, : len(row)] = row
        return torch.from_numpy(array).to(device)

    names = set.intersection(*(set(datum.inputs) for datum in datums)) - {"target_tokens", "loss_mask", "mask"}
    return Batch(
        datums=tuple(datums),
        input_ids=padded([datum.tokens for datum in datums], np.int64),
        attention_mask=padded([np.ones(len(datum.tokens)) for datum in datums], np.int64),
        targets=padded([datum.targets for datum in datums], np.int64),
        mask=padded([datum.mask != 0 for datum in datums], np.float32),
        trained=padded([datum.trained for datum in datums], np.float32),
        # What a masked position holds must not reach the loss: even 0 times NaN is NaN in its gradient.
        inputs={
            name: padded([np.where(datum.mask != 0, datum.inputs[name], 0) for datum in datums], np.float32)
            for name in names
        },
    )
