"""Bugs written after the hypotheses were finished, to see how far those carry."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from rldbg.trainer.zoo import bug as _bug
from rldbg.trainer.zoo import targets
from rldbg.trainer.zoo.batch_bugs import temperature_one
from rldbg.trainer.zoo.bug import Bug

late = partial(_bug.bug, late=True)

_FROM_ROLLOUT = ("algorithm.old_log_probs=rollout",)


@late(targets.SAMPLE_TOKENS, stage="trajectory", cause="sampling-filter", overrides=_FROM_ROLLOUT)
def rollout_with_top_p(original: Any, logits: Any, rules: Any, numbers: Any) -> Any:
    """The engine samples from the likeliest 80 % and reports log probs renormalised over them."""
    return original(logits, [replace(rule, top_p=0.8, logprob_mode="sampled") for rule in rules], numbers)


@late(targets.SAMPLE_TOKENS, stage="trajectory", cause="greedy")
def rollout_is_greedy(original: Any, logits: Any, rules: Any, numbers: Any) -> Any:
    """An evaluation setting is left on: the engine takes the likeliest token."""
    return original(logits, [replace(rule, temperature=0.0) for rule in rules], numbers)


@late("rldbg.trainer.rollout.sample_key", stage="trajectory", cause="seed")
def seed_of_the_worker(original: Any, seed: int, step: int, sample: Any) -> Any:
    """The sampler is seeded by the worker's number on top of the recipe's seed."""
    return original(seed + 1, step, sample)


@late("rldbg.inference.engine.Sampler.load_weights", stage="trajectory", cause="weights-not-synced")
def weights_one_step_late(original: Any, sampler: Any, weights: Any, policy_version: int) -> None:
    """The engine is given the weights of the step before, under the new version's number."""
    kept = {name: value.clone() for name, value in weights.items()}
    original(sampler, getattr(sampler, "waiting", kept), policy_version)
    sampler.waiting = kept


@late("rldbg.inference.engine.Sampler.load_weights", stage="trajectory", cause="rollout-mismatch")
def one_layer_not_synced(original: Any, sampler: Any, weights: Any, policy_version: int) -> None:
    """One tensor's name does not match and is skipped when weights are loaded."""
    own = sampler._model.state_dict()
    skipped = next(name for name in own if "mlp" in name)
    original(sampler, {**weights, skipped: own[skipped].clone()} if policy_version else weights, policy_version)


@late(targets.FINISH, stage="trajectory", cause="mask-shifted")
def mask_one_early(original: Any, worker: Any, conversation: Any) -> Any:
    """The mask is that of the targets, one position before the tokens it is meant for."""
    trajectory = original(worker, conversation)
    return replace(trajectory, loss_mask=np.append(trajectory.loss_mask[1:], 0))


@late(targets.FINISH, stage="trajectory", cause="mask-off-at-start")
def first_token_not_trained(original: Any, worker: Any, conversation: Any) -> Any:
    """The first token of the response is left out of the mask."""
    trajectory = original(worker, conversation)
    mask = trajectory.loss_mask.copy()
    mask[trajectory.prompt_length] = 0
    return replace(trajectory, loss_mask=mask)


@late(targets.FINISH, stage="trajectory", cause="last-answer-only")
def only_the_last_answer_trained(original: Any, worker: Any, conversation: Any) -> Any:
    """Of a conversation of two turns only the second answer is trained on."""
    trajectory = original(worker, conversation)
    mask = trajectory.loss_mask.copy()
    gaps = np.flatnonzero(mask[trajectory.prompt_length :] == 0)
    if gaps.size:
        mask[: trajectory.prompt_length + gaps[0]] = 0
    return replace(trajectory, loss_mask=mask)


@late(targets.FINISH, stage="trajectory", cause="scaled", overrides=_FROM_ROLLOUT)
def log_probs_to_base_ten(original: Any, worker: Any, conversation: Any) -> Any:
    """The engine reports log probs to base 10."""
    trajectory = original(worker, conversation)
    return replace(trajectory, logprobs=(trajectory.logprobs / np.log(10)).astype(np.float32))


@late(targets.FINISH, stage="trajectory", cause="clipped", overrides=_FROM_ROLLOUT)
def log_probs_floored(original: Any, worker: Any, conversation: Any) -> Any:
    """Log probs below -1 are reported as -1."""
    trajectory = original(worker, conversation)
    return replace(trajectory, logprobs=np.maximum(trajectory.logprobs, -1.0))


@late(targets.FINISH, stage="reward", cause="reward-by-length")
def reward_with_length_penalty(original: Any, worker: Any, conversation: Any) -> Any:
    """Each token costs a tenth of a point, a setting of another experiment."""
    trajectory = original(worker, conversation)
    return replace(trajectory, reward=trajectory.reward - 0.1 * int(trajectory.loss_mask.sum()))


