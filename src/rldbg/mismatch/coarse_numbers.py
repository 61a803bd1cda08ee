"""Numbers as engines and trainers round them: quantised layers, and a softmax that is not in float32."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

_FP8 = "float8_e4m3fn"
_BLOCK, _GROUP = 128, 128
# By text: how weights of linear layers are quantised, and whether what they are given is, too.
FORMS: Mapping[str, tuple[str, str, bool]] = {
    "float8 with one scale per tensor": (_FP8, "tensor", False),
    "float8 with one scale per row": (_FP8, "row", False),
    "float8 with one scale per block of 128 x 128": (_FP8, "block", False),
    "float8 with one scale per tensor, and inputs per token": (_FP8, "tensor", True),
    "float8 with one scale per row, and inputs per token": (_FP8, "row", True),
    "int8 with one scale per row": ("int8", "row", False),
    "int8 with one scale per row, and inputs per token": ("int8", "row", True),
    "4 bits with one scale per group of 128": ("int4", "group", False),
}
_LARGEST = {_FP8: 448.0, "int8": 127.0, "int4": 7.0}


@contextmanager
def quantised(model: Any, form: str) -> Iterator[None]:
    """The linear layers of a model as an engine quantises them; the head, as usual, stays as it is."""
    import torch

    dtype, extent, inputs_too = FORMS[form]
    head = getattr(model, "lm_head", None)
    layers = [item for item in model.modules() if isinstance(item, torch.nn.Linear) and item is not head]
    kept = [layer.weight.detach().clone() for layer in layers]
    with ExitStack() as stack, torch.no_grad():
        for layer in layers:
            layer.weight.copy_(rounded(layer.weight, dtype, extent))
            if inputs_too:
                handle = layer.register_forward_pre_hook(lambda _, given: (rounded(given[0], dtype, "row"), *given[1:]))
                stack.callback(handle.remove)
        try:
            yield
        finally:
            for layer, weight in zip(layers, kept, strict=True):
                layer.weight.copy_(weight)


def rounded(values: torch.Tensor, dtype: str, extent: str) -> torch.Tensor:
    """Through one trip to a few bits: divided by a scale per tensor, row, group or block, rounded, multiplied again."""
    import torch

    wide = values.detach().float()
    scale = (_largest(wide, extent) / _LARGEST[dtype]).clamp(min=1e-12)
    scaled = (wide / scale).clamp(-_LARGEST[dtype], _LARGEST[dtype])
    coarse = scaled.to(torch.float8_e4m3fn).float() if dtype == _FP8 else scaled.round()
    return (coarse * scale).to(values.dtype)


def _largest(values: torch.Tensor, extent: str) -> torch.Tensor:
    """The largest number of what shares a scale, in a shape that broadcasts."""
    if extent == "tensor":
        return values.abs().max()
    if extent == "row":
        return values.abs().amax(-1, keepdim=True)
    height, width = (_BLOCK, _BLOCK) if extent == "block" else (1, _GROUP)
    rows, columns = values.shape
    found = values.new_empty(values.shape)
    for top in range(0, rows, height) if extent == "block" else (None,):
        chosen = slice(None) if top is None else slice(top, top + height)
        for left in range(0, columns, width):
            part = values[chosen, left : left + width].abs()
            found[chosen, left : left + width] = part.max() if extent == "block" else part.amax(-1, keepdim=True)
    return found


def coarse_softmax(logits: np.ndarray, targets: np.ndarray, dtype: str, *, all_of_it: bool) -> np.ndarray:
    """Log probs of logits that are rounded to a dtype first; with `all_of_it` the softmax is in that dtype, too."""
    import torch

    coarse = torch.from_numpy(logits).to(getattr(torch, dtype))
    log_probs = torch.log_softmax(coarse if all_of_it else coarse.float(), -1)
    found: np.ndarray = log_probs.gather(-1, torch.from_numpy(targets)[:, None])[:, 0].double().numpy()
    return found
