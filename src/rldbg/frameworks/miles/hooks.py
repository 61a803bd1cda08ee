"""Phases of miles, whose functions are those of slime in packages of its own. Steps are rollouts, from 0."""

from rldbg.agent.profiling import Hook

_MEGATRON = "miles.backends.megatron_utils"
_FSDP = "miles.backends.fsdp_utils.actor"

HOOKS = (
    Hook(
        "miles.rollout.sglang_rollout", "generate_rollout", phase="rollout", step="rollout_id", offset=1, seen="0.1.0"
    ),
    *(
        Hook(module, f"{actor}.train", phase="step", step="rollout_id", offset=1, owns_steps=True, seen="0.1.0")
        for module, actor in ((f"{_MEGATRON}.actor", "MegatronTrainRayActor"), (_FSDP, "FSDPTrainRayActor"))
    ),
    Hook(f"{_MEGATRON}.actor", "MegatronTrainRayActor.compute_log_prob", phase="log_probs", seen="0.1.0"),
    Hook(f"{_MEGATRON}.actor", "MegatronTrainRayActor.train_actor", phase="update", seen="0.1.0"),
    Hook(f"{_MEGATRON}.actor", "MegatronTrainRayActor.update_weights", phase="sync", seen="0.1.0"),
    Hook(_FSDP, "FSDPTrainRayActor.update_weights", phase="sync", seen="0.1.0"),
    Hook(f"{_MEGATRON}.model", "train_one_step", phase="training_step", seen="0.1.0"),
    Hook("miles.backends.training_utils.loss_hub.losses", "policy_loss_function", phase="loss", seen="0.1.0"),
)
