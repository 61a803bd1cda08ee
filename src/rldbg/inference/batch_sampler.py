"""A batched sampler in this process: a causal model, its key-value cache, and random numbers keyed by sample.

Shapes in names: b requests, t tokens of a sequence, v vocabulary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rldbg.algorithms import LogprobMode, sample_tokens
from rldbg.inference.keyed_random import uniform


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One text to continue. `position` counts the sample's tokens drawn before, in earlier turns."""

    prompt: tuple[int, ...]
    key: int
    position: int = 0


@dataclass(frozen=True, slots=True)
class Generation:
    """What was drawn: tokens with the log prob each had when it was drawn, and whether the end token came."""

    tokens: list[int]
    logprobs: list[float]
    finished: bool
    policy_version: int
    # Experts and weights [tokens, layers, k] of prompt and answer, where the caller captured them.
    routing: tuple[np.ndarray, np.ndarray] | None = None


@dataclass(frozen=True, slots=True)
class _AtTemperature:
    """Samples from the whole vocabulary, and reports what a trainer recomputes."""

    temperature: float
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    logprob_mode: LogprobMode = "temperature"


class Sampler:
    """Continues batches of prompts. A batch's result depends on the batch, the weights and the keys, nothing else."""

    def __init__(self, model: Any, *, pad_id: int, eos_id: int, device: Any = "cpu") -> None:
        self._model = model.to(device).eval()
        self._pad_id = pad_id
        self._eos_id = eos_id
        self._device = device
        self.policy_version = 0

    def load_weights(self, weights: Mapping[str, Any], policy_version: int) -> None:
        """Takes over a policy's weights; they are copied, so training may continue."""
        self._model.load_state_dict(weights)
        self.policy_version = policy_version

    @property
    def model(self) -> Any:
        return self._model

    def weights(self) -> Mapping[str, Any]:
        """What it holds, by name."""
        held: Mapping[str, Any] = self._model.state_dict()
        return held

    def generate(
        self, requests: Sequence[GenerationRequest], *, max_new_tokens: int, temperature: float = 1.0
    ) -> list[Generation]:
        """Continues each prompt to its end token or the limit. Temperature 0 takes the likeliest token."""
        import torch

        if not requests:
            return []
        with torch.no_grad():
            tokens_bt, logprobs_bt = self._decode(requests, max_new_tokens, temperature)
        return [self._cut(tokens, logprobs) for tokens, logprobs in zip(tokens_bt, logprobs_bt, strict=True)]

    def _decode(
        self, requests: Sequence[GenerationRequest], limit: int, temperature: float
    ) -> tuple[np.ndarray, np.ndarray]:
        import torch

        input_ids, attention_mask = self._left_padded([request.prompt for request in requests])
        positions = (attention_mask.cumsum(-1) - 1).clamp(min=0)
        cache = None
        keys = [request.key for request in requests]
        rules = [_AtTemperature(temperature)] * len(requests)
        unfinished = torch.ones(len(requests), dtype=torch.bool, device=self._device)
        tokens, logprobs = [], []
        for drawn in range(limit):
            output = self._model(
                input_ids=input_ids,
                attention_mask=attention_mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
            )
            logits_bv, cache = output.logits[:, -1], output.past_key_values
            numbers = uniform(keys, [request.position + drawn for request in requests])
            sampled = sample_tokens(logits_bv, rules, numbers)
            token_b = sampled.token_b
            tokens.append(token_b.cpu().numpy())
            logprobs.append(sampled.logprob_b.cpu().numpy())
            unfinished &= token_b != self._eos_id
            if not bool(unfinished.any()):
                break
            input_ids, positions = token_b[:, None], positions[:, -1:] + 1
            attention_mask = torch.cat([attention_mask, torch.ones_like(input_ids)], dim=1)
        return np.stack(tokens, axis=1), np.stack(logprobs, axis=1)

    def _left_padded(self, prompts: Sequence[Sequence[int]]) -> tuple[Any, Any]:
        import torch

        width = max(len(prompt) for prompt in prompts)
        input_ids = np.full((len(prompts), width), self._pad_id, dtype=np.int64)
        attention_mask = np.zeros((len(prompts), width), dtype=np.int64)
        for row, prompt in enumerate(prompts):
            input_ids[row, width - len(prompt) :] = prompt
            attention_mask[row, width - len(prompt) :] = 1
        return torch.from_numpy(input_ids).to(self._device), torch.from_numpy(attention_mask).to(self._device)

    def _cut(self, tokens: np.ndarray, logprobs: np.ndarray) -> Generation:
        """One row up to and including its first end token."""
        ends = np.flatnonzero(tokens == self._eos_id)
        length = int(ends[0]) + 1 if len(ends) else len(tokens)
        return Generation(
            tokens=tokens[:length].tolist(),
            logprobs=logprobs[:length].tolist(),
            finished=bool(len(ends)),
            policy_version=self.policy_version,
        )
