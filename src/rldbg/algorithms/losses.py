"""Policy losses per token, and how tokens are reduced to one number.

A loss is a sum over tokens divided by a denominator. The denominator of a whole mini-batch is given to each of its
micro-batches, so that losses and gradients of micro-batches and ranks add up to those of the mini-batch, however
it was cut.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from rldbg.algorithms.arrays import Array, library, masked

LossName = Literal["importance_sampling", "ppo", "cross_entropy"]
LOSS_NAMES: tuple[str, ...] = get_args(LossName)

Aggregation = Literal["token_mean", "sequence_mean", "sum"]


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """A loss before aggregation, one value per token; `clipped` is where the clip decided the value."""

    values: Array
    ratio: Array
    clipped: Array


def importance_ratio(log_probs: Array, old_log_probs: Array) -> Array:
    """The probability of a token under the policy, relative to the policy that produced it."""
    return library(log_probs).exp(log_probs - old_log_probs)


def importance_sampling_loss(log_probs: Array, old_log_probs: Array, advantages: Array) -> TokenLoss:
    """-ratio * advantage."""
    ratio = importance_ratio(log_probs, old_log_probs)
    return TokenLoss(-ratio * advantages, ratio, library(ratio).zeros_like(ratio) != 0)


def ppo_loss(
    log_probs: Array,
    old_log_probs: Array,
    advantages: Array,
    *,
    lowest_ratio: float = 0.8,
    highest_ratio: float = 1.2,
) -> TokenLoss:
    """The pessimistic one of -ratio * advantage with and without the ratio clipped to [lowest, highest]."""
    xp = library(log_probs)
    ratio = importance_ratio(log_probs, old_log_probs)
    free = -ratio * advantages
    clipped = -xp.clip(ratio, lowest_ratio, highest_ratio) * advantages
    return TokenLoss(xp.maximum(free, clipped), ratio, clipped > free)


def cross_entropy_loss(log_probs: Array, weights: Array) -> TokenLoss:
    """-weight * log prob; its ratio is 1 by definition."""
    xp = library(log_probs)
    return TokenLoss(-weights * log_probs, xp.ones_like(log_probs), xp.zeros_like(log_probs) != 0)


def policy_loss(
    name: LossName,
    log_probs: Array,
    old_log_probs: Array,
    advantages: Array,
    *,
    lowest_ratio: float = 0.8,
    highest_ratio: float = 1.2,
) -> TokenLoss:
    """The loss of that name; cross entropy takes the advantages as its weights."""
    if name == "importance_sampling":
        return importance_sampling_loss(log_probs, old_log_probs, advantages)
    if name == "ppo":
        return ppo_loss(log_probs, old_log_probs, advantages, lowest_ratio=lowest_ratio, highest_ratio=highest_ratio)
    if name == "cross_entropy":
        return cross_entropy_loss(log_probs, advantages)
    raise ValueError(f"unknown loss: {name!r}; choose one of {', '.join(LOSS_NAMES)}")


def loss_denominator(mask_bt: Array, how: Aggregation) -> float:
    """What this part of a mini-batch adds to the mini-batch's denominator: its tokens, or its sequences with any."""
    if how == "token_mean":
        return float((mask_bt != 0).sum())
    if how == "sequence_mean":
        return float((mask_bt != 0).any(1).sum())
    return 1.0


def aggregate(values_bt: Array, mask_bt: Array, how: Aggregation, denominator: float | None = None) -> Array:
    """One number from one value per token; without a denominator the batch is its own (`sum` divides by 1).

    token_mean: every token counts the same; sequence_mean: every sequence does, as the mean of its tokens.
    """
    xp = library(values_bt)
    values = masked(values_bt, mask_bt)
    if how == "sequence_mean":
        lengths_b = (mask_bt != 0).sum(1)
        total = (values.sum(1) / xp.where(lengths_b > 0, lengths_b, xp.ones_like(lengths_b))).sum()
    else:
        total = values.sum()
    if denominator is None:
        denominator = max(loss_denominator(mask_bt, how), 1.0)
    return total / denominator


def combine_losses(
    policy: Array, entropy: Array, kl: Array, *, entropy_coeff: float = 0.0, kl_coeff: float = 0.0
) -> Array:
    """The loss that is minimised: policy loss - entropy_coeff * entropy + kl_coeff * KL."""
    return policy - entropy_coeff * entropy + kl_coeff * kl
