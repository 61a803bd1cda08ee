"""How much two sides' log probs differ, in the metrics commonly watched in training.

B is taken as the policy that generated the data and A as the one that scores it: k1 and k3 KL, the importance ratio's
mean and tails, the effective sample size, and the ratio of perplexities.
"""

from __future__ import annotations

import math

import numpy as np

from rldbg.algorithms import ratio_metrics
from rldbg.analysis.samples import StepSamples, pair_samples
from rldbg.analysis.side import Side
from rldbg.analysis.tokens import read_tokens

_KINDS = ("old_log_probs", "forward_data", "is_loss_debug", "prepared_trajectories", "datums")
_QUANTITIES = ("rollout_log_probs", "old_log_probs", "log_probs")


def log_prob_mismatch(a: Side, b: Side, step: int) -> dict[str, dict[str, float]]:
    """By quantity; only those that both sides have and that are not equal."""
    if not (_names_samples(a, step) and _names_samples(b, step)):
        return {}
    table_a, table_b = read_tokens(a, step), read_tokens(b, step)
    pairs = pair_samples(table_a, table_b, StepSamples(a, step), StepSamples(b, step)).to_b
    found = {}
    for name in _QUANTITIES:
        parts = []
        for one, other in pairs.items():
            left, right = table_a[one].trained(name), table_b[other].trained(name)
            if left is not None and right is not None and len(left[0]) == len(right[0]):
                parts.append((left[0].astype(np.float64), right[0].astype(np.float64)))
        if parts:
            log_a, log_b = (np.concatenate(side) for side in zip(*parts, strict=True))
            if not np.array_equal(log_a, log_b):
                found[name] = mismatch_metrics(log_a, log_b)
    return found


def _names_samples(side: Side, step: int) -> bool:
    """Whether any log probs of a step name their source."""
    if any("logprobs" in record.fields for record in side.records("trajectory", step)):
        return True
    return any(record.samples for kind in _KINDS for record in side.records(kind, step))


def mismatch_metrics(a: np.ndarray, b: np.ndarray) -> dict[str, float]:
    """The metrics of two log probs per token, where both are finite; empty without any."""
    both = np.isfinite(a) & np.isfinite(b)
    with np.errstate(over="ignore"):
        numbers = ratio_metrics(a, b, both)
        if numbers:
            gap = float((b[both] - a[both]).mean())
            numbers["ppl_ratio"] = math.exp(min(gap, 700.0))
            numbers["mult_prob_error"] = float(np.exp(np.abs(a[both] - b[both])).mean())
    return numbers
