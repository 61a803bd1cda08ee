"""Ways to compute the same that no recipe has a key for: clean runs of the matrix, injected as bugs are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from rldbg.trainer.zoo import targets
from rldbg.trainer.zoo.bug import Bug, bug, replaced

_COLUMNS = 3
_FORWARD = "rldbg.trainer.tiny_model.TinyLlama.forward"
_LAYERS = ("torch.nn.functional.linear", "torch.nn.functional.rms_norm", "torch.nn.functional.silu")


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


@bug(targets.MICRO_BATCHES, stage="", cause=())
def more_padding_on_the_right(original: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
    """Every row ends with three more columns of padding."""
    from torch.nn.functional import pad

    for micro in original(*arguments, **options):
        names = ("input_ids", "attention_mask", "position_ids", "response_mask", "rollout_log_probs")
        batch = replace(micro.batch, **{name: pad(getattr(micro.batch, name), (0, _COLUMNS)) for name in names})
        rest = {name: pad(getattr(micro, name), (0, _COLUMNS)) for name in ("advantages", "old_log_probs")}
        yield replace(micro, batch=batch, **rest)


@bug(_FORWARD, stage="", cause=())
def packed(original: Any, model: Any, input_ids: Any, attention_mask: Any = None, **options: Any) -> Any:
    """All sequences of a micro-batch are one row without padding, each attending to itself alone."""
    import torch

    from rldbg.trainer.tiny_model import Output

    if options.get("use_cache") or attention_mask is None:
        return original(model, input_ids, attention_mask, **options)
    kept = attention_mask.bool()
    rows = kept.nonzero()[:, 0]
    order = torch.arange(len(rows))
    attended = (rows[:, None] == rows[None]) & (order[:, None] >= order[None])
    hidden, _ = model.model(input_ids[kept][None], options["position_ids"][kept][None], attended[None, None], None)
    logits = hidden.new_zeros(*input_ids.shape, model.config.vocab_size)
    logits[kept] = model.lm_head(hidden)[0]
    return Output(logits, None)


def _moved_rows(original: Any, model: Any, input_ids: Any, mask: Any, options: dict[str, Any], *, first: bool) -> Any:
    """A pass over rows whose padding lies at one end: sorting by the mask moves the tokens and keeps their order."""
    from rldbg.trainer.tiny_model import Output

    if options.get("use_cache") or mask is None:
        return original(model, input_ids, mask, **options)
    order = mask.bool().int().argsort(dim=1, descending=first, stable=True)
    moved = {**options, "position_ids": options["position_ids"].gather(1, order)}
    logits = original(model, input_ids.gather(1, order), mask.gather(1, order), **moved).logits
    return Output(logits.gather(1, order.argsort(dim=1)[..., None].expand_as(logits)), None)


@bug(_FORWARD, stage="", cause=())
def padded_on_the_right(original: Any, model: Any, input_ids: Any, attention_mask: Any = None, **options: Any) -> Any:
    """Rows begin with their first token, and all padding comes after the last."""
    return _moved_rows(original, model, input_ids, attention_mask, options, first=True)


@bug(_FORWARD, stage="", cause=())
def padded_on_the_left(original: Any, model: Any, input_ids: Any, attention_mask: Any = None, **options: Any) -> Any:
    """Rows end with their last token, and all padding comes before the first."""
    return _moved_rows(original, model, input_ids, attention_mask, options, first=False)


def _rounded(item: Any) -> Any:
    """Tensors rounded to bfloat16, and so are their gradients."""
    import torch

    return item.to(torch.bfloat16).to(item.dtype) if isinstance(item, torch.Tensor) else item


@bug(*_LAYERS, stage="", cause=())
def bfloat16_compute(original: Any, *arguments: Any, **options: Any) -> Any:
    """Every layer takes and gives bfloat16 and sums in float32, with float32 weights, as mixed precision does."""
    return _rounded(original(*map(_rounded, arguments), **options))


@bug("rldbg.trainer.inference_server.InferenceServer.generate", stage="", cause=())
def bfloat16_engine(original: Any, *arguments: Any, **options: Any) -> Any:
    """The engine computes in bfloat16, the trainer in float32."""
    with ExitStack() as stack:
        for at in bfloat16_compute.at:
            stack.enter_context(replaced(at, bfloat16_compute.spoiled))
        return original(*arguments, **options)


VARIATIONS = tuple(item for item in tuple(vars().values()) if isinstance(item, Bug))
