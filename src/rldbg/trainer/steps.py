"""The policy step in small functions: forward, loss, backward, update. No Ray, no process group, no files.

The trainer, the training service, `rldbg rerun`, the tests and the GPU benchmark all run these. Shapes in comments:
b samples of a micro-batch, t columns of the padded sequences, r response columns, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rldbg.algorithms import (
    TokenLoss,
    aggregate,
    combine_losses,
    entropy,
    kl_divergence,
    log_softmax,
    policy_loss,
    ratio_metrics,
    token_log_probs,
)
from rldbg.replay import TrajectoryBatch
from rldbg.trainer.settings import AlgorithmSettings, OptimizerSettings

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What one forward and backward pass works on."""

    batch: TrajectoryBatch
    advantages: torch.Tensor  # [b, r]
    old_log_probs: torch.Tensor  # [b, r]
    reference_log_probs: torch.Tensor | None = None  # [b, r], with a KL term


@dataclass(frozen=True, slots=True)
class Forward:
    """The model's output for each response token."""

    log_probs: torch.Tensor  # [b, r]
    entropy: torch.Tensor  # [b, r]


@dataclass(frozen=True, slots=True)
class LossTerms:
    """The loss of a micro-batch, its parts, and the policy loss token by token."""

    loss: torch.Tensor
    policy: torch.Tensor
    entropy: torch.Tensor
    kl: torch.Tensor
    tokens: TokenLoss


def forward(model: Any, batch: TrajectoryBatch, *, temperature: float = 1.0, entropy_gradient: bool = False) -> Forward:
    """Log prob and entropy of every response token under the model, in float32 whatever the model's dtype."""
    import torch

    logits = model(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask,
        position_ids=batch.position_ids,
        use_cache=False,
    ).logits
    # The logits at a column predict the next column's token; the response starts after the prompt's columns.
    first = batch.input_ids.shape[1] - batch.response_width
    log_probs = log_softmax(logits[:, first - 1 : -1].float() / temperature)  # [b, r, v]
    with torch.set_grad_enabled(torch.is_grad_enabled() and entropy_gradient):
        entropies = entropy(log_probs)
    return Forward(token_log_probs(log_probs, batch.input_ids[:, first:]), entropies)


def compute_loss(
    result: Forward, micro: MicroBatch, algorithm: AlgorithmSettings, *, denominator: float | None = None
) -> LossTerms:
    """The loss of a micro-batch; with the mini-batch's denominator, losses of its parts add up to the whole's."""
    mask = micro.batch.response_mask
    tokens = policy_loss(
        algorithm.loss,
        result.log_probs,
        micro.old_log_probs,
        micro.advantages,
        lowest_ratio=1 - algorithm.clip_low,
        highest_ratio=1 + algorithm.clip_high,
    )

    def total(values: torch.Tensor) -> torch.Tensor:
        summed: torch.Tensor = aggregate(values, mask, algorithm.aggregation, denominator)
        return summed

    policy, entropies = total(tokens.values), total(result.entropy)
    kl = policy.new_zeros(())
    if micro.reference_log_probs is not None:
        kl = total(kl_divergence(result.log_probs, micro.reference_log_probs, algorithm.kl_estimator))
    loss = combine_losses(policy, entropies, kl, entropy_coeff=algorithm.entropy_coeff, kl_coeff=algorithm.kl_coeff)
    return LossTerms(loss, policy, entropies, kl, tokens)


def train_micro_batch(
    model: Any,
    micro: MicroBatch,
    algorithm: AlgorithmSettings,
    *,
    denominator: float | None = None,
    temperature: float = 1.0,
    loss_scale: float = 1.0,
) -> tuple[Forward, LossTerms]:
    """Forward, loss and backward; gradients add to those already there."""
    result = forward(model, micro.batch, temperature=temperature, entropy_gradient=algorithm.entropy_coeff != 0)
    terms = compute_loss(result, micro, algorithm, denominator=denominator)
    (terms.loss if loss_scale == 1 else terms.loss * loss_scale).backward()  # type: ignore[no-untyped-call]
    return result, terms


def micro_batch_metrics(result: Forward, terms: LossTerms, micro: MicroBatch) -> dict[str, float]:
    """Numbers of one micro-batch: its loss and parts, how far the policy moved, how much of it was clipped."""
    mask = micro.batch.response_mask
    metrics = {
        "loss": float(terms.loss.detach()),
        "pg_loss": float(terms.policy.detach()),
        "entropy": float(terms.entropy.detach()),
        "kl_loss": float(terms.kl.detach()),
        "tokens": float(mask.sum()),
    }
    if metrics["tokens"]:
        metrics |= ratio_metrics(result.log_probs.detach(), micro.old_log_probs, mask)
        metrics["clip_fraction"] = float(terms.tokens.clipped[mask != 0].float().mean())
    return metrics


def make_optimizer(parameters: Iterable[Any], settings: OptimizerSettings) -> Any:
    import torch

    return torch.optim.AdamW(
        parameters,
        lr=settings.learning_rate,
        betas=(settings.beta1, settings.beta2),
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        foreach=False,
    )


def learning_rate(settings: OptimizerSettings, step: int, steps: int) -> float:
    """Rises to the full rate in `warmup_steps`, then falls linearly to the last step's rate."""
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    rest = max(steps - 1 - settings.warmup_steps, 1)
    share = min((step - settings.warmup_steps) / rest, 1.0)
    return settings.learning_rate + (settings.final_learning_rate - settings.learning_rate) * share


def apply_gradients(model: Any, optimizer: Any, *, rate: float, max_grad_norm: float) -> float:
    """Clips the gradients, takes one optimizer step and clears them; returns the norm before clipping."""
    import torch

    limit = max_grad_norm if max_grad_norm > 0 else float("inf")
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), limit, foreach=False)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return float(norm)
