"""How names of a trainer's tensors and an engine's belong together, by rule.

An engine fuses what a trainer keeps apart. A rule says which trainer tensors an engine tensor is made of, in order,
along which axis; `unfused` cuts an engine's tensors accordingly, so that both sides have the same pieces.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from rldbg.weights.fingerprint import Box


@dataclass(frozen=True, slots=True)
class NamingRule:
    """An engine name (with `*` for what is kept) and the trainer names of its parts, in the order they are fused."""

    id: str
    engine: str
    parts: tuple[str, ...]
    meaning: str

    def to_dict(self) -> dict[str, Any]:
        return {"id": self.id, "engine": self.engine, "trainer": list(self.parts), "meaning": self.meaning}

    def match(self, name: str) -> tuple[str, ...] | None:
        """The trainer names of an engine tensor; None where the rule does not apply."""
        pattern = re.escape(self.engine).replace(r"\*", "(.*)")
        found = re.fullmatch(pattern, name)
        if found is None:
            return None
        return tuple(_filled(part, found.groups()) for part in self.parts)


def _filled(part: str, kept: tuple[str, ...]) -> str:
    """A trainer name with what the engine name has in place of its stars."""
    values = iter(kept)
    return re.sub(r"\*", lambda _: next(values), part)


RULES: tuple[NamingRule, ...] = (
    NamingRule(
        "fused-qkv", "*.qkv_proj.*", ("*.q_proj.*", "*.k_proj.*", "*.v_proj.*"), "query, key and value, by rows"
    ),
    NamingRule(
        "fused-gate-up", "*.gate_up_proj.*", ("*.gate_proj.*", "*.up_proj.*"), "gate and up projection, by rows"
    ),
    NamingRule(
        "expert-gate-up",
        "*.experts.w13_weight",
        ("*.experts.{expert}.gate_proj.weight", "*.experts.{expert}.up_proj.weight"),
        "experts stacked on the first axis, each with gate and up",
    ),
    NamingRule(
        "expert-down",
        "*.experts.w2_weight",
        ("*.experts.{expert}.down_proj.weight",),
        "experts stacked on the first axis",
    ),
    NamingRule("lora-base", "*.base_layer.*", ("*.*",), "the layer that an adapter wraps"),
    NamingRule("wrapper-prefix", "base_model.model.*", ("*",), "the prefix of an adapter's wrapper"),
    NamingRule("module-prefix", "module.*", ("*",), "the prefix of a data-parallel wrapper"),
    NamingRule("fsdp-prefix", "_fsdp_wrapped_module.*", ("*",), "the prefix of a sharding wrapper"),
    NamingRule("compiled-prefix", "_orig_mod.*", ("*",), "the prefix of a compiled module"),
    NamingRule("language-model-prefix", "language_model.*", ("*",), "the text part of a multimodal model"),
)
_TIED = ("lm_head.weight", "model.embed_tokens.weight")


@dataclass(frozen=True, slots=True)
class MappedName:
    """An engine tensor, the trainer tensors it holds, and the rule that says so; no rule means equal names."""

    engine: str
    trainer: tuple[str, ...]
    rule: str

    def to_dict(self) -> dict[str, Any]:
        return {"engine": self.engine, "trainer": list(self.trainer), "rule": self.rule}


def map_names(engine: Iterable[str], trainer: Iterable[str]) -> list[MappedName]:
    """Every engine tensor with the trainer's; `unknown` where no rule leads to names that the trainer has."""
    known = dict.fromkeys(trainer)
    mapped = [_mapped(name, known) for name in engine]
    reached = {name for item in mapped for name in item.trainer}
    missing = [name for name in known if name not in reached]
    for name in missing:
        tied = name == _TIED[0] and _TIED[1] in reached
        mapped.append(MappedName(_TIED[1] if tied else "", (name,), "tied-embeddings" if tied else "not held"))
    return mapped


def _mapped(name: str, known: Mapping[str, None]) -> MappedName:
    if name in known:
        return MappedName(name, (name,), "")
    for rule in RULES:
        parts = rule.match(name)
        if parts is None:
            continue
        found = tuple(expanded for part in parts for expanded in _experts(part, known))
        if found and all(part in known for part in found):
            return MappedName(name, found, rule.id)
        if len(parts) == 1 and "{expert}" not in parts[0]:
            inner = _mapped(parts[0], known)
            if inner.rule != "unknown":
                return MappedName(name, inner.trainer, "+".join(filter(None, (rule.id, inner.rule))))
    return MappedName(name, (), "unknown")


def _experts(part: str, known: Mapping[str, None]) -> list[str]:
    if "{expert}" not in part:
        return [part]
    head, tail = part.split("{expert}")
    numbers = sorted(
        int(name[len(head) : -len(tail)])
        for name in known
        if name.startswith(head) and name.endswith(tail) and name[len(head) : -len(tail)].isdecimal()
    )
    return [f"{head}{number}{tail}" for number in numbers]


def unfused(
    tensors: Mapping[str, torch.Tensor], shapes: Mapping[str, tuple[int, ...]], *, shard: int = 0, shards: int = 1
) -> Iterator[tuple[str, torch.Tensor, Box]]:
    """An engine's tensors as pieces of the trainer's, whose shapes are given; `shard` of `shards` is tensor-parallel.

    A tensor that is smaller than the trainer's by the number of shards along one axis is that shard of it.
    """
    from rldbg.weights.fingerprint import Box

    for name, tensor in tensors.items():
        mapped = _mapped(name, dict.fromkeys(shapes))
        if mapped.rule.endswith(("expert-gate-up", "expert-down")):
            yield from _expert_pieces(mapped, tensor, shapes)
            continue
        sizes = [shapes[part] for part in mapped.trainer]
        if not sizes:
            yield name, tensor, Box.whole(tensor.shape)
            continue
        rows = [_own_shape(size, tensor.shape, shards, fused=len(sizes) > 1) for size in sizes]
        start = 0
        for part, size, own in zip(mapped.trainer, sizes, rows, strict=True):
            piece = tensor[start : start + own[0]] if len(sizes) > 1 else tensor
            start += own[0] if own else 0
            offset = tuple(shard * mine if mine != whole else 0 for mine, whole in zip(own, size, strict=True))
            yield part, piece, Box(tuple(size), offset, tuple(piece.shape))


def _own_shape(size: tuple[int, ...], held: torch.Size, shards: int, *, fused: bool) -> tuple[int, ...]:
    if fused:
        return (size[0] // shards, *size[1:]) if shards > 1 else tuple(size)
    return tuple(
        mine if mine != whole and mine * shards == whole else whole for mine, whole in zip(held, size, strict=True)
    )


def _expert_pieces(
    mapped: MappedName, tensor: torch.Tensor, shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[str, torch.Tensor, Box]]:
    from rldbg.weights.fingerprint import Box

    kinds = 2 if mapped.rule.endswith("expert-gate-up") else 1
    experts = len(mapped.trainer) // kinds
    for place, name in enumerate(mapped.trainer):
        kind, expert = divmod(place, experts)
        height = shapes[name][0]
        piece = tensor[expert, kind * height : (kind + 1) * height]
        yield name, piece, Box.whole(piece.shape)


def is_expert(name: str) -> bool:
    return re.search(r"experts?\.\d+\.", name) is not None


def is_fused_part(name: str) -> bool:
    """Whether engines store it as a part of a fused tensor."""
    return any(f".{part}." in f".{name}" for part in ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"))
