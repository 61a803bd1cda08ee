"""Phases and records of miles: the functions of slime in packages of its own. Steps are rollouts, from 0."""

from rldbg.agent.profiling import Hook

_MEGATRON = "miles.backends.megatron_utils"
_FSDP = "miles.backends.fsdp_utils.actor"
_TRAINING = "miles.backends.training_utils"
# The version that divided the losses into files, and has an actor for FSDP that is no experiment.
_SPLIT = "0.1.0"
_ACTORS = (
    (f"{_MEGATRON}.actor", "MegatronTrainRayActor", ""),
    (_FSDP, "FSDPTrainRayActor", _SPLIT),
)
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
            since=since,
            seen=_SEEN,
            handler="train",
        )
        for module, actor, since in _ACTORS
    ),
    Hook(f"{_MEGATRON}.actor", "MegatronTrainRayActor.compute_log_prob", phase="log_probs", seen=_SEEN),
    Hook(f"{_MEGATRON}.actor", "MegatronTrainRayActor.train_actor", phase="update", seen=_SEEN),
    *(
        Hook(module, f"{actor}.update_weights", phase="sync", since=since, seen=_SEEN)
        for module, actor, since in _ACTORS
    ),
    Hook(
        f"{_TRAINING}.loss",
        "compute_advantages_and_returns",
        phase="advantage",
        seen=_SEEN,
        records=("trajectory", "prepared_trajectories", "old_log_probs"),
        handler="advantages",
    ),
    *(
        Hook(
            f"{_TRAINING}.{module}",
            function,
            phase=phase,
            since=since,
            gone=gone,
            seen=seen,
            records=_LOSS,
            handler=handler,
        )
        for function, phase, handler, place in (
            ("get_log_probs_and_entropy", "", "log_probs", "loss_hub.logit_processors"),
            ("policy_loss_function", "loss", "loss", "loss_hub.losses"),
        )
        for module, since, gone, seen in ((place, _SPLIT, "", _SEEN), ("loss", "", _SPLIT, "0.0.2"))
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
