"""Low-rank adapters: a weight becomes W + (alpha / rank) * up @ down, and only `up` and `down` are trained.

In files and in memory the frozen weight keeps its name; its adapter has the names `<weight>.lora_down` and
`<weight>.lora_up`. `merged` gives whole weights, with the adapters added.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.utils import parametrize

from rldbg.core import setting

ALPHA = 32.0
_DOWN, _UP = ".lora_down", ".lora_up"
_WHERE = {
    "train_attn": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "train_mlp": ("gate_proj", "up_proj", "down_proj"),
    "train_unembed": ("lm_head",),
}


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """What a client asks for; the seed is that of the adapters' first values."""

    rank: int = setting(at_least=1, below=4097)
    seed: int | None = None
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True

    def places(self) -> frozenset[str]:
        return frozenset(name for switch, names in _WHERE.items() if getattr(self, switch) for name in names)


class LowRank(torch.nn.Module):  # type: ignore[misc]
    """The parametrization of one weight [out, in]. `up` is 0 at first, so that a new adapter changes nothing."""

    def __init__(self, weight: torch.Tensor, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        bound = 1 / math.sqrt(weight.shape[1])
        drawn = (torch.rand(rank, weight.shape[1], generator=generator) * 2 - 1) * bound
        self.down = torch.nn.Parameter(drawn.to(weight))
        self.up = torch.nn.Parameter(torch.zeros(weight.shape[0], rank).to(weight))

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return _sum(weight, self.up, self.down)


def add_adapters(module: Any, settings: LoraSettings) -> None:
    """Freezes a module and gives its linear layers adapters, those in the places that the settings name.

    A weight that two places share has none: it could not be adapted in one of them only.
    """
    generator = torch.Generator().manual_seed(settings.seed or 0)
    uses = Counter(id(parameter) for _, parameter in module.named_parameters(remove_duplicate=False))
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    chosen = [
        layer
        for name, layer in module.named_modules()
        if isinstance(layer, torch.nn.Linear)
        and name.rpartition(".")[2] in settings.places()
        and uses[id(layer.weight)] == 1
    ]
    for layer in chosen:
        parametrize.register_parametrization(layer, "weight", LowRank(layer.weight, settings.rank, generator))


def named_tensors(module: Any, *, all_names: bool = False) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters under the names of files; with `all_names` a shared one under each of its names."""
    for name, parameter in module.named_parameters(remove_duplicate=not all_names):
        weight, separator, part = name.partition(".parametrizations.weight.")
        ending = {"original": "", "0.down": _DOWN, "0.up": _UP}[part] if separator else ""
        yield (f"{weight}.weight{ending}" if separator else name), parameter


def is_adapter(name: str) -> bool:
    return name.endswith((_DOWN, _UP))


def merged(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Whole weights: adapters are added to what they adapt."""
    return {
        name: _sum(value, weights[name + _UP], weights[name + _DOWN]) if name + _UP in weights else value
        for name, value in weights.items()
        if not is_adapter(name)
    }


def _sum(weight: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    return weight + (ALPHA / down.shape[0]) * (up @ down)
