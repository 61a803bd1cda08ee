"""What an engine's model holds, as pieces of the tensors that a trainer sends.

vLLM and SGLang build models of the same parallel layers, which say what they hold: which parts are fused, in which
order, and which shard of each is here. So neither the trainer's shapes nor a checkpoint is needed.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rldbg.weights import Box

Piece = tuple[str, Any, Box]
# Of models that do not say what they fuse.
_FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
_EXPERT_PARTS = {"w13_weight": ("gate_proj", "up_proj"), "w2_weight": ("down_proj",)}


def held_pieces(model: Any) -> Iterator[Piece]:
    """Every parameter of the model; a part of a fused one has its own name, as the trainer calls it."""
    fused = _FUSED | dict(getattr(model, "packed_modules_mapping", None) or {})
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        kinds = {each.__name__ for each in type(module).__mro__}
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield from _pieces(prefix, name, parameter.detach(), module, kinds, fused)


def _pieces(
    prefix: str, name: str, tensor: Any, module: Any, kinds: set[str], fused: Mapping[str, Sequence[str]]
) -> Iterator[Piece]:
    whole = ".".join(filter(None, (prefix, name)))
    parent, _, own = prefix.rpartition(".")
    if name in _EXPERT_PARTS and tensor.dim() == 3:
        yield from _experts(prefix, name, tensor, module)
    elif own in fused and len(fused[own]) > 1 and (rows := _rows(module, kinds)):
        start = 0
        for part, (count, first, total) in zip(fused[own], rows, strict=True):
            piece = tensor[start : start + count]
            start += count
            rest = tuple(tensor.shape[1:])
            box = Box((total, *rest), (first, *(0 for _ in rest)), tuple(piece.shape))
            yield ".".join(filter(None, (parent, part, name))), piece, box
    elif "VocabParallelEmbedding" in kinds:
        # Rows that only pad the shard, and those of added tokens, are not the trainer's.
        shard = module.shard_indices
        first, last = shard.org_vocab_start_index, shard.org_vocab_end_index
        piece, rest = tensor[: last - first], tuple(tensor.shape[1:])
        yield whole, piece, Box((module.org_vocab_size, *rest), (first, *(0 for _ in rest)), tuple(piece.shape))
    else:
        axis = _cut_axis(name, tensor, kinds)
        rank, shards = getattr(module, "tp_rank", 0), getattr(module, "tp_size", 1)
        yield whole, tensor, _shard(tuple(tensor.shape), axis, rank, shards)


def _rows(module: Any, kinds: set[str]) -> list[tuple[int, int, int]]:
    """Of each part of a fused tensor: its rows here, where they begin in the whole part, and the rows of that."""
    if "QKVParallelLinear" in kinds:
        copies = module.num_kv_head_replicas
        kv_rank = module.tp_rank // copies
        wide = module.head_size, module.head_size, getattr(module, "v_head_size", module.head_size)
        heads = (
            (module.num_heads, module.tp_rank, module.total_num_heads),
            (module.num_kv_heads, kv_rank, module.total_num_kv_heads),
            (module.num_kv_heads, kv_rank, module.total_num_kv_heads),
        )
        return [
            (own * size, rank * own * size, each * size) for (own, rank, each), size in zip(heads, wide, strict=True)
        ]
    rank, shards = getattr(module, "tp_rank", 0), getattr(module, "tp_size", 1)
    return [(size // shards, rank * (size // shards), size) for size in map(int, getattr(module, "output_sizes", ()))]


def _cut_axis(name: str, tensor: Any, kinds: set[str]) -> int | None:
    if "RowParallelLinear" in kinds:
        return 1 if name == "weight" and tensor.dim() == 2 else None
    return 0 if "ColumnParallelLinear" in kinds else None


def _experts(prefix: str, name: str, tensor: Any, module: Any) -> Iterator[Piece]:
    """[experts here, rows, columns]: gate and up by rows, each cut by rows; down is cut by columns."""
    parts, axis = _EXPERT_PARTS[name], 0 if name == "w13_weight" else 1
    of_config = getattr(getattr(module, "moe_config", module), "moe_parallel_config", None)
    if of_config is not None:
        rank, shards, group = of_config.tp_rank, of_config.tp_size, of_config.ep_rank
    else:
        rank, shards, group = (getattr(module, f"moe_{what}", 0) for what in ("tp_rank", "tp_size", "ep_rank"))
    rows = tensor.shape[1] // len(parts)
    for number, expert in enumerate(tensor, start=group * len(tensor)):
        for place, part in enumerate(parts):
            piece = expert[place * rows : (place + 1) * rows]
            whole = f"{prefix.removesuffix('.routed_experts')}.{number}.{part}.weight"
            yield whole, piece, _shard(tuple(piece.shape), axis, rank, shards)


def _shard(shape: tuple[int, ...], axis: int | None, rank: int, shards: int) -> Box:
    """This rank's place in a tensor that is cut along one axis."""
    if axis is None or shards <= 1:
        return Box.whole(shape)
    whole, offset = list(shape), [0] * len(shape)
    whole[axis] *= shards
    offset[axis] = rank * shape[axis]
    return Box(tuple(whole), tuple(offset), shape)
