"""Ways to compute the same that no recipe has a key for: clean runs of the matrix, injected as bugs are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from rldbg.trainer.zoo import targets
from rldbg.trainer.zoo.bug import Bug, bug

_COLUMNS = 3


@bug(targets.MICRO_BATCHES, stage="", cause=())
def more_padding(original: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
    """Every row begins with three more columns of padding."""
    import torch

    for micro in original(*arguments, **options):
        names = ("input_ids", "attention_mask", "position_ids")
        parts = {name: getattr(micro.batch, name) for name in names}
        wider = {name: torch.cat([torch.zeros_like(part[:, :_COLUMNS]), part], 1) for name, part in parts.items()}
        yield replace(micro, batch=replace(micro.batch, **wider))


@bug("torch.nn.functional.scaled_dot_product_attention", stage="", cause=())
def eager_attention(_original: Any, query: Any, key: Any, value: Any, attn_mask: Any = None, **_options: Any) -> Any:
    """Attention is computed by plain products instead of torch's fused function."""
    scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
    if attn_mask is not None:
        is_flag = attn_mask.dtype.is_floating_point is False
        scores = scores.masked_fill(~attn_mask, float("-inf")) if is_flag else scores + attn_mask
    return scores.softmax(-1) @ value


VARIATIONS = tuple(item for item in tuple(vars().values()) if isinstance(item, Bug))
