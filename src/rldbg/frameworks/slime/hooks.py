"""Phases of slime: ranks are MegatronTrainRayActor, the rollout manager runs generate_rollout.

The manager's class is behind @ray.remote, so the function that it calls is named instead. Steps are rollouts, from 0.
"""

from rldbg.agent.profiling import Hook

_MEGATRON = "slime.backends.megatron_utils"

HOOKS = (
    Hook(
        "slime.rollout.sglang_rollout", "generate_rollout", phase="rollout", step="rollout_id", offset=1, seen="0.3.1"
    ),
    Hook(
        f"{_MEGATRON}.actor",
        "MegatronTrainRayActor.train",
        phase="step",
        step="rollout_id",
        offset=1,
        owns_steps=True,
        seen="0.3.1",
    ),
    Hook(f"{_MEGATRON}.actor", "MegatronTrainRayActor.compute_log_prob", phase="log_probs", seen="0.3.1"),
    Hook(f"{_MEGATRON}.actor", "MegatronTrainRayActor.train_actor", phase="update", seen="0.3.1"),
    Hook(f"{_MEGATRON}.actor", "MegatronTrainRayActor.update_weights", phase="sync", seen="0.3.1"),
    Hook(f"{_MEGATRON}.loss", "policy_loss_function", phase="loss", seen="0.3.1"),
    Hook(f"{_MEGATRON}.model", "train_one_step", phase="training_step", seen="0.3.1"),
)
