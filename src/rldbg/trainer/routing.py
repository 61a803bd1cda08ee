"""Which experts a model chose for each token: captured by hooks on its mixture layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(slots=True)
class Routes:
    """The choices of each layer: columns [b, t, k] of all passes of a model, in their order."""

    experts: list[list[Any]] = field(default_factory=list)
    weights: list[list[Any]] = field(default_factory=list)

    def joined(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Experts and weights [b, t, layers, k] over all passes; None for a model without experts."""
        import torch

        if not self.experts or not self.experts[0]:
            return None
        experts, weights = (
            torch.stack([torch.cat(layer, 1) for layer in side], 2).cpu().numpy()
            for side in (self.experts, self.weights)
        )
        return experts.astype(np.int16), weights.astype(np.float32)


@contextmanager
def captured_routes(model: Any) -> Iterator[Routes]:
    """Everything that the model's mixture layers choose inside the context; nothing without a model."""
    modules = [] if model is None else model.modules()
    layers = [module for module in modules if hasattr(module, "route") and hasattr(module, "experts")]
    routes = Routes([[] for _ in layers], [[] for _ in layers])

    def hook(number: int) -> Any:
        def capture(_module: Any, _inputs: Any, logits: Any) -> None:
            weights, experts = layers[number].route(logits.detach())
            routes.experts[number].append(experts)
            routes.weights[number].append(weights)

        return capture

    handles = [layer.gate.register_forward_hook(hook(number)) for number, layer in enumerate(layers)]
    try:
        yield routes
    finally:
        for handle in handles:
            handle.remove()


def padded_routes(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Rows [t, layers, k] in one array [b, t, layers, k], -1 where a row has no token."""
    width = max(len(row) for row in rows)
    padded = np.full((len(rows), width, *rows[0].shape[1:]), -1, dtype=rows[0].dtype)
    for number, row in enumerate(rows):
        padded[number, : len(row)] = row
    return padded
