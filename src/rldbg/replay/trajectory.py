"""One rollout as a trainer sees it, and batches of them as tensors.

Shapes in comments: b samples, t = p + r columns, p of them for prompts (padded on the left), r for responses (padded
on the right). A response is everything after the prompt, the environment's tokens included; the mask tells them apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from rldbg.core import SampleId, prompt_hash

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Trajectory:
    """One sample: its tokens, which of them are trained on, its reward, and what the rollout knew of each token."""

    sample: SampleId
    tokens: np.ndarray  # int64 [t]
    loss_mask: np.ndarray  # int64 [t], 1 where a token is trained on
    reward: float
    logprobs: np.ndarray | None = None  # float32 [t], 0 where the policy did not choose the token
    policy_versions: np.ndarray | None = None  # int64 [t], -1 there
    is_val: bool = False
    routing: tuple[np.ndarray, np.ndarray] | None = None  # experts and weights [<= t, layers, k] of the engine
    extra_fields: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def prompt_length(self) -> int:
        """How many tokens come before the first trained one."""
        (trained,) = self.loss_mask.nonzero()
        return int(trained[0]) if len(trained) else len(self.tokens)

    @property
    def response_length(self) -> int:
        return len(self.tokens) - self.prompt_length

    @property
    def prompt(self) -> bytes:
        """The prompt's token ids as little-endian int64 bytes, which its hash is made of."""
        return self.tokens[: self.prompt_length].astype("<i8", copy=False).tobytes()


def prompt_hashes(trajectories: Sequence[Trajectory]) -> tuple[str, ...]:
    """The hash of each trajectory's prompt; those of a group have one prompt, so it is hashed once."""
    prompts = [item.prompt for item in trajectories]
    names = {prompt: prompt_hash(prompt) for prompt in set(prompts)}
    return tuple(names[prompt] for prompt in prompts)


@dataclass(frozen=True, slots=True)
class TrajectoryBatch:
    """Trajectories as padded tensors on one device, rows in the order of `samples`."""

    samples: tuple[SampleId, ...]
    prompt_hashes: tuple[str, ...]
    input_ids: torch.Tensor  # [b, t]
    attention_mask: torch.Tensor  # [b, t]
    position_ids: torch.Tensor  # [b, t]
    response_mask: torch.Tensor  # [b, r], 1 where a response token is trained on
    rollout_log_probs: torch.Tensor  # [b, r], NaN where the rollout recorded none
    rewards: torch.Tensor  # [b]
    response_lengths: torch.Tensor  # [b]

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def response_width(self) -> int:
        return int(self.response_mask.shape[1])

    def to(self, device: Any) -> TrajectoryBatch:
        tensors = {name: value.to(device) for name in self.__slots__ if hasattr(value := getattr(self, name), "to")}
        return replace(self, **tensors)

    @classmethod
    def from_trajectories(cls, trajectories: Sequence[Trajectory], *, pad_id: int = 0) -> TrajectoryBatch:
        import torch

        prompts = max((item.prompt_length for item in trajectories), default=0)
        responses = max((item.response_length for item in trajectories), default=0)
        shape = (len(trajectories), prompts + responses)
        input_ids = np.full(shape, pad_id, dtype=np.int64)
        attention_mask = np.zeros(shape, dtype=np.int64)
        loss_mask = np.zeros(shape, dtype=np.int64)
        logprobs = np.zeros(shape, dtype=np.float32)
        for row, item in enumerate(trajectories):
            columns = slice(prompts - item.prompt_length, prompts + item.response_length)
            input_ids[row, columns] = item.tokens
            attention_mask[row, columns] = 1
            loss_mask[row, columns] = item.loss_mask
            logprobs[row, columns] = np.nan if item.logprobs is None else item.logprobs
        return cls(
            samples=tuple(item.sample for item in trajectories),
            prompt_hashes=prompt_hashes(trajectories),
            input_ids=torch.from_numpy(input_ids),
            attention_mask=torch.from_numpy(attention_mask),
            position_ids=torch.from_numpy(np.maximum(attention_mask.cumsum(1) - 1, 0)),
            response_mask=torch.from_numpy(loss_mask[:, prompts:]),
            rollout_log_probs=torch.from_numpy(logprobs[:, prompts:]),
            rewards=torch.tensor([item.reward for item in trajectories], dtype=torch.float32),
            response_lengths=torch.tensor([item.response_length for item in trajectories]),
        )


def padded_rows(rows: Sequence[np.ndarray], width: int) -> torch.Tensor:
    """One value a response token, as float32 [b, width]; 0 beyond a row's end."""
    import torch

    padded = np.zeros((len(rows), width), dtype=np.float32)
    for number, row in enumerate(rows):
        padded[number, : len(row)] = row
    return torch.from_numpy(padded)
