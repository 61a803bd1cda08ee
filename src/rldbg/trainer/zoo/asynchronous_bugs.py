"""Bugs of asynchronous rollouts: stale versions, partial rollouts, shared random numbers, late samples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from rldbg.inference import Sampler
from rldbg.trainer.zoo import targets
from rldbg.trainer.zoo.bug import Bug, bug
from rldbg.trainer.zoo.turn_bugs import TURNS

LONGER = ("steps=4",)
_COLLECT = "rldbg.trainer.in_process.InProcessRollouts.collect"
_KEY = "rldbg.trainer.rollout.sample_key"
_COPIES = ("samples-duplicated", "samples-copied")


@bug(targets.LOAD_WEIGHTS, stage="trajectory", cause="policy-version", overrides=LONGER, late=True)
def every_second_sync_skipped(original: Any, sampler: Sampler, weights: Any, policy_version: int) -> None:
    """The engine takes new weights at every second version only."""
    if policy_version % 2 == 0:
        original(sampler, weights, policy_version)


@bug(targets.LOAD_WEIGHTS, stage="trajectory", cause="policy-version", overrides=LONGER, late=True)
def engine_two_versions_behind(original: Any, sampler: Any, weights: Any, policy_version: int) -> None:
    """The engine loads weights two versions late, and reports their own version."""
    queue = sampler.__dict__.setdefault("queue", [])
    queue.append(({name: value.clone() for name, value in weights.items()}, policy_version))
    original(sampler, *queue[max(len(queue) - 3, 0)])


@bug(targets.LOAD_WEIGHTS, stage="trajectory", cause="weights-not-synced", late=True)
def engine_restarted_from_checkpoint(original: Any, sampler: Any, weights: Any, policy_version: int) -> None:
    """The engine is restarted with the checkpoint that training began with, and reports the newest version."""
    first = sampler.__dict__.setdefault("first", {name: value.clone() for name, value in weights.items()})
    original(sampler, first, policy_version)


@bug(targets.LOAD_WEIGHTS, stage="trajectory", cause=(), late=True)
def embeddings_not_synced(original: Any, sampler: Any, weights: Any, policy_version: int) -> None:
    """Tied embeddings are skipped when weights are loaded."""
    own = {name: value.clone() for name, value in sampler._model.state_dict().items()}
    skipped = {name: own[name] for name in own if "embed" in name} if policy_version else {}
    original(sampler, {**weights, **skipped}, policy_version)


@bug("rldbg.trainer.rollout._Conversation.say", stage="trajectory", cause="version-label", late=True)
def version_stamped_one_early(original: Any, conversation: Any, generation: Any) -> None:
    """Tokens carry the version before the one that sampled them; the weights are the right ones."""
    original(conversation, replace(generation, policy_version=max(generation.policy_version - 1, 0)))


@bug(
    targets.GENERATE,
    stage="trajectory",
    cause="weights-not-synced",
    overrides=TURNS,
    late=True,
)
def partial_rollouts_keep_old_weights(original: Any, sampler: Any, requests: Any, **options: Any) -> Any:
    """Conversations resumed after a sync continue with the weights they started with, under the new version."""
    now = {name: value.clone() for name, value in sampler._model.state_dict().items()}
    kept = sampler.__dict__.setdefault("kept", now)
    if not requests or not requests[0].position:
        return original(sampler, requests, **options)
    sampler._model.load_state_dict(kept)
    try:
        return original(sampler, requests, **options)
    finally:
        sampler._model.load_state_dict(now)


@bug(_COLLECT, stage="trajectory", cause="samples-of-another-step", overrides=LONGER, late=True)
def samples_one_step_late(original: Any, rollouts: Any, step: int, tasks: Any) -> Any:
    """A queue between rollout and trainer delivers the samples of the step before."""
    made = original(rollouts, step, tasks)
    late = rollouts.__dict__.get("waiting", made)
    rollouts.__dict__["waiting"] = made
    return late


@bug(_COLLECT, stage="reward", cause="reward-of-another-step", overrides=LONGER, late=True)
def rewards_one_step_late(original: Any, rollouts: Any, step: int, tasks: Any) -> Any:
    """Rewards come from a queue that is one step behind."""
    made = original(rollouts, step, tasks)
    late = rollouts.__dict__.get("waiting", [item.reward for item in made])
    rollouts.__dict__["waiting"] = [item.reward for item in made]
    return [replace(item, reward=reward) for item, reward in zip(made, late, strict=True)]


@bug(_KEY, stage="trajectory", cause="samples-duplicated", late=True)
def two_workers_share_a_seed(original: Any, seed: int, step: int, sample: Any) -> Any:
    """Two rollout workers take half of each group with the same seed."""
    return original(seed, step, sample._replace(run_id=sample.run_id % 2))


@bug(_KEY, stage="trajectory", cause="seed", late=True)
def all_groups_share_random_numbers(original: Any, seed: int, step: int, sample: Any) -> Any:
    """The random numbers of a sample do not depend on its group."""
    return original(seed, step, sample._replace(group_id=""))


@bug(_KEY, stage="trajectory", cause="seed", late=True)
def every_step_shares_random_numbers(original: Any, seed: int, step: int, sample: Any) -> Any:
    """The random numbers of a sample do not depend on the step."""
    return original(seed, 0, sample)


@bug("rldbg.trainer.rollout.RolloutWorker.run", stage="trajectory", cause=_COPIES, late=True)
def retried_samples_returned_twice(original: Any, worker: Any, step: int, tasks: Any) -> Any:
    """A retry returns the previous request's sample instead of its own."""
    made = original(worker, step, tasks)
    return [
        replace(made[row - 1], sample=item.sample) if item.sample.run_id == 3 else item for row, item in enumerate(made)
    ]


