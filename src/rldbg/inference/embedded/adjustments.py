"""Logits as penalties, biases and constraints change them, row by row. Shapes in names: b rows, v vocabulary."""

from collections.abc import Sequence as Rows
from typing import Any

from rldbg.inference.embedded.sequence import Sequence


def adjusted(logits_bv: Any, items: Rows[Sequence]) -> Any:
    """The logits to sample from; None if no row changes them."""
    rows = [row for row, item in enumerate(items) if item.job.settings.adjusts]
    if not rows:
        return None
    result = logits_bv.float().clone()
    for row in rows:
        _adjust(result[row], items[row])
    return result


def _adjust(logits_v: Any, item: Sequence) -> None:
    """In place, in the order of the engines: penalties, biases, then what is forbidden."""
    import torch

    settings, device = item.job.settings, logits_v.device
    if settings.penalties:
        _penalise(logits_v, item)
    if settings.logit_bias:
        ids, values = zip(*settings.logit_bias, strict=True)
        logits_v[torch.tensor(ids, device=device)] += torch.tensor(values, device=device)
    if settings.allowed_token_ids:
        allowed = torch.tensor(sorted(settings.allowed_token_ids), device=device)
        kept = logits_v[allowed]
        logits_v.fill_(float("-inf"))
        logits_v[allowed] = kept
    if item.matcher is not None:
        mask = torch.from_numpy(item.matcher.mask(len(logits_v))).to(device)
        logits_v.masked_fill_(~mask, float("-inf"))


def _penalise(logits_v: Any, item: Sequence) -> None:
    import torch

    penalties = item.job.settings.penalties
    assert penalties is not None
    if penalties.repetition != 1:
        seen = torch.tensor(sorted({*item.job.prompt, *item.tokens}), device=logits_v.device)
        values = logits_v[seen]
        logits_v[seen] = torch.where(values > 0, values / penalties.repetition, values * penalties.repetition)
    if item.tokens and (penalties.frequency or penalties.presence):
        made, counts = torch.tensor(item.tokens, device=logits_v.device).unique(return_counts=True)
        logits_v[made] -= penalties.frequency * counts + penalties.presence
