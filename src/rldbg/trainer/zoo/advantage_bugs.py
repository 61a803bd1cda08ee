"""Bugs in advantages: baselines, normalisation, groups, and how a token gets its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from rldbg.trainer.zoo import targets
from rldbg.trainer.zoo.bug import Bug, bug


@bug(targets.ADVANTAGES, stage="advantage", cause="advantage-normalisation")
def advantage_without_std(original: Any, rewards: Any, groups: Any, **options: Any) -> Any:
    """Advantages are not divided by the group's standard deviation."""
    return original(rewards, groups, **(options | {"scale_by_std": False}))


@bug(targets.ADVANTAGES, stage="advantage", cause="advantage-normalisation")
def advantage_over_the_batch(original: Any, rewards: Any, groups: Any, **options: Any) -> Any:
    """Rewards are normalised over the whole batch instead of their group."""
    return original(rewards, np.zeros_like(groups), **options)


@bug(targets.ADVANTAGES, stage="advantage", cause="advantage-normalisation")
def advantage_leaves_one_out(original: Any, rewards: Any, groups: Any, **options: Any) -> Any:
    """The baseline is the mean of the other samples (RLOO), with no division by the standard deviation."""
    sizes = (groups[:, None] == groups[None, :]).sum(1)
    centred = original(rewards, groups, **(options | {"scale_by_std": False}))
    return (centred * sizes / np.maximum(sizes - 1, 1)).astype(rewards.dtype)


@bug(targets.ADVANTAGES, stage="advantage", cause="advantage-normalisation")
def advantage_population_std(original: Any, rewards: Any, groups: Any, **options: Any) -> Any:
    """numpy's standard deviation (ddof=0) is used instead of torch's (ddof=1)."""
    sizes = (groups[:, None] == groups[None, :]).sum(1)
    return (original(rewards, groups, **options) * np.sqrt(sizes / np.maximum(sizes - 1, 1))).astype(rewards.dtype)


@bug(targets.ADVANTAGES, stage="advantage", cause="advantage-normalisation")
def advantage_groups_mixed(original: Any, rewards: Any, groups: Any, **options: Any) -> Any:
    """Samples are stored group by group, but are grouped as if they were interleaved."""
    return original(rewards, np.arange(len(groups)) % (int(groups.max()) + 1), **options)


@bug(targets.PREPARE, stage="advantage", cause="scaled")
def advantage_sign_flipped(original: Any, *arguments: Any, **options: Any) -> Any:
    """Baseline minus reward instead of reward minus baseline."""
    batch = original(*arguments, **options)
    return replace(batch, advantages=-batch.advantages)


@bug(targets.PREPARE, stage="advantage", cause="rows-permuted")
def advantage_of_another_sample(original: Any, *arguments: Any, **options: Any) -> Any:
    """The batch was reordered by length and the advantages were not."""
    batch = original(*arguments, **options)
    return replace(batch, advantages=np.roll(batch.advantages, 3))


