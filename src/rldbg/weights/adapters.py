"""LoRA adapters, in files and in live models: what they add to which weight of their base model."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rldbg.core import IncompleteDataError
from rldbg.weights.fingerprint import FingerprintStream
from rldbg.weights.snapshots import BaseWeight

if TYPE_CHECKING:
    import torch

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."


@dataclass(frozen=True, slots=True)
class LoraAdapter:
    """Per weight of the base model what is added to it: scale * up @ down."""

    base: Path
    parts: Mapping[str, AdapterPart]

    def merged(self, weights: Mapping[str, torch.Tensor], factor: float = 1.0) -> dict[str, torch.Tensor]:
        """The adapted ones of some weights, their deltas times a factor."""
        return {name: part.added_to(weights[name], factor) for name, part in self.parts.items() if name in weights}


@dataclass(frozen=True, slots=True)
class AdapterPart:
    """`scale` is alpha / rank, or alpha / sqrt(rank) of a rank-stabilised adapter."""

    down: torch.Tensor
    up: torch.Tensor
    alpha: float
    scale: float
    transposed: bool = False

    @property
    def rank(self) -> int:
        return int(self.down.shape[0])

    def added_to(self, weight: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
        delta = self.up.float() @ self.down.float() * (self.scale * factor)
        return (weight.float() + (delta.T if self.transposed else delta).to(weight.device)).to(weight.dtype)


def is_adapter(folder: Path) -> bool:
    return (folder / CONFIG).is_file()


def read_adapter(folder: Path) -> LoraAdapter:
    """A folder that peft wrote."""
    from safetensors.torch import load_file

    settings = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    if not (folder / WEIGHTS).is_file():
        raise IncompleteDataError(f"{folder} has no {WEIGHTS}", "save the adapter with safe_serialization=True")
    base = Path(str(settings.get("base_model_name_or_path") or ""))
    if not (base / "config.json").is_file():
        raise IncompleteDataError(
            f"{folder} is an adapter of {base}, which is not a model folder here",
            "set base_model_name_or_path in its adapter_config.json to a local folder",
        )
    return LoraAdapter(base, dict(_parts(load_file(folder / WEIGHTS), settings)))


def _parts(tensors: Mapping[str, Any], settings: Mapping[str, Any]) -> Iterator[tuple[str, AdapterPart]]:
    for name, down in tensors.items():
        module, found, _ = name.partition(".lora_A.")
        if not found:
            continue
        module = module.removeprefix(_PREFIX)
        up, rank = tensors[name.replace(".lora_A.", ".lora_B.")], down.shape[0]
        alpha = float(_of_module(settings.get("alpha_pattern"), module, settings.get("lora_alpha", rank)))
        scale = alpha / (math.sqrt(rank) if settings.get("use_rslora") else rank)
        yield f"{module}.weight", AdapterPart(down, up, alpha, scale, bool(settings.get("fan_in_fan_out")))


def _of_module(patterns: Mapping[str, Any] | None, module: str, otherwise: Any) -> Any:
    """A setting of single modules, by the end of their names."""
    return next((value for end, value in (patterns or {}).items() if module.endswith(end)), otherwise)


class LiveBases:
    """What weights of a peft model are without their delta, looked at before adapters are merged into them.

    A weight of which only a shard is here is left out: to gather it, all ranks would have to take part.
    """

    def __init__(self) -> None:
        self._bases = FingerprintStream()
        self._delta_norms: dict[str, torch.Tensor] = {}

    def look_at(self, model: Any, dtype: torch.dtype | None, name_of: Callable[[str], str]) -> None:
        """`dtype` is the engine's; `name_of` makes the name that is sent of one without peft's prefixes."""
        import torch

        for path, module in model.named_modules():
            base, adapters = getattr(module, "base_layer", None), getattr(module, "active_adapters", ())
            weight = getattr(base, "weight", None)
            if weight is None or not hasattr(module, "get_delta_weight") or not _is_here(weight):
                continue
            own = [name for name in adapters if name in getattr(module, "lora_A", ())]
            with torch.no_grad():
                plain = weight.detach()
                merged = plain.clone()
                for name in own:
                    merged += module.get_delta_weight(name).to(merged)
                kept = dtype or plain.dtype
                plain, merged = plain.to(kept), merged.to(kept)
                full = name_of(f"{path.removeprefix(_PREFIX)}.weight")
                self._bases.add(full, plain)
                self._delta_norms[full] = (merged.double() - plain.double()).norm()

    def read(self) -> dict[str, BaseWeight]:
        import torch

        if not self._delta_norms:
            return {}
        first = next(iter(self._delta_norms.values()))
        norms = torch.stack([norm.to(first.device) for norm in self._delta_norms.values()]).tolist()
        bases = {item.name: item for item in self._bases.read()}
        return {
            name: BaseWeight.measured(bases[name], norm) for name, norm in zip(self._delta_norms, norms, strict=True)
        }


def _is_here(weight: Any) -> bool:
    """Whether it is a whole matrix of this process: no shard of FSDP, and not gathered by ZeRO only when used."""
    return not hasattr(weight, "device_mesh") and weight.ndim == 2 and 0 not in weight.shape
