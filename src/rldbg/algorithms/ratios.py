"""How far the policy has moved from the one that made the data: numbers that tell a healthy step from a broken one."""

import numpy as np

from rldbg.algorithms.arrays import Array, as_float64, is_torch


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
