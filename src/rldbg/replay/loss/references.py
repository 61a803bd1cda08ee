"""The losses a user's own is held against: GRPO, DAPO and PPO, made of `rldbg.algorithms`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rldbg.algorithms import Aggregation, aggregate, ppo_loss

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class ReferenceLoss:
    """A clipped policy loss: how far the ratio may go, and how tokens become one number."""

    name: str
    clip_low: float
    clip_high: float
    aggregation: Aggregation

    def __call__(
        self, log_probs: torch.Tensor, old_log_probs: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        tokens = ppo_loss(
            log_probs,
            old_log_probs,
            advantages,
            lowest_ratio=1 - self.clip_low,
            highest_ratio=1 + self.clip_high,
        )
        loss: torch.Tensor = aggregate(tokens.values, mask, self.aggregation)
        return loss

    def __str__(self) -> str:
        return f"{self.name} (clip {self.clip_low:g}/{self.clip_high:g}, {self.aggregation})"


def references(clip_low: float | None = None, clip_high: float | None = None) -> tuple[ReferenceLoss, ...]:
    """As published: GRPO takes the mean over sequences, DAPO and PPO over tokens, and DAPO clips higher up."""
    usual: tuple[tuple[str, float, float, Aggregation], ...] = (
        ("grpo", 0.2, 0.2, "sequence_mean"),
        ("dapo", 0.2, 0.28, "token_mean"),
        ("ppo", 0.2, 0.2, "token_mean"),
    )
    return tuple(
        ReferenceLoss(name, low if clip_low is None else clip_low, high if clip_high is None else clip_high, how)
        for name, low, high, how in usual
    )
