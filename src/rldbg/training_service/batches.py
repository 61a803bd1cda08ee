"""Datums as padded tensors, in micro-batches that fit, laid out as the trainer lays out its trajectories: prompts end
in the same column (padded on the left), responses begin in the next. So the same numbers come out of the same
operations, and a remote step agrees with a self-hosted one bit for bit.

Shapes in comments: b datums, t = p + r columns, p of them for prompts and r for responses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rldbg.training_service.datums import Datum

# Without a micro_batch_size a request is one micro-batch, unless that would have more padded positions than this.
MICRO_BATCH_POSITIONS = 1 << 16


@dataclass(frozen=True, slots=True)
class PaddedBatch:
    """Datums as padded tensors. Values of a token are at the position that predicts it; inputs are 0 wherever the mask
    is."""

    datums: tuple[Datum, ...]
    prompts: tuple[int, ...]  # how many tokens of each datum stand in the prompt's columns
    input_ids: torch.Tensor  # [b, t], the last target included
    attention_mask: torch.Tensor  # [b, t]
    position_ids: torch.Tensor  # [b, t]
    targets: torch.Tensor  # [b, t - 1]
    mask: torch.Tensor  # [b, r]
    trained: torch.Tensor  # [b, r]
    inputs: Mapping[str, torch.Tensor]  # [b, r] each

    @property
    def prompt_width(self) -> int:
        return max(self.prompts)


def cut(datums: Sequence[Datum], micro_batch_size: int | None) -> list[Sequence[Datum]]:
    """Micro-batches in order: of the size asked for, else as many datums as fit."""
    if micro_batch_size is not None:
        return [datums[start : start + micro_batch_size] for start in range(0, len(datums), micro_batch_size)]
    parts: list[list[Datum]] = [[]]
    width = 0
    for datum in datums:
        width = max(width, len(datum.tokens))
        if parts[-1] and (len(parts[-1]) + 1) * width > MICRO_BATCH_POSITIONS:
            parts.append([])
            width = len(datum.tokens)
        parts[-1].append(datum)
    return list(parts)


def pad(datums: Sequence[Datum], device: Any) -> PaddedBatch:
    prompts = tuple(datum.leading for datum in datums)
    prompt_width = max(prompts)
    response_width = max(len(datum.tokens) + 1 - prompt for datum, prompt in zip(datums, prompts, strict=True))

    def padded(rows: Sequence[np.ndarray], width: int, dtype: type, *, response: bool = False) -> torch.Tensor:
        """Rows with their first value under the datum's first token, or the response part of them alone."""
        array: np.ndarray = np.zeros((len(rows), width), dtype=dtype)
        for number, (row, prompt) in enumerate(zip(rows, prompts, strict=True)):
            values, start = (row[prompt - 1 :], 0) if response else (row, prompt_width - prompt)
            array[number, start : start + len(values)] = values
        return torch.from_numpy(array).to(device)

    def of_response(rows: Sequence[np.ndarray]) -> torch.Tensor:
        return padded(rows, response_width, np.float32, response=True)

    width = prompt_width + response_width
    attention_mask = padded([np.ones(len(datum.tokens) + 1) for datum in datums], width, np.int64)
    names = set.intersection(*(set(datum.inputs) for datum in datums)) - {"target_tokens", "loss_mask", "mask"}
    return PaddedBatch(
        datums=tuple(datums),
        prompts=prompts,
        input_ids=padded([datum.sequence for datum in datums], width, np.int64),
        attention_mask=attention_mask,
        position_ids=(attention_mask.cumsum(1) - 1).clamp(min=0),
        targets=padded([datum.targets for datum in datums], width - 1, np.int64),
        mask=of_response([datum.mask != 0 for datum in datums]),
        trained=of_response([datum.trained for datum in datums]),
        # What a masked position holds must not reach the loss: even 0 times NaN is NaN in its gradient.
        inputs={
            name: of_response([np.where(datum.mask != 0, datum.inputs[name], 0) for datum in datums]) for name in names
        },
    )
