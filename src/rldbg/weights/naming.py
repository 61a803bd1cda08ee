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

    from rldbg.weights.places import Box


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
    NamingRule("language-model", "language_model.model.*", ("model.language_model.*",), "the text part, by both names"),
    NamingRule("language-model-prefix", "language_model.*", ("*",), "the text part of a multimodal model"),
    NamingRule("inner-language-model", "model.language_model.*", ("model.*",), "the text part of a multimodal model"),
    NamingRule("vision", "visual.*", ("model.visual.*",), "the vision part of a multimodal model"),
    NamingRule("stacked-gate-up", "*.experts.w13_weight", ("*.experts.gate_up_proj",), "experts that both sides stack"),
    NamingRule("stacked-down", "*.experts.w2_weight", ("*.experts.down_proj",), "experts that both sides stack"),
)
# What wrappers of the trainer put before or into names, and an engine does not have.
_WRAPPERS = ("base_model.model.", "_fsdp_wrapped_module.", "_orig_mod.", "module.")
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


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
    names = list(trainer)
    known = known_names(names)
    mapped = [_mapped(name, known) for name in engine]
    mapped = [_tied(item, known) for item in mapped]
    reached = {name for item in mapped for name in item.trainer}
    for name in names:
        if name not in reached:
            tied = _plain(name) == HEAD and known.get(EMBEDDING) in reached
            mapped.append(MappedName(EMBEDDING if tied else "", (name,), "tied-embeddings" if tied else "not held"))
    return mapped


def _tied(item: MappedName, known: Mapping[str, str]) -> MappedName:
    """An engine may keep a head of its own where the trainer has the embedding only."""
    is_head = item.rule == "unknown" and item.engine == HEAD and EMBEDDING in known
    return MappedName(HEAD, (known[EMBEDDING],), "tied-embeddings") if is_head else item


def known_names(trainer: Iterable[str]) -> dict[str, str]:
    """The trainer's names, by themselves and without what its wrappers add."""
    names = list(trainer)
    return {_plain(name): name for name in names} | {name: name for name in names}


def _plain(name: str) -> str:
    for wrapper in _WRAPPERS:
        while name.startswith(wrapper) or f".{wrapper}" in name:
            name = name.removeprefix(wrapper).replace(f".{wrapper}", ".")
    return name.replace(".base_layer.", ".")


def _mapped(name: str, known: Mapping[str, str]) -> MappedName:
    if name in known:
        return MappedName(name, (known[name],), "" if known[name] == name else "wrapper-of-trainer")
    for rule in RULES:
        parts = rule.match(name)
        if parts is None:
            continue
        found = tuple(expanded for part in parts for expanded in _experts(part, known))
        if found and all(part in known for part in found):
            return MappedName(name, tuple(map(known.__getitem__, found)), rule.id)
        if len(parts) == 1 and "{expert}" not in parts[0]:
            inner = _mapped(parts[0], known)
            if inner.rule != "unknown":
                return MappedName(name, inner.trainer, "+".join(filter(None, (rule.id, inner.rule))))
    return MappedName(name, (), "unknown")


def _experts(part: str, known: Mapping[str, str]) -> list[str]:
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
    from rldbg.weights.places import Box

    known = known_names(shapes)
    for name, tensor in tensors.items():
        mapped = _mapped(name, known)
        if mapped.rule.endswith(("expert-gate-up", "expert-down")):
            yield from _expert_pieces(mapped, tensor, shapes, shard)
            continue
        sizes = [shapes[part] for part in mapped.trainer]
        if not sizes:
            whole = shapes.get(known.get(EMBEDDING, "")) if name == HEAD else None
            own = None if whole is None else _own_shape(whole, tensor.shape, shards, fused=False)
            offset = (shard * own[0] if own and own != whole else 0, *(0 for _ in tensor.shape[1:]))
            yield name, tensor, Box.whole(tensor.shape) if whole is None else Box(whole, offset, tuple(tensor.shape))
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
    mapped: MappedName, tensor: torch.Tensor, shapes: Mapping[str, tuple[int, ...]], shard: int
) -> Iterator[tuple[str, torch.Tensor, Box]]:
    """[experts, rows, columns]: gate and up by rows, each cut by rows; down is cut by columns."""
    from rldbg.weights.places import Box

    kinds = 2 if mapped.rule.endswith("expert-gate-up") else 1
    experts = len(mapped.trainer) // kinds
    height = tensor.shape[1] // kinds
    for place, name in enumerate(mapped.trainer):
        kind, expert = divmod(place, experts)
        piece = tensor[expert, kind * height : (kind + 1) * height]
        whole = shapes[name]
        offset = tuple(shard * own if own != size else 0 for own, size in zip(piece.shape, whole, strict=True))
        yield name, piece, Box(tuple(whole), offset, tuple(piece.shape))


def expert_of(name: str) -> str | None:
    """Which expert a tensor belongs to; None where to none."""
    found = re.search(r"^(.*experts?\.\d+)\.", name)
    return found[1] if found else None


def fused_name(name: str) -> str | None:
    """The engine's tensor that a part of it belongs to; None where engines keep it alone."""
    for fused, parts in (("qkv_proj", ("q_proj", "k_proj", "v_proj")), ("gate_up_proj", ("gate_proj", "up_proj"))):
        for part in parts:
            if f".{part}." in f".{name}":
                return name.replace(part, fused)
    return None
