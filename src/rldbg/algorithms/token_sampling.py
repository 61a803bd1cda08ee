"""Sampling one token per row of logits, and the log prob that is reported for it.

A token is found by one number in [0, 1): the place where the cumulated probability, in the order of the vocabulary,
passes it. The reported log prob has three modes, and every caller names the one it uses:

    raw          log softmax of the logits, whatever the temperature (vLLM: raw_logprobs)
    temperature  log softmax of logits / temperature over the whole vocabulary: what trainers recompute
    sampled      of the distribution that was sampled from: after penalties, constraints, temperature, top-k, top-p
                 and min-p, normalised again (vLLM: processed_logprobs)

Temperature 0 takes the likeliest token; its log prob is the raw one in every mode. Shapes in names: b rows, v
vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from rldbg.algorithms.log_probs import log_softmax, token_log_probs

LogprobMode = Literal["temperature", "raw", "sampled"]
LOGPROB_MODES: tuple[LogprobMode, ...] = ("temperature", "raw", "sampled")
# The likeliest tokens at one position: (token, log prob), best first.
TopTokens = list[tuple[int, float]]


class SamplingRule(Protocol):
    """What decides a token besides its random number. `top_k` 0, `top_p` 1 and `min_p` 0 drop nothing."""

    @property
    def temperature(self) -> float: ...
    @property
    def top_k(self) -> int: ...
    @property
    def top_p(self) -> float: ...
    @property
    def min_p(self) -> float: ...
    @property
    def logprob_mode(self) -> LogprobMode: ...


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """Torch tensors: the token of each row, its log prob, and all log probs of the row in the same mode."""

    token_b: Any
    logprob_b: Any
    log_probs_bv: Any


def sample_tokens(
    logits_bv: Any, rules: Sequence[SamplingRule], numbers_b: np.ndarray, adjusted_bv: Any = None
) -> SampledTokens:
    """The next token of each row by the row's own rule and number.

    `adjusted_bv` are the logits to sample from where penalties or constraints change them; of the reported log probs
    only those of mode `sampled` see them.
    """
    logits_bv = logits_bv.float()
    scaled_bv = _scaled(logits_bv, rules)
    sampled_bv = _restricted(scaled_bv if adjusted_bv is None else _scaled(adjusted_bv.float(), rules), rules)
    token_b = _chosen(sampled_bv, rules, numbers_b)
    reported_bv = _reported(logits_bv, scaled_bv, sampled_bv, rules)
    return SampledTokens(token_b, token_log_probs(reported_bv, token_b), reported_bv)


def _scaled(logits_bv: Any, rules: Sequence[SamplingRule]) -> Any:
    """Log softmax of logits / temperature; a temperature of 0 divides by nothing."""
    import torch

    temperatures = [rule.temperature if rule.temperature > 0 else 1.0 for rule in rules]
    if any(value != 1.0 for value in temperatures):
        logits_bv = logits_bv / torch.tensor(temperatures, device=logits_bv.device)[:, None]
    return log_softmax(logits_bv)


def top_tokens(log_probs_bv: Any, counts: Sequence[int]) -> list[TopTokens]:
    """The likeliest tokens of each row, as many as its count."""
    most = min(max(counts, default=0), log_probs_bv.shape[-1])
    if not most:
        return [[] for _ in counts]
    values, ids = log_probs_bv.topk(most, dim=-1)
    rows = zip(ids.tolist(), values.tolist(), counts, strict=True)
    return [list(zip(tokens, logprobs, strict=True))[:count] for tokens, logprobs, count in rows]


def _chosen(log_probs_bv: Any, rules: Sequence[SamplingRule], numbers_b: np.ndarray) -> Any:
    import torch

    greedy = [rule.temperature == 0 for rule in rules]
    if all(greedy):
        return log_probs_bv.argmax(-1)
    cumulated = log_probs_bv.double().exp().cumsum(-1)
    wanted = torch.from_numpy(numbers_b).to(cumulated.device)[:, None] * cumulated[:, -1:]
    token_b = torch.searchsorted(cumulated, wanted, right=True)[:, 0].clamp(max=log_probs_bv.shape[-1] - 1)
    if any(greedy):
        token_b = torch.where(torch.tensor(greedy, device=token_b.device), log_probs_bv.argmax(-1), token_b)
    return token_b


def _restricted(log_probs_bv: Any, rules: Sequence[SamplingRule]) -> Any:
    """Log probs restricted by top-k, top-p and min-p and normalised again, for the rows that ask for it."""
    rows = [row for row, rule in enumerate(rules) if rule.temperature > 0 and _restricts(rule)]
    if not rows:
        return log_probs_bv
    import torch

    device, size = log_probs_bv.device, log_probs_bv.shape[-1]
    asking = [rules[row] for row in rows]
    ordered, order = log_probs_bv[rows].sort(dim=-1, descending=True, stable=True)
    top_k = torch.tensor([min(rule.top_k or size, size) for rule in asking], device=device)[:, None]
    top_p = torch.tensor([rule.top_p for rule in asking], device=device)[:, None]
    min_p = torch.tensor([rule.min_p for rule in asking], device=device)[:, None]
    probabilities = ordered.exp()
    before = probabilities.cumsum(-1) - probabilities
    keep = torch.arange(size, device=device)[None] < top_k
    keep &= (before < top_p) | (top_p >= 1)
    keep &= probabilities >= min_p * probabilities[:, :1]
    keep[:, 0] = True
    dropped = torch.zeros_like(keep).scatter(-1, order, ~keep)
    result = log_probs_bv.clone()
    result[rows] = log_softmax(log_probs_bv[rows].masked_fill(dropped, float("-inf")))
    return result


def _restricts(rule: SamplingRule) -> bool:
    return rule.top_k > 0 or rule.top_p < 1 or rule.min_p > 0


def _reported(logits_bv: Any, scaled_bv: Any, sampled_bv: Any, rules: Sequence[SamplingRule]) -> Any:
    """Each row's log probs in its mode."""
    # Dividing by a temperature of 1, or of 0 which divides by nothing, leaves the raw ones.
    raw = [row for row, rule in enumerate(rules) if rule.logprob_mode == "raw" and rule.temperature not in (0, 1)]
    sampled = [row for row, rule in enumerate(rules) if rule.logprob_mode == "sampled" and rule.temperature > 0]
    if not raw and not sampled:
        return scaled_bv
    reported = scaled_bv.clone()
    reported[raw] = log_softmax(logits_bv[raw])
    reported[sampled] = sampled_bv[sampled]
    return reported
