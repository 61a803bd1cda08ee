"""Drawing the next tokens of many sequences at once, each with its own settings.

A token is found by one number in [0, 1): the place where the cumulated probability, in the order of the vocabulary,
passes it. Shapes in names: b sequences, v vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rldbg.inference.generation import SamplingSettings, Top


@dataclass(frozen=True, slots=True)
class Drawn:
    tokens: list[int]
    logprobs: list[float]
    top: list[Top]


def draw(logits_bv: Any, settings: Sequence[SamplingSettings], numbers_b: np.ndarray, top: Sequence[int]) -> Drawn:
    """The next token of each row, its log prob in the row's mode, and its likeliest tokens where they are asked for."""
    import torch

    logits_bv = logits_bv.float()
    temperatures = [item.temperature if item.temperature > 0 else 1.0 for item in settings]
    scaled_bv = logits_bv
    if any(value != 1.0 for value in temperatures):
        scaled_bv = logits_bv / torch.tensor(temperatures, device=logits_bv.device)[:, None]
    scaled_bv = torch.log_softmax(scaled_bv, dim=-1)
    sampled_bv = _restricted(scaled_bv, settings)
    token_b = _found(sampled_bv, numbers_b, settings)
    reported_bv = _reported(logits_bv, scaled_bv, sampled_bv, settings)
    logprob_b = reported_bv.gather(-1, token_b[:, None])[:, 0]
    tokens, logprobs = token_b.tolist(), logprob_b.tolist()
    return Drawn(tokens, logprobs, top_tokens(reported_bv, top))


def top_tokens(log_probs_bv: Any, counts: Sequence[int]) -> list[Top]:
    """The likeliest tokens of each row, as many as it asks for; an empty list where nothing is asked for."""
    most = min(max(counts, default=0), log_probs_bv.shape[-1])
    if not most:
        return [[] for _ in counts]
    values, ids = log_probs_bv.topk(most, dim=-1)
    rows = zip(ids.tolist(), values.tolist(), counts, strict=True)
    return [list(zip(tokens, logprobs, strict=True))[:count] for tokens, logprobs, count in rows]


def _found(log_probs_bv: Any, numbers_b: np.ndarray, settings: Sequence[SamplingSettings]) -> Any:
    import torch

    greedy = [item.temperature == 0 for item in settings]
    if all(greedy):
        return log_probs_bv.argmax(-1)
    cumulated = log_probs_bv.double().exp().cumsum(-1)
    wanted = torch.from_numpy(numbers_b).to(cumulated.device)[:, None] * cumulated[:, -1:]
    token_b = torch.searchsorted(cumulated, wanted, right=True)[:, 0].clamp(max=log_probs_bv.shape[-1] - 1)
    if any(greedy):
        token_b = torch.where(torch.tensor(greedy, device=token_b.device), log_probs_bv.argmax(-1), token_b)
    return token_b


def _restricted(log_probs_bv: Any, settings: Sequence[SamplingSettings]) -> Any:
    """With only the top-k tokens, the nucleus and what is likely enough left, normalised again; only rows that ask."""
    rows = [row for row, item in enumerate(settings) if item.temperature > 0 and _restricts(item)]
    if not rows:
        return log_probs_bv
    import torch

    device, size = log_probs_bv.device, log_probs_bv.shape[-1]
    chosen = [settings[row] for row in rows]
    ordered, order = log_probs_bv[rows].sort(dim=-1, descending=True, stable=True)
    top_k = torch.tensor([item.top_k or size for item in chosen], device=device)[:, None]
    top_p = torch.tensor([item.top_p for item in chosen], device=device)[:, None]
    min_p = torch.tensor([item.min_p for item in chosen], device=device)[:, None]
    probabilities = ordered.exp()
    before = probabilities.cumsum(-1) - probabilities
    keep = torch.arange(size, device=device)[None] < top_k
    keep &= (before < top_p) | (top_p >= 1)
    keep &= probabilities >= min_p * probabilities[:, :1]
    keep[:, 0] = True
    dropped = torch.zeros_like(keep).scatter(-1, order, ~keep)
    result = log_probs_bv.clone()
    result[rows] = torch.log_softmax(log_probs_bv[rows].masked_fill(dropped, float("-inf")), dim=-1)
    return result


def _restricts(settings: SamplingSettings) -> bool:
    return settings.top_k > 0 or settings.top_p < 1 or settings.min_p > 0


def _reported(logits_bv: Any, scaled_bv: Any, sampled_bv: Any, settings: Sequence[SamplingSettings]) -> Any:
    """Each row's log probs in the mode it asks for."""
    import torch

    reported = scaled_bv
    raw = [row for row, item in enumerate(settings) if item.logprob_mode == "raw" and not _unscaled(item)]
    sampled = [row for row, item in enumerate(settings) if item.logprob_mode == "sampled" and item.temperature > 0]
    if raw or sampled:
        reported = scaled_bv.clone()
        reported[raw] = torch.log_softmax(logits_bv[raw], dim=-1)
        reported[sampled] = sampled_bv[sampled]
    return reported


def _unscaled(settings: SamplingSettings) -> bool:
    """Whether dividing by the temperature changed nothing."""
    return settings.temperature in (0, 1)
