"""Bugs that one rank has and the others do not, and statistics taken over a rank's part of the data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from rldbg.trainer.zoo import targets
from rldbg.trainer.zoo.bug import Bug, bug
from rldbg.trainer.zoo.log_prob_bugs import temperature_one


def _on_rank_one(worker: Any) -> bool:
    return bool(worker._rank == 1)


@bug(targets.ACCUMULATE, stage="forward", cause="temperature", late=True, needs=("ranks",))
def one_rank_without_temperature(original: Any, worker: Any, place: Any, shard: Any) -> Any:
    """Rank 1 was started with an older configuration: it trains at temperature 1."""
    if not _on_rank_one(worker):
        return original(worker, place, shard)
    with temperature_one(worker):
        return original(worker, place, shard)


@bug(targets.OLD, stage="old_log_probs", cause="shift-by-one", late=True, needs=("ranks",))
def one_rank_shifts_old_log_probs(original: Any, worker: Any, micro: Any) -> Any:
    """Rank 1's old log probs are one token late."""
    rows = original(worker, micro)
    return [np.concatenate([row[:1], row[:-1]]) for row in rows] if _on_rank_one(worker) else rows


@bug(targets.OLD, stage="old_log_probs", cause="precision", late=True, needs=("ranks", "float32"))
def one_rank_in_bfloat16(original: Any, worker: Any, micro: Any) -> Any:
    """Rank 1 keeps its old log probs in bfloat16."""
    import torch

    rows = original(worker, micro)
    if not _on_rank_one(worker):
        return rows
    return [torch.from_numpy(row).to(torch.bfloat16).float().numpy() for row in rows]


@bug(targets.ACCUMULATE, stage="advantage", cause="scaled", late=True, needs=("ranks",))
def one_rank_flips_the_sign(original: Any, worker: Any, place: Any, shard: Any) -> Any:
    """Rank 1 subtracts rewards from their baseline."""
    if _on_rank_one(worker):
        shard = replace(shard, batch=replace(shard.batch, advantages=-shard.batch.advantages))
    return original(worker, place, shard)


@bug(targets.ACCUMULATE, stage="advantage", cause="rows-permuted", late=True, needs=("ranks",))
def one_rank_misaligns_advantages(original: Any, worker: Any, place: Any, shard: Any) -> Any:
    """Rank 1 sorts its samples by length and not their advantages."""
    if _on_rank_one(worker):
        shard = replace(shard, batch=replace(shard.batch, advantages=np.roll(shard.batch.advantages, 3)))
    return original(worker, place, shard)


@bug(targets.ACCUMULATE, stage="forward", cause="samples-dropped", late=True, needs=("ranks",))
def one_rank_drops_a_sample(original: Any, worker: Any, place: Any, shard: Any) -> Any:
    """Rank 1 leaves out the last sample of its shard."""
    if _on_rank_one(worker):
        shard = replace(shard, batch=shard.batch.rows(range(len(shard.batch) - 1)))
    return original(worker, place, shard)


@bug(targets.ACCUMULATE, stage="loss", cause="aggregation", late=True, needs=("ranks",))
def denominator_of_the_rank(original: Any, worker: Any, place: Any, shard: Any) -> Any:
    """Every rank divides by its own number of tokens instead of the mini-batch's."""
    tokens = sum(int(item.loss_mask.sum()) for item in shard.batch.trajectories)
    return original(worker, place, replace(shard, denominator=float(tokens)))


@bug(targets.CUT, stage="advantage", cause="advantage-normalisation", late=True, needs=("ranks",))
def advantage_over_the_rank(original: Any, batch: Any, recipe: Any) -> Any:
    """Each rank normalises the rewards it was given, over its shard of each mini-batch."""
    return [
        [_normalised(shard, np.zeros(len(shard.batch), int)) for shard in shards] for shards in original(batch, recipe)
    ]


