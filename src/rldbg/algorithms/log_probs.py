"""From logits to log probs, entropy, the estimators of the KL divergence, and how far a policy has moved."""

from typing import Literal

import numpy as np

from rldbg.algorithms.arrays import Array, as_float64, is_torch, library

KlEstimator = Literal["k1", "k2", "k3"]


def log_softmax(logits_btv: Array) -> Array:
    """Normalised log probs over the last axis, in at least single precision."""
    if is_torch(logits_btv):
        import torch

        wide = logits_btv.dtype if logits_btv.dtype == torch.float64 else torch.float32
        return torch.log_softmax(logits_btv, dim=-1, dtype=wide)
    shifted = logits_btv - logits_btv.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def token_log_probs(log_probs_btv: Array, tokens_bt: Array) -> Array:
    """The log prob of each token that was chosen, from normalised log probs."""
    if is_torch(log_probs_btv):
        return log_probs_btv.gather(-1, tokens_bt[..., None])[..., 0]
    return np.take_along_axis(log_probs_btv, tokens_bt[..., None], axis=-1)[..., 0]


def entropy(log_probs_btv: Array) -> Array:
    """-sum p log p over the last axis, from normalised log probs; a token of probability 0 adds nothing."""
    xp = library(log_probs_btv)
    probs = xp.exp(log_probs_btv)
    return -(probs * xp.where(probs > 0, log_probs_btv, xp.zeros_like(probs))).sum(-1)


def kl_divergence(log_probs: Array, reference_log_probs: Array, estimator: KlEstimator = "k3") -> Array:
    """KL(policy || reference) per token, estimated from the chosen token alone (Schulman's k1, k2, k3)."""
    log_ratio = reference_log_probs - log_probs
    if estimator == "k1":
        return -log_ratio
    if estimator == "k2":
        return log_ratio * log_ratio / 2
    return library(log_probs).expm1(log_ratio) - log_ratio


def effective_sample_size(ratio: Array) -> float:
    """(sum r)^2 / (n * sum r^2): 1 when all ratios are equal, towards 0 when few tokens carry all the weight."""
    ratio = as_float64(ratio)
    squares = float((ratio * ratio).sum())
    return float(ratio.sum()) ** 2 / (len(ratio) * squares) if squares > 0 else 0.0


def ratio_metrics(log_probs: Array, old_log_probs: Array, mask: Array) -> dict[str, float]:
    """Mean and extremes of the importance ratio, the k1 and k3 KL to the old policy, and the effective sample size.

    Only tokens under the mask count; without any the result is empty.
    """
    chosen = mask != 0
    log_ratio = as_float64(log_probs[chosen]) - as_float64(old_log_probs[chosen])
    if len(log_ratio) == 0:
        return {}
    if is_torch(log_ratio):
        log_ratio = log_ratio.detach().cpu().numpy()
    ratio = np.exp(log_ratio)
    return {
        "ratio/mean": float(ratio.mean()),
        "ratio/min": float(ratio.min()),
        "ratio/max": float(ratio.max()),
        "ratio/ess": effective_sample_size(ratio),
        "kl/k1": float(-log_ratio.mean()),
        "kl/k3": float((np.expm1(log_ratio) - log_ratio).mean()),
    }
