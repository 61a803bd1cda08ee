"""The operations inside one module, run on both sides with the same input: the first whose result differs."""

from __future__ import annotations

from typing import Any

from rldbg.bisection.module_outputs import first_tensor

_SAME = 1e-6


def first_operation(a: Any, b: Any, name_a: str, name_b: str, inputs: dict[str, Any]) -> str | None:
    """Runs both models with every operation inside the module logged; the first pair that differs, in words."""
    logs = [_operations(model, name, inputs) for model, name in ((a, name_a), (b, name_b))]
    for number, (one, other) in enumerate(zip(*logs, strict=False)):
        if one[0] != other[0]:
            return f"operation {number}: {one[0]} in A, {other[0]} in B"
        gap = abs(one[1] - other[1])
        if gap > _SAME * max(abs(one[1]), abs(other[1]), 1e-6):
            return f"operation {number}: {one[0]} gives {one[1]:.6g} in A and {other[1]:.6g} in B (norm of its result)"
    if len(logs[0]) != len(logs[1]):
        return f"{len(logs[0])} operations in A, {len(logs[1])} in B"
    return None


def _operations(model: Any, name: str, inputs: dict[str, Any]) -> list[tuple[str, float]]:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    found: list[tuple[str, float]] = []
    inside = [False]

    class Logged(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            tensor = first_tensor(result) if inside[0] else None
            if tensor is not None:
                inside[0] = False
                found.append((str(function), float(tensor.detach().double().norm())))
                inside[0] = True
            return result

    module = dict(model.named_modules())[name]
    handles = [
        module.register_forward_pre_hook(lambda *_: inside.__setitem__(0, True)),
        module.register_forward_hook(lambda *_: inside.__setitem__(0, False)),
    ]
    try:
        with torch.no_grad(), Logged():
            model(**inputs)
    finally:
        for handle in handles:
            handle.remove()
    return found