@late("rldbg.trainer.rollout.RolloutWorker.run", stage="reward", cause="reward-of-group")
def reward_of_the_group(original: Any, worker: Any, step: int, tasks: Any) -> Any:
    """Two of four samples of a group get the group's mean as their reward."""
    made = original(worker, step, tasks)
    means: dict[str, list[float]] = {}
    for item in made:
        means.setdefault(item.sample.group_id, []).append(item.reward)
    return [
        replace(item, reward=float(np.mean(means[item.sample.group_id]))) if item.sample.run_id < 2 else item
        for item in made
    ]


@late(targets.PREPARE, stage="advantage", cause="advantage-clipped")
def advantage_clipped(original: Any, *arguments: Any, **options: Any) -> Any:
    """Advantages are clipped to [-0.6, 0.6]."""
    batch = original(*arguments, **options)
    return replace(batch, advantages=np.clip(batch.advantages, -0.6, 0.6))


@late(targets.PREPARE, stage="advantage", cause="advantage-normalisation")
def advantage_epsilon_of_one(original: Any, trajectories: Any, algorithm: Any, **options: Any) -> Any:
    """The epsilon beside the standard deviation is 1 instead of 1e-6."""
    return original(trajectories, replace(algorithm, epsilon=1.0), **options)


@late("rldbg.trainer.shards.grpo_advantages", stage="advantage", cause="advantage-normalisation")
def advantage_is_the_reward(_original: Any, rewards: Any, _groups: Any, **_options: Any) -> Any:
    """No baseline is subtracted."""
    return rewards.copy()


