"""Bugs on the way of the weights from the trainer into the engine."""

from __future__ import annotations

from typing import Any

from rldbg.inference import Sampler
from rldbg.trainer.zoo import targets
from rldbg.trainer.zoo.bug import Bug, bug

_RECORDED = ("++debug.dump_options.weights=true",)
_REPLICAS = (*_RECORDED, "++inference.servers=2")
_Q, _K, _V, _O = (f"model.layers.1.self_attn.{name}_proj.weight" for name in "qkvo")
_GATE, _UP, _DOWN = (f"model.layers.0.mlp.{name}_proj.weight" for name in ("gate", "up", "down"))


def _stale(sampler: Sampler, weights: Any, version: int, *parts: str) -> dict[str, Any]:
    """The new weights, but the tensors of these parts as the engine has them."""
    own = sampler.weights()
    return {
        name: own[name].clone() if version and any(part in name for part in parts) else tensor
        for name, tensor in weights.items()
    }


@bug(targets.LOAD_WEIGHTS, stage="trajectory", cause="held-stale", overrides=_RECORDED, late=True)
def one_layer_stale(original: Any, sampler: Sampler, weights: Any, policy_version: int) -> None:
    """The loader skips the last layer, so it keeps the weights of the first version."""
    original(sampler, _stale(sampler, weights, policy_version, "layers.1."), policy_version)


@bug(targets.LOAD_WEIGHTS, stage="trajectory", cause="held-stale", overrides=_RECORDED, late=True)
def head_not_synced(original: Any, sampler: Sampler, weights: Any, policy_version: int) -> None:
    """The engine treats the output head as tied to the embedding and never reloads it."""
    original(sampler, _stale(sampler, weights, policy_version, "lm_head"), policy_version)


@bug(targets.LOAD_WEIGHTS, stage="trajectory", cause="held-stale", overrides=_RECORDED, late=True)
def norms_not_synced(original: Any, sampler: Sampler, weights: Any, policy_version: int) -> None:
    """Only matrices are sent: the weights of the norms stay as they were."""
    original(sampler, _stale(sampler, weights, policy_version, "norm"), policy_version)


@bug(targets.PUBLISH, stage="trajectory", cause="held-stale", overrides=_REPLICAS, late=True)
def one_replica_stale(original: Any, rollouts: Any, weights: Any, policy_version: int) -> None:
    """Of two replicas, the second is not part of the group that gets new weights, and says it has them."""
    everyone = rollouts._samplers
    if policy_version:
        rollouts._samplers = everyone[:1]
    original(rollouts, weights, policy_version)
    rollouts._samplers = everyone
    everyone[1]._sampler.policy_version = policy_version


@bug(targets.LOAD_WEIGHTS, stage="trajectory", cause="held-zero", overrides=_RECORDED, late=True)
def projection_left_empty(original: Any, sampler: Sampler, weights: Any, policy_version: int) -> None:
    """A tensor is allocated in the engine and never filled."""
    original(sampler, {**weights, _O: weights[_O] * 0}, policy_version)


@bug(targets.LOAD_WEIGHTS, stage="trajectory", cause="held-transposed", overrides=_RECORDED, late=True)
def projection_transposed(original: Any, sampler: Sampler, weights: Any, policy_version: int) -> None:
    """A square projection is stored as [in, out] by the trainer and loaded as [out, in]."""
    original(sampler, {**weights, _O: weights[_O].T}, policy_version)


@bug(targets.LOAD_WEIGHTS, stage="trajectory", cause="held-scaled", overrides=_RECORDED, late=True)
def projection_scaled_twice(original: Any, sampler: Sampler, weights: Any, policy_version: int) -> None:
    """The scale of the query projection is folded into the weights, although the engine divides by it too."""
    original(sampler, {**weights, _Q: weights[_Q] * 0.3535}, policy_version)


@bug(targets.LOAD_WEIGHTS, stage="trajectory", cause="held-fused-order", overrides=_RECORDED, late=True)
def fused_qkv_in_another_order(original: Any, sampler: Sampler, weights: Any, policy_version: int) -> None:
    """The fused tensor is concatenated as query, value, key."""
    original(sampler, {**weights, _K: weights[_V], _V: weights[_K]}, policy_version)


