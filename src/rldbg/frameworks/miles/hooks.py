"""Phases and records of miles: the functions of slime in packages of its own. Steps are rollouts, from 0."""

from rldbg.agent.profiling import Hook

_MEGATRON = "miles.backends.megatron_utils"
_FSDP = "miles.backends.fsdp_utils.actor"
_TRAINING = "miles.backends.training_utils"
_ACTORS = ((f"{_MEGATRON}.actor", "MegatronTrainRayActor"), (_FSDP, "FSDPTrainRayActor"))
_SEEN = "0.1.0"
_LOSS = ("forward_data", "is_loss_debug", "loss")

HOOKS = (
    Hook("miles.rollout.sglang_rollout", "generate_rollout", phase="rollout", step="rollout_id", offset=1, seen=_SEEN),
    *(
        Hook(
            module,
            f"{actor}.train",
            phase="step",
            step="rollout_id",
            offset=1,
            owns_steps=True,
            seen=_SEEN,
            handler="train",
        )
        for module, actor in _ACTORS
    ),
    Hook(f"{_MEGATRON}.actor", "MegatronTrainRayActor.compute_log_prob", phase="log_probs", seen=_SEEN),
    Hook(f"{_MEGATRON}.actor", "MegatronTrainRayActor.train_actor", phase="update", seen=_SEEN),
    *(Hook(module, f"{actor}.update_weights", phase="sync", seen=_SEEN) for module, actor in _ACTORS),
    Hook(
        f"{_TRAINING}.loss",
        "compute_advantages_and_returns",
        phase="advantage",
        seen=_SEEN,
        records=("trajectory", "prepared_trajectories", "old_log_probs"),
        handler="advantages",
    ),
    Hook(
        f"{_TRAINING}.loss_hub.logit_processors",
        "get_log_probs_and_entropy",
        seen=_SEEN,
        records=_LOSS,
        handler="log_probs",
    ),
    Hook(
        f"{_TRAINING}.loss_hub.losses",
        "policy_loss_function",
        phase="loss",
        seen=_SEEN,
        records=_LOSS,
        handler="loss",
    ),
    Hook(
        f"{_MEGATRON}.model",
        "train_one_step",
        phase="training_step",
        seen=_SEEN,
        records=("gradient", "param", "update_metrics"),
        handler="train_one_step",
    ),
)
