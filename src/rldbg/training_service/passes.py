"""One forward pass with its loss, and what a forward or forward-backward request gives back.

Shapes in names: b datums, p prompt and r response positions, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rldbg.algorithms import (
    TokenLoss,
    aggregate,
    combine_losses,
    entropy,
    kl_divergence,
    log_softmax,
    masked,
    ratio_metrics,
    token_log_probs,
)
from rldbg.training_service.batches import PaddedBatch
from rldbg.training_service.losses import LOSSES, TRAINED, LossSettings


@dataclass(frozen=True, slots=True)
class PassTerms:
    """All that one micro-batch's forward pass and loss gave."""

    batch: PaddedBatch
    settings: LossSettings
    log_probs: torch.Tensor  # [b, r]
    prompt_log_probs: torch.Tensor  # [b, p - 1], only to be reported
    entropy: torch.Tensor  # [b, r]
    tokens: TokenLoss
    policy_loss: torch.Tensor
    entropy_loss: torch.Tensor
    kl_loss: torch.Tensor
    loss: torch.Tensor


@dataclass(frozen=True, slots=True)
class PassResult:
    """What a forward or forward-backward request gives back."""

    metrics: Mapping[str, float]
    logprobs: tuple[np.ndarray, ...]


def forward(module: Any, batch: PaddedBatch, settings: LossSettings) -> PassTerms:
    """Log probs, entropy and the loss with its parts; gradients flow where they are enabled."""
    logits = module(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask,
        position_ids=batch.position_ids,
        use_cache=False,
    ).logits
    # The logits at a column predict the next column's token; the last prompt token predicts the first of the response.
    first = batch.prompt_width - 1
    log_probs_brv = log_softmax(logits[:, first:-1].float() / settings.temperature)
    # In the trainer's order: that of the operations decides in which order their gradients are added.
    with torch.set_grad_enabled(torch.is_grad_enabled() and settings.entropy_coeff != 0):
        entropies = entropy(log_probs_brv)
    log_probs = token_log_probs(log_probs_brv, batch.targets[:, first:])
    with torch.no_grad():
        prompt_log_probs_bpv = log_softmax(logits[:, :first].float() / settings.temperature)
        prompt_log_probs = token_log_probs(prompt_log_probs_bpv, batch.targets[:, :first])
    tokens = LOSSES[settings.name].tokens(log_probs, {**batch.inputs, TRAINED: batch.trained}, settings)

    def total(values: torch.Tensor) -> torch.Tensor:
        denominator = settings.denominator or (1.0 if settings.aggregation == "sum" else None)
        summed: torch.Tensor = aggregate(values, batch.mask, settings.aggregation, denominator)
        return summed

    policy, entropy_loss = total(tokens.values), total(entropies)
    kl = policy.new_zeros(())
    if settings.kl_coeff:
        kl = total(kl_divergence(log_probs, batch.inputs["ref_logprobs"], settings.kl_estimator))
    loss = combine_losses(policy, entropy_loss, kl, entropy_coeff=settings.entropy_coeff, kl_coeff=settings.kl_coeff)
    return PassTerms(batch, settings, log_probs, prompt_log_probs, entropies, tokens, policy, entropy_loss, kl, loss)


def pass_result(terms: Sequence[PassTerms]) -> PassResult:
    with torch.no_grad():
        masks = torch.cat([term.batch.trained.flatten() for term in terms])
        log_probs = torch.cat([term.log_probs.flatten() for term in terms])
        entropies = torch.cat([term.entropy.flatten() for term in terms])
        count = float(masks.sum())
        sums = [float(masked(term.tokens.values, term.batch.mask).double().sum()) for term in terms]
        metrics = {
            "loss": sum(float(term.loss) for term in terms),
            "loss:sum": sum(sums),
            "tokens": count,
            "entropy": float(masked(entropies, masks).sum()) / max(count, 1.0),
        }
        if all("logprobs" in term.batch.inputs for term in terms):
            old = torch.cat([term.batch.inputs["logprobs"].flatten() for term in terms])
            metrics |= ratio_metrics(log_probs, old, masks)
    return PassResult(metrics, tuple(row for term in terms for row in _log_prob_rows(term)))


def _log_prob_rows(term: PassTerms) -> list[np.ndarray]:
    """One log prob per position of each datum, prompt and response."""
    rows = torch.cat([term.prompt_log_probs, term.log_probs.detach()], dim=1).cpu().numpy()
    width = term.batch.prompt_width
    return [
        row[width - prompt : width - prompt + len(datum.tokens)]
        for row, datum, prompt in zip(rows, term.batch.datums, term.batch.prompts, strict=True)
    ]
