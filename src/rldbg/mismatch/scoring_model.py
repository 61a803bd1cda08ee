"""The trainer's model on single samples, with one factor changed at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rldbg.weights import LoraAdapter

ModelInputs = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ScoredRow:
    """A sample to score: its tokens, the positions whose log probs are wanted, and the samples that the trainer's
    micro-batch has before it."""

    tokens: np.ndarray
    positions: np.ndarray
    before: Sequence[np.ndarray] = ()


InputChange = Callable[[ModelInputs, ScoredRow], ModelInputs]


class ScoringModel:
    """Logits [tokens, vocabulary] before each wanted position, over all rows; each row is computed alone."""

    def __init__(
        self, model: Any, rows: Sequence[ScoredRow], *, pad_id: int, adapter: LoraAdapter | None = None
    ) -> None:
        """With an adapter, `model` is its base; the adapter is merged into it."""
        self.model = model
        self.rows = rows
        self.pad_id = pad_id
        self.adapter = adapter
        self.base_parameters: dict[str, Any] = {}
        if adapter is not None:
            known = dict(model.named_parameters())
            self.base_parameters = {name: known[name].detach().clone() for name in adapter.parts if name in known}
            self._set(adapter.merged(self.base_parameters))
        self.targets = np.concatenate([row.tokens[row.positions] for row in rows])

    def logits(self, change: InputChange = lambda inputs, _: inputs) -> np.ndarray:
        """The logits with `change` applied to each row's inputs; columns that it adds before a row are skipped."""
        import torch

        parts = []
        with torch.no_grad():
            for row in self.rows:
                ids = torch.from_numpy(np.array(row.tokens, dtype=np.int64))[None]
                inputs = change(
                    {
                        "input_ids": ids,
                        "attention_mask": torch.ones_like(ids),
                        "position_ids": torch.arange(ids.shape[1])[None],
                    },
                    row,
                )
                extra = inputs["input_ids"].shape[1] - len(row.tokens)
                output = self.model(**inputs, use_cache=False).logits[0].float()
                parts.append(output[torch.from_numpy(row.positions) - 1 + extra].numpy().astype(np.float64))
        return np.concatenate(parts)

    def log_probs(self, logits: np.ndarray, temperature: float) -> np.ndarray:
        return log_probs_of(logits / temperature, self.targets)

    @contextmanager
    def with_parameters(self, parameters: Mapping[str, Any]) -> Iterator[None]:
        """Some parameters replaced for as long as the context lasts."""
        own = {name: value for name, value in self.model.named_parameters() if name in parameters}
        kept = {name: value.detach().clone() for name, value in own.items()}
        self._set(parameters)
        try:
            yield
        finally:
            self._set(kept)

    def _set(self, parameters: Mapping[str, Any]) -> None:
        import torch

        with torch.no_grad():
            for name, value in self.model.named_parameters():
                if name in parameters:
                    value.copy_(parameters[name])

    def in_dtype(self, dtype: str) -> ScoringModel:
        import torch

        return ScoringModel(deepcopy(self.model).to(getattr(torch, dtype)), self.rows, pad_id=self.pad_id)

    def rounded_parameters(self, dtype: str) -> dict[str, Any]:
        """The parameters after one trip through a coarser dtype, as quantised weights are."""
        import torch

        coarse = getattr(torch, dtype)
        return {name: value.detach().to(coarse).to(value.dtype) for name, value in self.model.named_parameters()}


def log_probs_of(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    found: np.ndarray = shifted[np.arange(len(targets)), targets] - np.log(np.exp(shifted).sum(-1))
    return found


def filtered_log_probs(logits: np.ndarray, targets: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Renormalised over the `kept` likeliest tokens of each row; a target is always among them."""
    ordered = np.sort(logits, axis=-1)[:, ::-1]
    own = logits[np.arange(len(targets)), targets]
    rank = (ordered > own[:, None]).sum(-1) + 1
    count = np.maximum(kept, rank)
    shifted = np.exp(ordered - ordered[:, :1]).cumsum(-1)
    found: np.ndarray = own - ordered[:, 0] - np.log(shifted[np.arange(len(targets)), count - 1])
    return found


def top_p_counts(logits: np.ndarray, top_p: float) -> np.ndarray:
    """How many of the likeliest tokens reach a total probability."""
    ordered = np.sort(logits, axis=-1)[:, ::-1]
    weights = np.exp(ordered - ordered[:, :1])
    reached = (weights / weights.sum(-1, keepdims=True)).cumsum(-1)
    counts: np.ndarray = np.minimum((reached < top_p).sum(-1) + 1, logits.shape[-1])
    return counts


def left_padding(pad_id: int, *, attended: bool) -> InputChange:
    """Two columns of padding before the row, which the mask hides or not."""

    def change(inputs: ModelInputs, _row: ScoredRow) -> ModelInputs:
        import torch

        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        pads = torch.full((1, 2), pad_id, dtype=ids.dtype)
        seen = torch.full((1, 2), int(attended), dtype=mask.dtype)
        positions = (
            torch.arange(ids.shape[1] + 2)[None] if attended else torch.cat([pads * 0, inputs["position_ids"]], 1)
        )
        return {
            "input_ids": torch.cat([pads, ids], 1),
            "attention_mask": torch.cat([seen, mask], 1),
            "position_ids": positions,
        }

    return change


def restarted_positions(first: int) -> InputChange:
    """Position ids that start again at a column, as a response scored without its prompt has them."""

    def change(inputs: ModelInputs, _row: ScoredRow) -> ModelInputs:
        positions = inputs["position_ids"].clone()
        positions[:, first:] -= first
        return {**inputs, "position_ids": positions}

    return change


def without_first_token(inputs: ModelInputs, _row: ScoredRow) -> ModelInputs:
    """The first token is not attended to: a BOS token that one side adds, or a prompt cut on the left."""
    mask = inputs["attention_mask"].clone()
    mask[:, 0] = 0
    return {**inputs, "attention_mask": mask, "position_ids": (inputs["position_ids"] - 1).clamp(min=0)}


def packed(count: int | None, *, restart: bool) -> InputChange:
    """Behind the last `count` of the samples before it (None: all) in one row, all of it attended to."""

    def change(inputs: ModelInputs, row: ScoredRow) -> ModelInputs:
        import torch

        chosen = row.before if count is None else row.before[-count:]
        if not chosen:
            return inputs
        ids = torch.cat([torch.from_numpy(np.array(tokens, dtype=np.int64)) for tokens in chosen])[None]
        each = [torch.arange(len(tokens)) for tokens in chosen]
        whole = torch.cat([ids, inputs["input_ids"]], 1)
        positions = torch.cat([*each, inputs["position_ids"][0]])[None]
        return {
            "input_ids": whole,
            "attention_mask": torch.ones_like(whole),
            "position_ids": positions if restart else torch.arange(whole.shape[1])[None],
        }

    return change
