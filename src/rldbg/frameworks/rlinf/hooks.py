"""Phases and records of RLinf: what every algorithm calls, and the actor of reasoning tasks."""

from functools import partial

from rldbg.agent.profiling import Hook
from rldbg.frameworks.base import LOSS_KINDS, UPDATE_KINDS

_ACTOR = "rlinf.workers.actor.fsdp_actor_worker"
_ALGORITHMS = "rlinf.algorithms.registry"
_Hook = partial(Hook, seen="0.3.0")

HOOKS = (
    _Hook(_ALGORITHMS, "policy_loss", phase="loss", records=LOSS_KINDS, handler="loss"),
    _Hook(_ALGORITHMS, "calculate_adv_and_returns", phase="advantage"),
    _Hook(_ACTOR, "FSDPActor.run_inference", phase="log_probs"),
    _Hook(_ACTOR, "FSDPActor.__init__", step="1", ends=True, owns_steps=True),
    _Hook(_ACTOR, "FSDPActor.run_training", phase="update", step="calls", offset=1, ends=True, handler="run_training"),
    _Hook(
        _ACTOR,
        "FSDPActor.compute_advantages_and_returns",
        records=("trajectory", "prepared_trajectories"),
        handler="advantages",
    ),
    _Hook(_ACTOR, "FSDPActor.forward_batch", phase="forward", records=LOSS_KINDS, handler="forward"),
    _Hook(
        "rlinf.hybrid_engines.fsdp.fsdp_model_manager",
        "FSDPModelManager.optimizer_step",
        phase="optimizer",
        records=UPDATE_KINDS,
        handler="optimizer_step",
    ),
)
