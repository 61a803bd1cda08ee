"""Bugs of data that is older than it says: weights of some engines, samples of a buffer, advantages of a queue."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rldbg.trainer.zoo import targets
from rldbg.trainer.zoo.asynchronous_bugs import LONGER
from rldbg.trainer.zoo.bug import Bug, bug, replaced


@bug(targets.LOAD_WEIGHTS, stage="trajectory", cause=(), late=True)
def weights_averaged_with_older_ones(original: Any, sampler: Any, weights: Any, policy_version: int) -> None:
    """The engine serves a moving average of the weights it was sent."""
    kept = sampler.__dict__.setdefault("average", {name: value.clone() for name, value in weights.items()})
    for name, value in weights.items():
        kept[name] = (kept[name] + value) / 2 if value.is_floating_point() else value
    original(sampler, kept, policy_version)


@bug(targets.GENERATE, stage="trajectory", cause="weights-not-synced", late=True)
def one_engine_not_synced(original: Any, sampler: Any, requests: Any, **options: Any) -> Any:
    """Every second request goes to an engine that still has the first weights, under the new version."""
    now = {name: value.clone() for name, value in sampler._model.state_dict().items()}
    first = sampler.__dict__.setdefault("first", now)
    made = original(sampler, requests, **options)
    sampler._model.load_state_dict(first)
    try:
        stale = original(sampler, requests, **options)
    finally:
        sampler._model.load_state_dict(now)
    return [new if request.key % 2 else old for request, new, old in zip(requests, made, stale, strict=True)]


@bug(
    "rldbg.trainer.in_process.InProcessRollouts.collect",
    stage="trajectory",
    cause="samples-of-another-step",
    overrides=LONGER,
    late=True,
)
def buffer_keeps_some_samples(original: Any, rollouts: Any, step: int, tasks: Any) -> Any:
    """A replay buffer returns the first sample of each group from the step before, under its new name."""
    made = original(rollouts, step, tasks)
    kept = rollouts.__dict__.get("waiting", made)
    rollouts.__dict__["waiting"] = made
    return [
        replace(old, sample=new.sample) if new.sample.run_id == 0 else new for new, old in zip(made, kept, strict=True)
    ]


@bug(
    "rldbg.trainer.learner.SelfHostedLearner.train",
    stage="advantage",
    cause="advantage-of-another-step",
    overrides=LONGER,
    late=True,
)
def advantages_one_step_late(original: Any, learner: Any, step: int, trajectories: Any) -> Any:
    """Advantages come from a queue that is one step behind."""

    def late(prepare: Any, *arguments: Any, **options: Any) -> Any:
        batch = prepare(*arguments, **options)
        before = learner.__dict__.get("waiting", batch.advantages)
        learner.__dict__["waiting"] = batch.advantages
        return replace(batch, advantages=before)

    with replaced(targets.PREPARE, late):
        return original(learner, step, trajectories)


@bug("rldbg.trainer.policy.PolicyWorker.log_probs", stage="old_log_probs", cause=(), overrides=LONGER, late=True)
def old_log_probs_of_older_weights(original: Any, worker: Any, shards: Any) -> Any:
    """The pass for the old log probs is served by a copy of the policy that is one step behind."""
    import copy

    behind = worker.__dict__.get("behind", worker._model)
    worker.__dict__["behind"] = copy.deepcopy(worker._model)
    model, worker._model = worker._model, behind
    try:
        return original(worker, shards)
    finally:
        worker._model = model


BUGS = tuple(item for item in tuple(vars().values()) if isinstance(item, Bug))
