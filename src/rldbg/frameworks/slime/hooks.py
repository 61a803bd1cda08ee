"""Phases and records of slime: ranks are MegatronTrainRayActor, the rollout manager runs generate_rollout.

The manager's class is behind @ray.remote, so the function that it calls is named instead. Steps are rollouts, from 0.
"""

from functools import partial

from rldbg.agent.profiling import Hook
from rldbg.frameworks.base import BATCH_KINDS, LOSS_KINDS, UPDATE_KINDS

_MEGATRON = "slime.backends.megatron_utils"
_Hook = partial(Hook, seen="0.3.1")

HOOKS = (
    _Hook("slime.rollout.sglang_rollout", "generate_rollout", phase="rollout", step="rollout_id", offset=1),
    _Hook(
        f"{_MEGATRON}.actor",
        "MegatronTrainRayActor.train",
        phase="step",
        step="rollout_id",
        offset=1,
        owns_steps=True,
        handler="train",
    ),
    _Hook(f"{_MEGATRON}.actor", "MegatronTrainRayActor.compute_log_prob", phase="log_probs"),
    _Hook(f"{_MEGATRON}.actor", "MegatronTrainRayActor.train_actor", phase="update"),
    _Hook(f"{_MEGATRON}.actor", "MegatronTrainRayActor.update_weights", phase="sync"),
    _Hook(
        f"{_MEGATRON}.loss",
        "compute_advantages_and_returns",
        phase="advantage",
        records=BATCH_KINDS,
        handler="advantages",
    ),
    _Hook(f"{_MEGATRON}.loss", "get_log_probs_and_entropy", records=LOSS_KINDS, handler="log_probs"),
    _Hook(f"{_MEGATRON}.loss", "policy_loss_function", phase="loss", records=LOSS_KINDS, handler="loss"),
    _Hook(
        f"{_MEGATRON}.model", "train_one_step", phase="training_step", records=UPDATE_KINDS, handler="train_one_step"
    ),
)