@late(targets.MICRO_BATCHES, stage="advantage", cause="discount")
def advantage_discounted(original: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
    """A discount of 0.95 a token, left over from games."""
    import torch

    for micro in original(*arguments, **options):
        powers = torch.arange(micro.advantages.shape[1])[None] - micro.batch.response_lengths[:, None] + 1
        yield replace(micro, advantages=micro.advantages * 0.95 ** (-powers).clamp(min=0))


@late(targets.MICRO_BATCHES, stage="advantage", cause="divided-by-length")
def advantage_divided_by_length(original: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
    """A sample's advantage is spread over its tokens, and the loss takes a mean once more."""
    for micro in original(*arguments, **options):
        yield replace(micro, advantages=micro.advantages / micro.batch.response_mask.sum(1, keepdim=True))


@late(targets.MICRO_BATCHES, stage="advantage", cause="advantage-clipped")
def only_positive_advantages(original: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
    """Negative advantages are set to 0."""
    for micro in original(*arguments, **options):
        yield replace(micro, advantages=micro.advantages.clamp(min=0))


@late(targets.OLD, stage="old_log_probs", cause="noise")
def old_log_probs_with_dropout(original: Any, worker: Any, micro: Any) -> Any:
    """The pass for the old log probs runs with dropout."""
    generator = np.random.default_rng(len(micro.batch.samples))
    rows = original(worker, micro)
    return [(row + 0.1 * generator.standard_normal(len(row))).astype(np.float32) for row in rows]


@late(targets.OLD, stage="old_log_probs", cause="zero-filled")
def old_log_probs_missing_at_the_end(original: Any, worker: Any, micro: Any) -> Any:
    """The last old log prob of every row is lost and 0 stands in its place."""
    return [np.append(row[:-1], np.float32(0)) for row in original(worker, micro)]


@late("rldbg.trainer.policy.PolicyWorker._with_reference", stage="forward", cause="temperature")
def reference_without_temperature(original: Any, worker: Any, micro: Any) -> Any:
    """The reference's logits are not divided by the temperature."""
    with temperature_one(worker):
        return original(worker, micro)


@late(targets.FORWARD, stage="forward", cause="shift-by-one")
def training_log_probs_shifted(original: Any, *arguments: Any, **options: Any) -> Any:
    """In the training pass logits and targets are off by one."""
    result = original(*arguments, **options)
    return replace(result, log_probs=result.log_probs.roll(1, dims=1))


@late(targets.TRAIN_MICRO, stage="forward", cause="samples-masked-out")
def truncated_samples_left_out(original: Any, model: Any, micro: Any, *arguments: Any, **options: Any) -> Any:
    """Samples that reach the length limit are masked out in the loss."""
    mask = micro.batch.response_mask
    mask[micro.batch.response_lengths == micro.batch.response_lengths.max()] = 0
    return original(model, micro, *arguments, **options)


@late(targets.RATIO, stage="ratio", cause="ratio-linear")
def ratio_without_exp(_original: Any, new: Any, old: Any) -> Any:
    """The first-order expansion of the ratio in its place."""
    return 1 + new - old


@late(targets.RATIO, stage="ratio", cause="ratio-capped")
def ratio_floored(original: Any, new: Any, old: Any) -> Any:
    """The ratio is kept above 0.9."""
    return original(new, old).clamp(min=0.9)


@late(targets.POLICY_LOSS, stage="loss", cause="clip")
def clip_halved(original: Any, *arguments: Any, **options: Any) -> Any:
    """Both bounds of the clip are half as far from 1."""
    bounds = {name: 1 + (options[name] - 1) / 2 for name in ("lowest_ratio", "highest_ratio")}
    return original(*arguments, **(options | bounds))


@late(targets.AGGREGATE, stage="loss", cause="aggregation")
def aggregated_by_rank(original: Any, values: Any, mask: Any, how: str, denominator: float) -> Any:
    """Every rank divides by its own number of tokens, and the ranks' losses are added."""
    return original(values, mask, how, denominator) * 2


@late(targets.AGGREGATE, stage="loss", cause="aggregation")
def aggregated_as_a_sum(original: Any, values: Any, mask: Any, _how: str, _denominator: float) -> Any:
    """The sum over tokens, not divided by anything."""
    return original(values, mask, "sum", 1.0)


@late(targets.COMBINE, stage="loss", cause="entropy-coefficient")
def entropy_coefficient_hundredfold(original: Any, policy: Any, entropy: Any, kl: Any, **options: Any) -> Any:
    """The entropy coefficient is given in percent."""
    return original(policy, entropy, kl, **(options | {"entropy_coeff": 100 * options["entropy_coeff"]}))


@late(targets.KL, stage="loss", cause="kl-estimator")
def kl_the_wrong_way_round(original: Any, new: Any, reference: Any, estimator: str) -> Any:
    """Policy and reference are exchanged in the estimator."""
    return original(reference, new, estimator)


@late(targets.KL, stage="loss", cause="kl-estimator")
def kl_as_absolute_difference(_original: Any, new: Any, reference: Any, _estimator: str) -> Any:
    """The absolute log ratio as the KL term."""
    return (new - reference).abs()


@late(targets.FORWARD, stage="gradient", cause="entropy-detached")
def entropy_without_gradient(original: Any, *arguments: Any, **options: Any) -> Any:
    """The entropy is computed under no_grad: its bonus is reported and does nothing."""
    result = original(*arguments, **options)
    return replace(result, entropy=result.entropy.detach())


@late(targets.SUM, stage="gradient", cause="gradient-scaled")
def gradients_doubled(original: Any, model: Any, ranks: Any, **options: Any) -> None:
    """Two reductions, of which the second one adds what is the sum already."""
    original(model, ranks, **options)
    original(model, ranks, **options)


@late(targets.SUM, stage="gradient", cause="precision")
def gradients_reduced_in_bfloat16(original: Any, model: Any, ranks: Any, **options: Any) -> None:
    """Gradients are rounded to bfloat16 for the reduction."""
    import torch

    original(model, ranks, **options)
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.copy_(parameter.grad.to(torch.bfloat16).float())


@late(targets.OPTIMIZER, stage="parameter", cause="optimizer-betas")
def optimizer_betas_of_the_library(original: Any, parameters: Any, settings: Any) -> Any:
    """beta2 is the library's default of 0.999."""
    return original(parameters, replace(settings, beta2=0.999))


@late(targets.APPLY, stage="parameter", cause="learning-rate")
def learning_rate_warms_up_for_ever(original: Any, model: Any, optimizer: Any, *, rate: float, **options: Any) -> Any:
    """The schedule counts optimizer steps where it was given in steps: the rate is a fifth of what it should be."""
    return original(model, optimizer, rate=rate / 5, **options)


@late(targets.APPLY, stage="parameter", cause="gradient-clip")
def gradient_clip_by_a_tenth(original: Any, model: Any, optimizer: Any, *, max_grad_norm: float, **options: Any) -> Any:
    """Gradients are clipped to a tenth of the norm."""
    return original(model, optimizer, max_grad_norm=max_grad_norm / 10, **options)


@late(targets.APPLY, stage="parameter", cause="optimizer-kind")
def optimizer_is_sgd(original: Any, model: Any, optimizer: Any, *, rate: float, **options: Any) -> Any:
    """Plain gradient descent in the place of Adam."""
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= rate * parameter.grad
    optimizer.zero_grad(set_to_none=True)
    return 0.0


BUGS = tuple(item for item in tuple(vars().values()) if isinstance(item, Bug))
