"""Bugs in what is computed before the loss: advantages, old log probs, batches, log probs, the reference."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from rldbg.trainer.zoo import targets
from rldbg.trainer.zoo.bug import Bug, bug


@bug(targets.ADVANTAGES, stage="advantage", cause="advantage-normalisation")
def advantage_without_std(original: Any, rewards: Any, groups: Any, **options: Any) -> Any:
    """The division by the group's standard deviation is lost."""
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
    """numpy's standard deviation (of a population) in the place of torch's (of a sample)."""
    sizes = (groups[:, None] == groups[None, :]).sum(1)
    return (original(rewards, groups, **options) * np.sqrt(sizes / np.maximum(sizes - 1, 1))).astype(rewards.dtype)


@bug(targets.ADVANTAGES, stage="advantage", cause="advantage-normalisation")
def advantage_groups_mixed(original: Any, rewards: Any, groups: Any, **options: Any) -> Any:
    """Samples lie group by group, and are grouped as if they lay round by round."""
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


@contextmanager
def temperature_one(worker: Any) -> Iterator[None]:
    """What the worker computes meanwhile does not know the recipe's temperature."""
    recipe = worker._recipe
    worker._recipe = replace(recipe, inference=replace(recipe.inference, temperature=1.0))
    try:
        yield
    finally:
        worker._recipe = recipe


@bug(targets.OLD, stage="old_log_probs", cause="shift-by-one")
def old_log_probs_shifted(original: Any, worker: Any, micro: Any) -> Any:
    """The old log probs stand one token late."""
    return [np.concatenate([row[:1], row[:-1]]) for row in original(worker, micro)]


@bug(targets.OLD, stage="old_log_probs", cause="temperature")
def old_log_probs_without_temperature(original: Any, worker: Any, micro: Any) -> Any:
    """The pass for the old log probs does not divide the logits by the temperature."""
    with temperature_one(worker):
        return original(worker, micro)


@bug(targets.OLD, stage="old_log_probs", cause="precision")
def old_log_probs_in_bfloat16(original: Any, worker: Any, micro: Any) -> Any:
    """The old log probs are kept in bfloat16 to save memory."""
    import torch

    return [torch.from_numpy(row).to(torch.bfloat16).float().numpy() for row in original(worker, micro)]


@bug("rldbg.trainer.learner.in_sample_order", stage="old_log_probs", cause="rows-permuted")
def old_log_probs_in_rank_order(original: Any, rows: Any, samples: int, recipe: Any) -> Any:
    """The ranks' answers are put together in rank order, while mini-batches were cut across ranks."""
    fitting = original(rows, samples, recipe)
    in_rank_order = [row for of_rank in rows for of_mini in of_rank for row in of_mini]
    padded = [np.pad(row, (0, 16)) for row in in_rank_order]
    return [row[: len(like)] for row, like in zip(padded, fitting, strict=True)]


@bug(targets.OLD, stage="old_log_probs", cause="of-reference")
def old_log_probs_of_the_reference(original: Any, worker: Any, micro: Any) -> Any:
    """The old log probs are asked of the frozen reference model."""
    model, worker._model = worker._model, worker._reference
    try:
        return original(worker, micro)
    finally:
        worker._model = model


@bug("rldbg.trainer.policy.train_micro_batch", stage="old_log_probs", cause="ratio-always-one")
def old_log_probs_are_the_new_ones(original: Any, model: Any, micro: Any, *arguments: Any, **options: Any) -> Any:
    """The ratio is taken against the log probs of the same pass, so it is always 1 and nothing is ever clipped."""
    import torch

    from rldbg.trainer.steps import forward

    with torch.no_grad():
        now = forward(model, micro.batch, temperature=options["temperature"]).log_probs
    micro.old_log_probs.copy_(now)
    return original(model, micro, *arguments, **options)


@bug(targets.FORWARD, stage="forward", cause="temperature")
def training_without_temperature(original: Any, model: Any, batch: Any, **options: Any) -> Any:
    """The training pass does not divide the logits by the temperature the samples were drawn with."""
    return original(model, batch, **(options | {"temperature": 1.0}))


@bug(targets.FORWARD, stage="forward", cause="precision")
def log_softmax_in_bfloat16(original: Any, *arguments: Any, **options: Any) -> Any:
    """The training pass rounds its log probs to bfloat16."""
    import torch

    result = original(*arguments, **options)
    return replace(result, log_probs=result.log_probs.to(torch.bfloat16).float())


@bug(targets.FORWARD, stage="forward", cause="scaled")
def entropy_in_bits(original: Any, *arguments: Any, **options: Any) -> Any:
    """The entropy is taken to base 2."""
    result = original(*arguments, **options)
    return replace(result, entropy=result.entropy / np.log(2))


@bug(targets.MICRO_BATCHES, stage="old_log_probs", cause="padding-attended")
def padding_is_attended(original: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
    """The attention mask is left out, so the model attends to the padding before shorter prompts."""
    for micro in original(*arguments, **options):
        yield replace(micro, batch=replace(micro.batch, attention_mask=micro.batch.attention_mask * 0 + 1))


@bug(targets.MICRO_BATCHES, stage="old_log_probs", cause="positions")
def positions_start_again(original: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
    """The position ids of the response count from 0 again."""
    for micro in original(*arguments, **options):
        positions, width = micro.batch.position_ids.clone(), micro.batch.response_width
        positions[:, -width:] -= positions[:, -width : -width + 1]
        yield replace(micro, batch=replace(micro.batch, position_ids=positions))


@bug(targets.MICRO_BATCHES, stage="old_log_probs", cause="padding-side")
def prompts_padded_on_the_right(original: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
    """Padding stands between prompt and response, so the first response token is predicted from padding."""
    for micro in original(*arguments, **options):
        ids, attended = micro.batch.input_ids.clone(), micro.batch.attention_mask.clone()
        prompt = ids.shape[1] - micro.batch.response_width
        for row, padding in enumerate((attended[:, :prompt] == 0).sum(1).tolist()):
            for columns in (ids, attended):
                columns[row, :prompt] = columns[row, :prompt].roll(-padding)
        positions = (attended.cumsum(1) - 1).clamp(min=0)
        batch = replace(micro.batch, input_ids=ids, attention_mask=attended, position_ids=positions)
        yield replace(micro, batch=batch)


@bug("rldbg.trainer.policy.train_micro_batch", stage="forward", cause="padding-in-mask")
def padding_in_the_mask(original: Any, model: Any, micro: Any, *arguments: Any, **options: Any) -> Any:
    """The response mask is all ones: padding after short answers is trained on."""
    micro.batch.response_mask.fill_(1)
    return original(model, micro, *arguments, **options)


@bug("rldbg.trainer.policy.PolicyWorker._with_reference", stage="forward", cause="reference-is-policy")
def reference_moves_along(original: Any, worker: Any, micro: Any) -> Any:
    """The reference shares its tensors with the policy, so the KL to it is always 0."""
    reference, worker._reference = worker._reference, worker._model
    try:
        return original(worker, micro)
    finally:
        worker._reference = reference


@bug("rldbg.trainer.learner.cut", stage="forward", cause="samples-repeated")
def ranks_share_their_data(original: Any, batch: Any, recipe: Any) -> Any:
    """No distributed sampler: every rank trains on what rank 0 was given."""
    shards = original(batch, recipe)
    return [shards[0] for _ in shards] if batch.old_log_probs else shards


BUGS = tuple(item for item in tuple(vars().values()) if isinstance(item, Bug))
