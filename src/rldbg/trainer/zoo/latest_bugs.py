"""The last bugs to be written, when the hypotheses had been extended by what the late ones taught."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from rldbg.trainer.zoo import targets
from rldbg.trainer.zoo.bug import Bug
from rldbg.trainer.zoo.late_bugs import late


@late(targets.ADVANTAGES, stage="advantage", cause="advantage-normalisation")
def advantage_groups_off_by_one(original: Any, rewards: Any, groups: Any, **options: Any) -> Any:
    """Groups are cut one sample late, so each takes its last member from the next."""
    return original(rewards, np.roll(groups, 1), **options)


@late(targets.ADVANTAGES, stage="advantage", cause="advantage-normalisation")
def advantage_epsilon_in_the_root(original: Any, rewards: Any, groups: Any, **options: Any) -> Any:
    """A guard of 0.05 is added to the variance instead of a small one to the standard deviation."""
    centred = original(rewards, groups, **(options | {"scale_by_std": False}))
    same = groups[:, None] == groups[None, :]
    variance = (same * centred[None, :] ** 2).sum(1) / np.maximum(same.sum(1) - 1, 1)
    return (centred / np.sqrt(variance + 0.05)).astype(rewards.dtype)


@late(targets.PREPARE, stage="advantage", cause="advantage-normalisation")
def advantage_whitened_again(original: Any, *arguments: Any, **options: Any) -> Any:
    """Advantages of the groups are normalised once more over the whole batch."""
    batch = original(*arguments, **options)
    again = (batch.advantages - batch.advantages.mean()) / (batch.advantages.std() + 1e-8)
    return replace(batch, advantages=again.astype(np.float32))


@late(targets.ADVANTAGES, stage="advantage", cause="advantage-normalisation")
def advantage_above_the_best(original: Any, rewards: Any, groups: Any, **options: Any) -> Any:
    """The baseline is the best reward of the group instead of its mean, with no division."""
    best = np.asarray([rewards[groups == group].max() for group in groups])
    return (rewards - best).astype(rewards.dtype)


@late(targets.TRAIN_MICRO, stage="advantage", cause="term-in-advantage")
def kl_in_the_advantage(original: Any, model: Any, micro: Any, *arguments: Any, **options: Any) -> Any:
    """The KL to the reference is taken off the advantage of each token, and is a term of the loss as well."""
    penalty = 0.2 * (micro.old_log_probs - micro.reference_log_probs)
    micro.advantages.sub_(penalty)
    return original(model, micro, *arguments, **options)


@late(targets.ACCUMULATE, stage="advantage", cause="rows-permuted")
def second_epoch_misaligned(original: Any, worker: Any, place: Any, shard: Any) -> Any:
    """From the second epoch on samples are reordered, and their advantages are not."""
    if place.epoch:
        shard = replace(shard, batch=replace(shard.batch, advantages=np.roll(shard.batch.advantages, 1)))
    return original(worker, place, shard)


@late(targets.COMPUTE_LOSS, stage="ratio", cause="ratio-of-reference")
def ratio_against_the_reference(original: Any, result: Any, micro: Any, *arguments: Any, **options: Any) -> Any:
    """The ratio is taken against the reference model's log probs."""
    return original(result, replace(micro, old_log_probs=micro.reference_log_probs), *arguments, **options)


@late("rldbg.algorithms.losses.importance_ratio", stage="ratio", cause="ratio-capped")
def log_ratio_clamped(_original: Any, new: Any, old: Any) -> Any:
    """The log ratio is kept within a tenth for safety, before the clip ever sees it."""
    return (new - old).clamp(-0.1, 0.1).exp()


@late("rldbg.trainer.steps.combine_losses", stage="loss", cause="kl-coefficient")
def kl_sign_flipped(original: Any, policy: Any, entropy: Any, kl: Any, **options: Any) -> Any:
    """The KL term is rewarded."""
    return original(policy, entropy, kl, **(options | {"kl_coeff": -options["kl_coeff"]}))


