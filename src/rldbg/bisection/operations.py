"""The operations inside one module, run on both sides with the same input: the first whose result differs.

torch's DebugMode logs them with a hash of each result, the sum of its absolute values in double precision; where torch
has none, the same is computed here.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from rldbg.bisection.module_outputs import first_tensor

_SAME = 1e-6
TracedOperation = tuple[str, float]


def first_operation(a: Any, b: Any, name_a: str, name_b: str, inputs: dict[str, Any]) -> str | None:
    """Runs both models with every operation inside the module logged; the first pair that differs, in words."""
    logs = [operations_inside(model, name, inputs) for model, name in ((a, name_a), (b, name_b))]
    for number, (one, other) in enumerate(zip(*logs, strict=False)):
        if one[0] != other[0]:
            return f"operation {number}: {one[0]} in A, {other[0]} in B"
        gap = abs(one[1] - other[1])
        if gap > _SAME * max(abs(one[1]), abs(other[1]), 1e-6):
            return f"operation {number}: {one[0]} gives {one[1]:.6g} in A and {other[1]:.6g} in B (hash of its result)"
    if len(logs[0]) != len(logs[1]):
        return f"{len(logs[0])} operations in A, {len(logs[1])} in B"
    return None


def operations_inside(model: Any, name: str, inputs: dict[str, Any]) -> list[TracedOperation]:
    """Name and hash of each operation of a module that gives a tensor, in order."""
    import torch

    found: list[TracedOperation] = []
    inside = ExitStack()

    def enter(*_: Any) -> None:
        inside.enter_context(_logging(found))

    module = dict(model.named_modules())[name]
    with ExitStack() as hooks:
        hooks.callback(module.register_forward_pre_hook(enter).remove)
        hooks.callback(module.register_forward_hook(lambda *_: inside.close()).remove)
        with torch.no_grad(), inside:
            model(**inputs)
    return found


def _logging(found: list[TracedOperation]) -> Any:
    try:
        from torch.utils._debug_mode import DebugMode
    except ImportError:
        return _hashing(found)
    stack = ExitStack()
    mode = stack.enter_context(DebugMode())
    stack.enter_context(DebugMode.log_tensor_hashes())
    stack.callback(lambda: found.extend(_hashes(mode.logs)))
    return stack


def _hashes(logs: Any) -> list[TracedOperation]:
    known = [(entry, (getattr(entry, "log", None) or {}).get("hash")) for entry in logs if hasattr(entry, "op")]
    return [(str(entry.op), float(value)) for entry, value in known if isinstance(value, int | float)]


def _hashing(found: list[TracedOperation]) -> Any:
    """What DebugMode does, for a torch without it."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Hashing(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            tensor = first_tensor(result)
            if tensor is not None:
                found.append((str(function), float(tensor.detach().double().abs().sum())))
            return result

    return Hashing()
