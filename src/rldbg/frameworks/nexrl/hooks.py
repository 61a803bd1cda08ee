"""Phases and records of NexRL: the trainer, and the ranks of its self-hosted training service."""

from functools import partial

from rldbg.agent.profiling import Hook
from rldbg.frameworks.base import LOSS_KINDS, UPDATE_KINDS

_ACTOR = "nexrl.train_service_backend.fsdp_worker.fsdp_actor"
_Hook = partial(Hook, seen="1.4.0")

HOOKS = (
    _Hook("nexrl.trainer.self_hosted_trainer", "SelfHostedTrainer.train", phase="step"),
    _Hook("nexrl.trainer.remote_api_trainer", "RemoteApiTrainer.train", phase="step"),
    _Hook(_ACTOR, "DataParallelPPOActor.compute_log_prob", phase="log_probs"),
    _Hook(_ACTOR, "DataParallelPPOActor.__init__", step="1", ends=True, owns_steps=True),
    _Hook(
        _ACTOR,
        "DataParallelPPOActor.update_policy",
        phase="update",
        step="calls",
        offset=1,
        ends=True,
        records=("trajectory", "prepared_trajectories"),
        handler="update_policy",
    ),
    _Hook(_ACTOR, "DataParallelPPOActor._forward_micro_batch", phase="forward", handler="forward"),
    _Hook(
        "nexrl.train_service_backend.utils.core_algos",
        "compute_policy_loss_impl",
        phase="loss",
        records=LOSS_KINDS,
        handler="loss",
    ),
    _Hook(
        _ACTOR,
        "DataParallelPPOActor._optimizer_step",
        phase="optimizer",
        records=UPDATE_KINDS,
        handler="optimizer_step",
    ),
)