@bug(targets.LOAD_WEIGHTS, stage="trajectory", cause="held-fused-order", overrides=_RECORDED, late=True)
def gate_and_up_exchanged(original: Any, sampler: Sampler, weights: Any, policy_version: int) -> None:
    """The halves of the fused gate and up projection are swapped."""
    original(sampler, {**weights, _GATE: weights[_UP], _UP: weights[_GATE]}, policy_version)


@bug(targets.LOAD_WEIGHTS, stage="trajectory", cause="held-reordered", overrides=_RECORDED, late=True)
def heads_interleaved(original: Any, sampler: Sampler, weights: Any, policy_version: int) -> None:
    """The rows of the query projection are interleaved over heads, as another library stores them."""
    query = weights[_Q]
    mixed = query.reshape(4, -1, query.shape[1]).transpose(0, 1).reshape(query.shape)
    original(sampler, {**weights, _Q: mixed}, policy_version)


@bug(targets.LOAD_WEIGHTS, stage="trajectory", cause="held-reordered", overrides=_RECORDED, late=True)
def shards_joined_in_wrong_order(original: Any, sampler: Sampler, weights: Any, policy_version: int) -> None:
    """The column shards of the down projection are joined in the order in which ranks answered."""
    import torch

    first, second = weights[_DOWN].chunk(2, 1)
    original(sampler, {**weights, _DOWN: torch.cat([second, first], 1)}, policy_version)


@bug(
    targets.LOAD_WEIGHTS, stage="trajectory", cause="held-quantised", overrides=_RECORDED, late=True, needs=("float32",)
)
def weights_rounded_on_the_way(original: Any, sampler: Sampler, weights: Any, policy_version: int) -> None:
    """Weights travel as bfloat16 and are widened again in the engine."""
    import torch

    original(sampler, {name: item.to(torch.bfloat16).to(item.dtype) for name, item in weights.items()}, policy_version)


@bug(targets.LOAD_WEIGHTS, stage="trajectory", cause="held-quantised", overrides=_RECORDED, late=True)
def one_projection_in_eight_bits(original: Any, sampler: Sampler, weights: Any, policy_version: int) -> None:
    """One projection is quantised to 8 bits by mistake: its name matches the pattern."""
    unit = weights[_UP].abs().max() / 127
    original(sampler, {**weights, _UP: (weights[_UP] / unit).round() * unit}, policy_version)


@bug(targets.LOAD_WEIGHTS, stage="trajectory", cause="held-partial", overrides=_RECORDED, late=True)
def half_a_tensor_synced(original: Any, sampler: Sampler, weights: Any, policy_version: int) -> None:
    """A bucket of the broadcast ends within a tensor; its second half is never sent."""
    mixed = weights[_DOWN].clone()
    if policy_version:
        mixed[len(mixed) // 2 :] = sampler.weights()[_DOWN][len(mixed) // 2 :]
    original(sampler, {**weights, _DOWN: mixed}, policy_version)


@bug(targets.LOAD_WEIGHTS, stage="trajectory", cause="held-wrong-tensor", overrides=_RECORDED, late=True)
def layers_renumbered(original: Any, sampler: Sampler, weights: Any, policy_version: int) -> None:
    """The layers of a pipeline stage are numbered from the stage's own first layer: both get the first one's output."""
    name = "model.layers.{}.self_attn.o_proj.weight"
    original(sampler, {**weights, name.format(1): weights[name.format(0)]}, policy_version)


@bug(targets.LOAD_WEIGHTS, stage="trajectory", cause="held-different", overrides=_RECORDED, late=True)
def embedding_never_loaded(original: Any, sampler: Sampler, weights: Any, policy_version: int) -> None:
    """The embedding has a different name in the trainer and keeps its random initialisation in the engine."""
    name = "model.embed_tokens.weight"
    original(sampler, {**weights, name: sampler.weights()[name].clone()}, policy_version)


BUGS = tuple(item for item in tuple(vars().values()) if isinstance(item, Bug))
