"""Bugs of one replica of several: settings, references, samples or gradients that the others do not have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rldbg.trainer.zoo import targets
from rldbg.trainer.zoo.bug import Bug, bug

_RANKS = ("ranks",)


def _with_algorithm(original: Any, worker: Any, place: Any, shard: Any, **changes: Any) -> Any:
    """Rank 1 trains by another algorithm block."""
    recipe = worker._recipe
    if worker._rank == 1:
        worker._recipe = replace(recipe, algorithm=replace(recipe.algorithm, **changes))
    try:
        return original(worker, place, shard)
    finally:
        worker._recipe = recipe


@bug(targets.ACCUMULATE, stage="loss", cause="clip", late=True, needs=_RANKS)
def one_replica_clips_tighter(original: Any, worker: Any, place: Any, shard: Any) -> Any:
    """Rank 1 has an older upper clip bound, 1.02."""
    return _with_algorithm(original, worker, place, shard, clip_high=0.02)


@bug(targets.ACCUMULATE, stage="loss", cause="entropy-coefficient", late=True, needs=_RANKS)
def one_replica_without_entropy(original: Any, worker: Any, place: Any, shard: Any) -> Any:
    """Rank 1 trains without the entropy term."""
    return _with_algorithm(original, worker, place, shard, entropy_coeff=0.0)


@bug(
    "rldbg.trainer.policy.PolicyWorker._with_reference",
    stage="forward",
    cause="reference-is-policy",
    late=True,
    needs=_RANKS,
)
def one_replica_moves_its_reference(original: Any, worker: Any, micro: Any) -> Any:
    """Rank 1's reference shares its tensors with the policy."""
    reference = worker._reference
    if worker._rank == 1:
        worker._reference = worker._model
    try:
        return original(worker, micro)
    finally:
        worker._reference = reference


@bug(targets.ACCUMULATE, stage="forward", cause="samples-repeated", late=True, needs=_RANKS)
def one_replica_repeats_a_sample(original: Any, worker: Any, place: Any, shard: Any) -> Any:
    """Rank 1's sampler returns its first sample instead of its second."""
    if worker._rank == 1:
        batch = shard.batch
        order = [0, 0, *range(2, len(batch))]
        picked = replace(
            batch,
            trajectories=tuple(batch.trajectories[row] for row in order),
            advantages=batch.advantages[order],
            trained=batch.trained[order],
            old_log_probs=tuple(batch.old_log_probs[row] for row in order),
        )
        shard = replace(shard, batch=picked)
    return original(worker, place, shard)


@bug(targets.ACCUMULATE, stage="gradient", cause=(), late=True, needs=_RANKS)
def one_replica_halves_its_gradient(original: Any, worker: Any, place: Any, shard: Any) -> Any:
    """Rank 1 divides its gradients by its number of micro-batches once more."""
    collected = original(worker, place, shard)
    if worker._rank == 1:
        for parameter in worker._model.parameters():
            parameter.grad /= 2
    return collected


@bug(targets.APPLY, stage="parameter", cause="replica-drift", late=True, needs=(*_RANKS, "float32"))
def one_replica_rounds_its_parameters(original: Any, model: Any, optimizer: Any, **options: Any) -> Any:
    """One rank stores its parameters in bfloat16 after each step."""
    import threading

    import torch

    norm = original(model, optimizer, **options)
    if threading.current_thread().name.endswith("_1"):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(parameter.to(torch.bfloat16))
    return norm


@bug(targets.CUT, stage="loss", cause=("aggregation", "loss-scaled"), late=True, needs=_RANKS)
def denominator_of_the_first_replica(original: Any, batch: Any, recipe: Any) -> Any:
    """All ranks divide by the number of tokens that rank 0 has, twice."""
    shards = original(batch, recipe)
    if not batch.old_log_probs:
        return shards
    tokens = [sum(int(item.loss_mask.sum()) for item in shard.batch.trajectories) for shard in shards[0]]
    return [
        [replace(shard, denominator=float(2 * count)) for shard, count in zip(of_rank, tokens, strict=True)]
        for of_rank in shards
    ]


BUGS = tuple(item for item in tuple(vars().values()) if isinstance(item, Bug))