@bug(targets.MICRO_BATCHES, stage="advantage", cause="last-token-only")
def advantage_on_the_last_token(original: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
    """The outcome's advantage stays on the last token, where the reward was put, instead of all of them."""
    for micro in original(*arguments, **options):
        kept = micro.advantages * 0
        for row, length in enumerate(micro.batch.response_lengths.tolist()):
            kept[row, length - 1] = micro.advantages[row, length - 1]
        yield replace(micro, advantages=kept)


@bug(targets.PREPARE, stage="advantage", cause="advantage-clipped", late=True)
def advantage_clipped(original: Any, *arguments: Any, **options: Any) -> Any:
    """Advantages are clipped to [-0.6, 0.6]."""
    batch = original(*arguments, **options)
    return replace(batch, advantages=np.clip(batch.advantages, -0.6, 0.6))


@bug(targets.PREPARE, stage="advantage", cause="advantage-normalisation", late=True)
def advantage_epsilon_of_one(original: Any, trajectories: Any, algorithm: Any, **options: Any) -> Any:
    """The epsilon added to the standard deviation is 1 instead of 1e-6."""
    return original(trajectories, replace(algorithm, epsilon=1.0), **options)


@bug(targets.ADVANTAGES, stage="advantage", cause="advantage-normalisation", late=True)
def advantage_is_the_reward(_original: Any, rewards: Any, _groups: Any, **_options: Any) -> Any:
    """No baseline is subtracted."""
    return rewards.copy()


@bug(targets.MICRO_BATCHES, stage="advantage", cause="discount", late=True)
def advantage_discounted(original: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
    """Advantages are discounted by 0.95 per token."""
    import torch

    for micro in original(*arguments, **options):
        powers = torch.arange(micro.advantages.shape[1])[None] - micro.batch.response_lengths[:, None] + 1
        yield replace(micro, advantages=micro.advantages * 0.95 ** (-powers).clamp(min=0))


@bug(targets.MICRO_BATCHES, stage="advantage", cause="divided-by-length", late=True)
def advantage_divided_by_length(original: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
    """A sample's advantage is divided by its number of tokens, and the loss takes a mean as well."""
    for micro in original(*arguments, **options):
        yield replace(micro, advantages=micro.advantages / micro.batch.response_mask.sum(1, keepdim=True))


@bug(targets.MICRO_BATCHES, stage="advantage", cause="advantage-clipped", late=True)
def only_positive_advantages(original: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
    """Negative advantages are set to 0."""
    for micro in original(*arguments, **options):
        yield replace(micro, advantages=micro.advantages.clamp(min=0))


@bug(targets.ADVANTAGES, stage="advantage", cause="advantage-normalisation", late=True)
def advantage_groups_off_by_one(original: Any, rewards: Any, groups: Any, **options: Any) -> Any:
    """Group boundaries are one sample late, so each group takes its last member from the next."""
    return original(rewards, np.roll(groups, 1), **options)


@bug(targets.ADVANTAGES, stage="advantage", cause="advantage-normalisation", late=True)
def advantage_epsilon_in_the_root(original: Any, rewards: Any, groups: Any, **options: Any) -> Any:
    """An epsilon of 0.05 is added to the variance instead of a small one to the standard deviation."""
    centred = original(rewards, groups, **(options | {"scale_by_std": False}))
    same = groups[:, None] == groups[None, :]
    variance = (same * centred[None, :] ** 2).sum(1) / np.maximum(same.sum(1) - 1, 1)
    return (centred / np.sqrt(variance + 0.05)).astype(rewards.dtype)


@bug(targets.PREPARE, stage="advantage", cause="advantage-normalisation", late=True)
def advantage_whitened_again(original: Any, *arguments: Any, **options: Any) -> Any:
    """Advantages of the groups are normalised once more over the whole batch."""
    batch = original(*arguments, **options)
    again = (batch.advantages - batch.advantages.mean()) / (batch.advantages.std() + 1e-8)
    return replace(batch, advantages=again.astype(np.float32))


@bug(targets.ADVANTAGES, stage="advantage", cause="advantage-normalisation", late=True)
def advantage_above_the_best(original: Any, rewards: Any, groups: Any, **options: Any) -> Any:
    """The baseline is the best reward of the group instead of its mean, with no division."""
    best = np.asarray([rewards[groups == group].max() for group in groups])
    return (rewards - best).astype(rewards.dtype)


@bug(targets.TRAIN_MICRO, stage="advantage", cause="term-in-advantage", late=True)
def kl_in_the_advantage(original: Any, model: Any, micro: Any, *arguments: Any, **options: Any) -> Any:
    """The KL to the reference is subtracted from the advantage of each token, and is a term of the loss as well."""
    penalty = 0.2 * (micro.old_log_probs - micro.reference_log_probs)
    micro.advantages.sub_(penalty)
    return original(model, micro, *arguments, **options)


@bug(targets.ACCUMULATE, stage="advantage", cause="rows-permuted", late=True)
def second_epoch_misaligned(original: Any, worker: Any, place: Any, shard: Any) -> Any:
    """From the second epoch on samples are reordered, and their advantages are not."""
    if place.epoch:
        shard = replace(shard, batch=replace(shard.batch, advantages=np.roll(shard.batch.advantages, 1)))
    return original(worker, place, shard)


BUGS = tuple(item for item in tuple(vars().values()) if isinstance(item, Bug))
