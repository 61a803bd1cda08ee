"""Phases and records of RLinf: what every algorithm calls, and the actor of reasoning tasks."""

from rldbg.agent.profiling import Hook

_ACTOR = "rlinf.workers.actor.fsdp_actor_worker"
_ALGORITHMS = "rlinf.algorithms.registry"
_SEEN = "0.3.0"
_LOSS = ("forward_data", "is_loss_debug", "loss")

HOOKS = (
    Hook(_ALGORITHMS, "policy_loss", phase="loss", seen=_SEEN, records=_LOSS, handler="loss"),
    Hook(_ALGORITHMS, "calculate_adv_and_returns", phase="advantage", seen=_SEEN),
    Hook(_ACTOR, "FSDPActor.run_inference", phase="log_probs", seen=_SEEN),
    Hook(_ACTOR, "FSDPActor.__init__", step="1", ends=True, owns_steps=True, seen=_SEEN),
    Hook(
        _ACTOR,
        "FSDPActor.run_training",
        phase="update",
        step="calls",
        offset=1,
        ends=True,
        seen=_SEEN,
        handler="run_training",
    ),
    Hook(
        _ACTOR,
        "FSDPActor.compute_advantages_and_returns",
        seen=_SEEN,
        records=("trajectory", "prepared_trajectories"),
        handler="advantages",
    ),
    Hook(_ACTOR, "FSDPActor.forward_batch", phase="forward", seen=_SEEN, records=_LOSS, handler="forward"),
    Hook(
        "rlinf.hybrid_engines.fsdp.fsdp_model_manager",
        "FSDPModelManager.optimizer_step",
        phase="optimizer",
        seen=_SEEN,
        records=("gradient", "param", "update_metrics"),
        handler="optimizer_step",
    ),
)