@bug(targets.CUT, stage="advantage", cause="advantage-normalisation", late=True)
def advantage_over_part_of_the_group(original: Any, batch: Any, recipe: Any) -> Any:
    """A group's statistics are taken over every second of its samples, as if they lay on different ranks."""
    halves = {item.sample: item.sample.run_id % 2 for item in batch.trajectories}
    names = {item.sample: (item.sample.group_id, halves[item.sample]) for item in batch.trajectories}
    order = {name: number for number, name in enumerate(dict.fromkeys(names.values()))}
    groups = np.asarray([order[names[item.sample]] for item in batch.trajectories])
    return original(replace(batch, advantages=_advantages(batch, groups)), recipe)


@bug(targets.MICRO_BATCHES, stage="advantage", cause="advantage-normalisation", late=True)
def advantage_over_the_micro_batch(original: Any, batch: Any, *, size: int, **options: Any) -> Iterator[Any]:
    """Rewards are normalised over the samples that share a micro-batch."""
    groups = np.arange(len(batch)) // size
    yield from original(replace(batch, advantages=_advantages(batch, groups)), size=size, **options)


def _normalised(shard: Any, groups: np.ndarray) -> Any:
    return replace(shard, batch=replace(shard.batch, advantages=_advantages(shard.batch, groups)))


def _advantages(batch: Any, groups: np.ndarray) -> np.ndarray:
    from rldbg.algorithms import grpo_advantages

    rewards = np.asarray([item.reward for item in batch.trajectories], dtype=np.float32)
    return np.asarray(grpo_advantages(rewards, groups), dtype=np.float32)


@bug(targets.ACCUMULATE, stage="gradient", cause=(), late=True, needs=("ranks",))
def one_rank_without_gradient(original: Any, worker: Any, place: Any, shard: Any) -> Any:
    """Rank 1's backward pass is inside no_sync and its gradients are never sent."""
    collected = original(worker, place, shard)
    if _on_rank_one(worker):
        for parameter in worker._model.parameters():
            parameter.grad.zero_()
    return collected


@bug(targets.ACCUMULATE, stage="gradient", cause=(), late=True)
def gradients_clipped_before_reduction(original: Any, worker: Any, place: Any, shard: Any) -> Any:
    """Each rank clips its own gradients before they are added up."""
    import torch

    collected = original(worker, place, shard)
    torch.nn.utils.clip_grad_norm_(worker._model.parameters(), 0.1)
    return collected


@bug(targets.TRAIN_MICRO, stage="gradient", cause=(), late=True)
def only_the_last_micro_batch_counts(original: Any, model: Any, *arguments: Any, **options: Any) -> Any:
    """Gradients are cleared before each micro-batch."""
    model.zero_grad(set_to_none=True)
    return original(model, *arguments, **options)


@bug(targets.ACCUMULATE, stage="parameter", cause="replica-drift", late=True, needs=("ranks",))
def one_rank_keeps_old_parameters(original: Any, worker: Any, place: Any, shard: Any) -> Any:
    """Rank 1 misses the first update."""
    collected = original(worker, place, shard)
    if _on_rank_one(worker) and (place.step, place.epoch, place.mini_batch) == (0, 0, 0):
        optimizer, step = worker._optimizer, worker._optimizer.step

        def once(*arguments: Any, **options: Any) -> Any:
            optimizer.step = step

        optimizer.step = once
    return collected


@bug(
    targets.ACCUMULATE,
    stage="forward",
    cause="padding-in-mask",
    late=True,
    needs=(
        "ranks",
        "padding",
    ),
)
def one_rank_trains_on_padding(original: Any, worker: Any, place: Any, shard: Any) -> Any:
    """Rank 1's collator sets the response mask to ones."""
    kept = worker._micro_batches
    if _on_rank_one(worker):
        worker._micro_batches = lambda part: (_all_ones(micro) for micro in kept(part))
    try:
        return original(worker, place, shard)
    finally:
        worker._micro_batches = kept


def _all_ones(micro: Any) -> Any:
    return replace(micro, batch=replace(micro.batch, response_mask=micro.batch.response_mask * 0 + 1))


BUGS = tuple(item for item in tuple(vars().values()) if isinstance(item, Bug))
