"""A model's modules and named parameters in one walk: torch's own walks are recursive generators, one per purpose."""

from collections.abc import Iterable
from typing import Any

from rldbg.recording.recorder.tensors import torch_module


def modules_and_parameters(model: Any) -> tuple[Iterable[Any], Iterable[tuple[str, Any]]]:
    """What model.modules() and model.named_parameters() give, in their order: nothing comes twice."""
    torch = torch_module()
    if torch is None or getattr(type(model), "named_parameters", None) is not torch.nn.Module.named_parameters:
        return model.modules(), model.named_parameters()  # names of its own
    modules, parameters = [], []
    seen: set[int] = set()
    waiting = [("", model)]
    while waiting:
        prefix, module = waiting.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        modules.append(module)
        for name, parameter in module._parameters.items():
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                parameters.append((prefix + name, parameter))
        children = module._modules
        if children:
            waiting += [(f"{prefix}{name}.", child) for name, child in reversed(children.items()) if child is not None]
    return modules, parameters