@late(targets.SUM, stage="gradient", cause="gradient-clipped")
def gradients_clipped_by_value(original: Any, model: Any, ranks: Any, **options: Any) -> None:
    """Each element of the gradient is clipped by itself."""
    import torch

    original(model, ranks, **options)
    torch.nn.utils.clip_grad_value_(model.parameters(), 0.02)


@late(targets.SUM, stage="gradient", cause="gradient-scaled-by-tensor")
def gradients_clipped_by_tensor(original: Any, model: Any, ranks: Any, **options: Any) -> None:
    """Each tensor's gradient is clipped to a norm of its own, instead of all to one."""
    import torch

    original(model, ranks, **options)
    for parameter in model.parameters():
        if parameter.grad is not None:
            torch.nn.utils.clip_grad_norm_([parameter], 0.05)


@late("rldbg.trainer.policy.learning_rate", stage="parameter", cause="learning-rate")
def learning_rate_not_decayed(original: Any, settings: Any, _step: int, steps: int) -> float:
    """The schedule is never stepped."""
    return float(original(settings, 0, steps))


@late("rldbg.trainer.policy.make_optimizer", stage="parameter", cause="optimizer-epsilon")
def optimizer_epsilon_of_the_library(original: Any, parameters: Any, settings: Any) -> Any:
    """Adam's epsilon is the library's default of 1e-8."""
    return original(parameters, replace(settings, eps=1e-8))


@late("rldbg.trainer.policy.PolicyWorker.update", stage="parameter", cause="optimizer-reset")
def optimizer_state_lost(original: Any, worker: Any, step: int, shards: Any) -> Any:
    """The optimizer is made anew every step, so its moments start from nothing again."""
    from rldbg.trainer.steps import make_optimizer

    worker._optimizer = make_optimizer(worker._model.parameters(), worker._recipe.optimizer)
    return original(worker, step, shards)


@late("rldbg.trainer.steps.log_softmax", stage="old_log_probs", cause="softmax-twice")
def softmax_twice(original: Any, logits: Any) -> Any:
    """The model's head gives probabilities already, and they are normalised as if they were logits."""
    return original(original(logits).exp())


@late(targets.FORWARD, stage="forward", cause="precision")
def logits_in_bfloat16(original: Any, model: Any, *arguments: Any, **options: Any) -> Any:
    """The training pass has its logits in bfloat16, although the log softmax is in float32."""
    import torch

    class Rounded:
        def __call__(self, **inputs: Any) -> Any:
            output = model(**inputs)
            output.logits = output.logits.to(torch.bfloat16)
            return output

    is_training = torch.is_grad_enabled()
    return original(Rounded() if is_training else model, *arguments, **options)


@late(targets.FORWARD, stage="forward", cause="temperature")
def temperature_applied_twice(original: Any, *arguments: Any, **options: Any) -> Any:
    """In training the logits are divided by the temperature in the model's wrapper and in the loss."""
    return original(*arguments, **(options | {"temperature": options["temperature"] ** 2}))


@late(targets.MICRO_BATCHES, stage="old_log_probs", cause="tokens-not-attended")
def prompt_cut_on_the_left(original: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
    """The trainer's limit on prompts is one token short: it does not see the first token of the longest ones."""
    for micro in original(*arguments, **options):
        attended = micro.batch.attention_mask.clone()
        attended[attended[:, 0] != 0, 0] = 0
        yield replace(micro, batch=replace(micro.batch, attention_mask=attended))


@late("rldbg.trainer.policy.PolicyWorker.update", stage="forward", cause="reference-is-old-policy")
def reference_refreshed_each_step(original: Any, worker: Any, step: int, shards: Any) -> Any:
    """The reference is copied from the policy at the start of every step."""
    worker._reference.load_state_dict(worker._model.state_dict())
    return original(worker, step, shards)


BUGS = tuple(item for item in tuple(vars().values()) if isinstance(item, Bug))
