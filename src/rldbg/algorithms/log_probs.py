"""From logits to log probs, entropy and the estimators of the KL divergence."""

from typing import Literal

import numpy as np

from rldbg.algorithms.arrays import Array, is_torch, library

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
    """KL(policy || reference) a token, estimated from the chosen token alone (Schulman's k1, k2, k3)."""
    log_ratio = reference_log_probs - log_probs
    if estimator == "k1":
        return -log_ratio
    if estimator == "k2":
        return log_ratio * log_ratio / 2
    return library(log_probs).expm1(log_ratio) - log_ratio