@bug("rldbg.trainer.rollout.RolloutWorker.run", stage="reward", cause="rows-permuted", late=True)
def rewards_exchanged_within_groups(original: Any, worker: Any, step: int, tasks: Any) -> Any:
    """Rewards of a group are gathered in the order in which its samples finished."""
    made = original(worker, step, tasks)
    by_group: dict[str, list[Any]] = {}
    for item in made:
        by_group.setdefault(item.sample.group_id, []).append(item)
    rewards = {
        item.sample: other.reward
        for items in by_group.values()
        for item, other in zip(items, [*items[1:], items[0]], strict=True)
    }
    return [replace(item, reward=rewards[item.sample]) for item in made]


@bug(targets.SAMPLE_TOKENS, stage="trajectory", cause="truncated-support", late=True)
def sampling_truncated_silently(original: Any, logits: Any, rules: Any, numbers: Any) -> Any:
    """The engine samples from the 2 most likely tokens and reports log probs over the whole vocabulary."""
    return original(logits, [replace(rule, top_k=2) for rule in rules], numbers)


@bug(targets.FINISH, stage="reward", cause="reward-shaped", late=True)
def reward_minus_log_prob(original: Any, worker: Any, conversation: Any) -> Any:
    """A bonus of a tenth of the sample's negative log likelihood is in the reward."""
    trajectory = original(worker, conversation)
    bonus = 0.1 * float(trajectory.logprobs[trajectory.loss_mask != 0].sum())
    return replace(trajectory, reward=trajectory.reward - bonus)


@bug(targets.PREPARE, stage="advantage", cause="advantage-normalisation", overrides=TURNS, late=True)
def reward_clipped_before_normalisation(original: Any, trajectories: Any, *arguments: Any, **options: Any) -> Any:
    """Rewards are clipped to 0.6 before they are normalised; the record has the full ones."""
    return original(
        [replace(item, reward=float(np.clip(item.reward, 0.0, 0.6))) for item in trajectories], *arguments, **options
    )


BUGS = tuple(item for item in tuple(vars().values()) if isinstance(item, Bug))
