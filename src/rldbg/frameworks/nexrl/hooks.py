"""Phases and records of NexRL: the trainer, and the ranks of its self-hosted training service."""

from rldbg.agent.profiling import Hook

_ACTOR = "nexrl.train_service_backend.fsdp_worker.fsdp_actor"
_SEEN = "1.4.0"

HOOKS = (
    Hook("nexrl.trainer.self_hosted_trainer", "SelfHostedTrainer.train", phase="step", seen=_SEEN),
    Hook("nexrl.trainer.remote_api_trainer", "RemoteApiTrainer.train", phase="step", seen=_SEEN),
    Hook(_ACTOR, "DataParallelPPOActor.compute_log_prob", phase="log_probs", seen=_SEEN),
    Hook(_ACTOR, "DataParallelPPOActor.__init__", step="1", ends=True, owns_steps=True, seen=_SEEN),
    Hook(
        _ACTOR,
        "DataParallelPPOActor.update_policy",
        phase="update",
        step="calls",
        offset=1,
        ends=True,
        seen=_SEEN,
        records=("trajectory", "prepared_trajectories"),
        handler="update_policy",
    ),
    Hook(_ACTOR, "DataParallelPPOActor._forward_micro_batch", phase="forward", seen=_SEEN, handler="forward"),
    Hook(
        "nexrl.train_service_backend.utils.core_algos",
        "compute_policy_loss_impl",
        phase="loss",
        seen=_SEEN,
        records=("forward_data", "is_loss_debug", "loss"),
        handler="loss",
    ),
    Hook(
        _ACTOR,
        "DataParallelPPOActor._optimizer_step",
        phase="optimizer",
        seen=_SEEN,
        records=("gradient", "param", "update_metrics"),
        handler="optimizer_step",
    ),
)
