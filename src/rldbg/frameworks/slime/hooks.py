"""Phases and records of slime: ranks are MegatronTrainRayActor, the rollout manager runs generate_rollout.

The manager's class is behind @ray.remote, so the function that it calls is named instead. Steps are rollouts, from 0.
"""

from rldbg.agent.profiling import Hook

_MEGATRON = "slime.backends.megatron_utils"
_SEEN = "0.3.1"
_LOSS = ("forward_data", "is_loss_debug", "loss")

HOOKS = (
    Hook("slime.rollout.sglang_rollout", "generate_rollout", phase="rollout", step="rollout_id", offset=1, seen=_SEEN),
    Hook(
        f"{_MEGATRON}.actor",
        "MegatronTrainRayActor.train",
        phase="step",
        step="rollout_id",
        offset=1,
        owns_steps=True,
        seen=_SEEN,
        handler="train",
    ),
    Hook(f"{_MEGATRON}.actor", "MegatronTrainRayActor.compute_log_prob", phase="log_probs", seen=_SEEN),
    Hook(f"{_MEGATRON}.actor", "MegatronTrainRayActor.train_actor", phase="update", seen=_SEEN),
    Hook(f"{_MEGATRON}.actor", "MegatronTrainRayActor.update_weights", phase="sync", seen=_SEEN),
    Hook(
        f"{_MEGATRON}.loss",
        "compute_advantages_and_returns",
        phase="advantage",
        seen=_SEEN,
        records=("trajectory", "prepared_trajectories", "old_log_probs"),
        handler="advantages",
    ),
    Hook(f"{_MEGATRON}.loss", "get_log_probs_and_entropy", seen=_SEEN, records=_LOSS, handler="log_probs"),
    Hook(f"{_MEGATRON}.loss", "policy_loss_function", phase="loss", seen=_SEEN, records=_LOSS, handler="loss"),
    Hook(
        f"{_MEGATRON}.model",
        "train_one_step",
        phase="training_step",
        seen=_SEEN,
        records=("gradient", "param", "update_metrics"),
        handler="train_one_step",
    ),
)
