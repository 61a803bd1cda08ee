"""What every module of a model gives in one forward and backward pass, in the order in which they finish.

Memory is bounded: of each output at most SAMPLED elements are kept, evenly spaced, the same ones on both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

SAMPLED = 1 << 18


@dataclass(frozen=True, slots=True)
class ModuleOutput:
    """Some elements of an output, or of the gradient that reaches it."""

    name: str
    kind: str
    shape: tuple[int, ...]
    values: np.ndarray
    inputs: np.ndarray | None = None


@dataclass(slots=True)
class Capture:
    """One side: outputs in the order of the forward pass, gradients in that of the backward pass."""

    title: str
    forward: list[ModuleOutput] = field(default_factory=list)
    backward: list[ModuleOutput] = field(default_factory=list)
    parameters: dict[str, Any] = field(default_factory=dict)


def capture_pass(model: Any, inputs: dict[str, Any], loss: Callable[[Any], Any] | None, *, title: str) -> Capture:
    """Runs the model once; `loss` makes a number of its logits for the backward pass, which is left out without it."""
    import torch

    found = Capture(title, parameters={name: value.detach() for name, value in model.named_parameters()})
    with torch.set_grad_enabled(loss is not None), _hooked(model, found):
        output = model(**inputs)
        if loss is not None:
            loss(output.logits).backward()
    for parameter in model.parameters():
        parameter.grad = None
    return found


@contextmanager
def _hooked(model: Any, found: Capture) -> Iterator[None]:
    with ExitStack() as stack:
        for name, module in model.named_modules():
            if name:
                handle = module.register_forward_hook(_hook(name, type(module).__name__, found))
                stack.callback(handle.remove)
        yield


def _hook(name: str, kind: str, found: Capture) -> Callable[..., None]:
    def after(_module: Any, inputs: Any, output: Any) -> None:
        tensor, given = first_tensor(output), first_tensor(inputs)
        if tensor is None:
            return
        seen = None if given is None else sampled_values(given)
        found.forward.append(replace(_sampled(name, kind, tensor), inputs=seen))
        if tensor.requires_grad:
            tensor.register_hook(lambda gradient: found.backward.append(_sampled(name, kind, gradient)))

    return after


def first_tensor(output: Any) -> torch.Tensor | None:
    """The tensor that a module is about: its output, or the first floating one of several."""
    import torch

    if isinstance(output, torch.Tensor):
        return output if output.is_floating_point() else None
    values = output.values() if isinstance(output, dict) else output if isinstance(output, tuple | list) else ()
    return next((found for item in values if (found := first_tensor(item)) is not None), None)


def sampled_values(tensor: torch.Tensor) -> np.ndarray:
    flat = tensor.detach().reshape(-1)
    step = max(1, -(-flat.numel() // SAMPLED))
    values: np.ndarray = flat[::step].double().cpu().numpy()
    return values


def _sampled(name: str, kind: str, tensor: torch.Tensor) -> ModuleOutput:
    return ModuleOutput(name, kind, tuple(tensor.shape), sampled_values(tensor))
