"""TRL's padded batches as whole sequences. B samples, R response tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rldbg.core import SampleId, prompt_hash
from rldbg.recording import Ragged


def row_numbers(batch: Mapping[str, Any], count: int) -> Any:
    """0, 1, 2 ... on the host: reading it back later waits for no device."""
    return batch["completion_ids"].new_empty(0, device="cpu").new_tensor(range(count))


def samples_by_content(inputs: Mapping[str, Any], step: int) -> list[SampleId]:
    """Names for the rows of a data set, which has none: by their tokens, counted where they are equal."""
    ids = inputs["input_ids"].cpu().numpy()
    held = inputs["attention_mask"].cpu().numpy() != 0 if "attention_mask" in inputs else np.ones(ids.shape, bool)
    hashes = [prompt_hash(row[kept].astype("<i8").tobytes()) for row, kept in zip(ids, held, strict=True)]
    return [SampleId(f"{hashed}#{step}", hashes[:number].count(hashed)) for number, hashed in enumerate(hashes)]


def distinct(names: Sequence[str]) -> list[str]:
    """Names of reward functions, of which several may be a `<lambda>`."""
    return [
        name if name not in names[:number] else f"{name} {names[:number].count(name) + 1}"
        for number, name in enumerate(names)
    ]


def joined(inputs: Mapping[str, Any]) -> Any:
    import torch

    return torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)


def drawn(batch: Mapping[str, Any]) -> np.ndarray:
    """Where a response token was sampled by the policy: everywhere but in what tools and environments said."""
    if "tool_mask" in batch:
        return np.asarray(batch["tool_mask"].cpu().numpy() != 0)
    return np.ones(tuple(batch["completion_ids"].shape), dtype=bool)


def on_sequences(response_br: np.ndarray, lengths: Sequence[tuple[int, int]], *, before: int, dtype: Any) -> Ragged:
    """Values of responses on the axis of whole sequences: `before` on the prompt, padding left out."""
    rows = [
        np.concatenate([np.full(prompt, before, dtype=dtype), row[: whole - prompt].astype(dtype)])
        for row, (prompt, whole) in zip(response_br, lengths, strict=True)
    ]
    return Ragged.from_rows(rows, dtype)
