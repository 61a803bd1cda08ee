"""Bugs of mixture models: experts and routers that differ between the engine and the trainer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from rldbg.inference import Sampler
from rldbg.trainer.zoo import targets
from rldbg.trainer.zoo.bug import Bug, bug

RECORDED_EXPERTS = (
    "++model.tiny.experts=4",
    "++debug.dump_options.weights=true",
    "++debug.dump_options.routing=true",
    "++debug.dump_options.rollout_routing=true",
)
_EXPERT = "model.layers.1.mlp.experts.{}.{}_proj.weight"
_PARTS = ("gate", "up", "down")


def _mixtures(sampler: Sampler) -> list[Any]:
    return [module for module in sampler.model.modules() if hasattr(module, "route")]


def _with_router(original: Any, sampler: Sampler, requests: Any, options: Any, change: Callable[[Any], Any]) -> Any:
    """Generates while the routers' logits in the engine are changed."""
    with ExitStack() as stack:
        for layer in _mixtures(sampler):
            handle = layer.gate.register_forward_hook(lambda _module, _inputs, logits: change(logits), prepend=True)
            stack.callback(handle.remove)
        return original(sampler, requests, **options)


@bug(targets.LOAD_WEIGHTS, stage="trajectory", cause="held-wrong-expert", overrides=RECORDED_EXPERTS, late=True)
def one_expert_swapped(original: Any, sampler: Sampler, weights: Any, policy_version: int) -> None:
    """Two experts are swapped when the stacked tensor is filled."""
    swapped = {_EXPERT.format(a, part): weights[_EXPERT.format(1 - a, part)] for a in (0, 1) for part in _PARTS}
    original(sampler, {**weights, **swapped}, policy_version)


@bug(targets.LOAD_WEIGHTS, stage="trajectory", cause="held-stale", overrides=RECORDED_EXPERTS, late=True)
def one_expert_stale(original: Any, sampler: Sampler, weights: Any, policy_version: int) -> None:
    """The rank that holds one expert misses the broadcast."""
    own = sampler.weights()
    stale = {_EXPERT.format(2, part): own[_EXPERT.format(2, part)].clone() for part in _PARTS} if policy_version else {}
    original(sampler, {**weights, **stale}, policy_version)


@bug(
    targets.LOAD_WEIGHTS,
    stage="trajectory",
    cause="held-quantised",
    overrides=RECORDED_EXPERTS,
    late=True,
    needs=("float32",),
)
def router_in_low_precision(original: Any, sampler: Sampler, weights: Any, policy_version: int) -> None:
    """The engine keeps the router's weights in bfloat16."""
    import torch

    rounded = {
        name: item.to(torch.bfloat16).to(item.dtype)
        for name, item in weights.items()
        if name.endswith("mlp.gate.weight")
    }
    original(sampler, {**weights, **rounded}, policy_version)


@bug(targets.GENERATE, stage="trajectory", cause="routing-differs", overrides=RECORDED_EXPERTS, late=True)
def router_bias_in_the_engine(original: Any, sampler: Sampler, requests: Any, **options: Any) -> Any:
    """The engine adds the load-balancing bias of a checkpoint to the router's logits; the trainer has none."""
    import torch

    return _with_router(
        original, sampler, requests, options, lambda logits: logits + torch.linspace(-1, 1, logits.shape[-1])
    )


@bug(targets.GENERATE, stage="trajectory", cause="routing-differs", overrides=RECORDED_EXPERTS, late=True)
def router_sees_another_expert_order(original: Any, sampler: Sampler, requests: Any, **options: Any) -> Any:
    """The engine numbers experts by rank, so the router's choices reach their neighbours."""
    return _with_router(original, sampler, requests, options, lambda logits: logits.roll(1, -1))


@bug(targets.GENERATE, stage="trajectory", cause="routing-top-k", overrides=RECORDED_EXPERTS, late=True)
def engine_uses_one_expert(original: Any, sampler: Sampler, requests: Any, **options: Any) -> Any:
    """The engine reads the number of experts per token from another key and uses one."""
    layers = _mixtures(sampler)
    chosen = [layer.chosen for layer in layers]
    for layer in layers:
        layer.chosen = 1
    try:
        return original(sampler, requests, **options)
    finally:
        for layer, count in zip(layers, chosen, strict=True):
            layer.chosen = count


@bug(targets.GENERATE, stage="trajectory", cause="routing-weights", overrides=RECORDED_EXPERTS, late=True)
def expert_weights_not_normalised(original: Any, sampler: Sampler, requests: Any, **options: Any) -> Any:
    """The engine does not divide the weights of the chosen experts by their sum."""
    layers = _mixtures(sampler)
    for layer in layers:
        layer.normalised = False
    try:
        return original(sampler, requests, **options)
    finally:
        for layer in layers:
            layer.normalised = True


BUGS = tuple(item for item in tuple(vars().values()) if isinstance(item, Bug))
