"""The two forward passes of the engine: prompts of new sequences, and one more token of all that run.

Shapes in names: b rows, t tokens, v vocabulary.
"""

import inspect
from collections.abc import Sequence as Rows
from typing import Any

import numpy as np

from rldbg.inference.embedded.slot_cache import SlotCache


class ForwardPasses:
    """A model with its cache. Masked places have weight zero exactly: what others compute never enters a row."""

    def __init__(self, model: Any, *, pad_id: int) -> None:
        self._model = model
        self._pad_id = pad_id
        self._keeps = "logits_to_keep" in inspect.signature(model.forward).parameters
        parameter = next(model.parameters())
        self._device, self._dtype = parameter.device, parameter.dtype
        self.cache = SlotCache()
        self.calls = 0

    def prefill(self, prompts: Rows[Rows[int]], *, all_logits: bool) -> tuple[Any, Any]:
        """Adds a row for each prompt. The logits after each prompt [b, v], and with `all_logits` all of them."""
        import torch

        lengths = [len(prompt) for prompt in prompts]
        width = max(lengths)
        tokens = np.full((len(prompts), width), self._pad_id, dtype=np.int64)
        for row, prompt in enumerate(prompts):
            tokens[row, : len(prompt)] = prompt
        self.cache.begin_prefill(lengths)
        hidden = torch.ones((width, width), dtype=torch.bool, device=self._device).triu(1)
        last = torch.tensor(lengths, device=self._device) - 1
        kept, place = torch.unique(last, return_inverse=True)
        logits_btv = self._call(
            torch.from_numpy(tokens).to(self._device),
            torch.arange(width, device=self._device)[None].expand(len(prompts), width),
            self._mask(hidden)[None, None],
            None if all_logits else kept,
        )
        rows = torch.arange(len(prompts), device=self._device)
        if all_logits or not self._keeps:
            return logits_btv[rows, last], logits_btv
        return logits_btv[rows, place], None

    def decode(self, tokens: Rows[int]) -> Any:
        """One more token of every row; the logits after it [b, v]."""
        import torch

        columns = torch.tensor(self.cache.lengths, device=self._device)
        width = self.cache.begin_decode(torch.arange(len(tokens), device=self._device), columns)
        hidden = torch.arange(width, device=self._device)[None] > columns[:, None]
        inputs = torch.tensor(tokens, device=self._device)[:, None]
        return self._call(inputs, columns[:, None], self._mask(hidden)[:, None, None], None)[:, -1]

    def _mask(self, hidden: Any) -> Any:
        import torch

        return torch.zeros(hidden.shape, dtype=self._dtype, device=self._device).masked_fill(
            hidden, torch.finfo(self._dtype).min
        )

    def _call(self, input_ids: Any, position_ids: Any, attention_mask: Any, keep: Any) -> Any:
        self.calls += 1
        extra = {"logits_to_keep": keep} if keep is not None and self._keeps else {}
        return self._model(
            input_ids=input_ids,
            position_ids=position_ids,
            attention_mask=attention_mask,
            past_key_values=self.cache,
            use_cache=True,
            **extra,
        ).logits
