"""Phases of RLinf: what every algorithm calls, and the actor of reasoning tasks."""

from rldbg.agent.profiling import Hook

_ACTOR = "rlinf.workers.actor.fsdp_actor_worker"

HOOKS = (
    Hook("rlinf.algorithms.registry", "policy_loss", phase="loss", seen="0.3.0"),
    Hook("rlinf.algorithms.registry", "calculate_adv_and_returns", phase="advantage", seen="0.3.0"),
    Hook(_ACTOR, "FSDPActor.run_inference", phase="log_probs", seen="0.3.0"),
    Hook(_ACTOR, "FSDPActor.run_training", phase="update", seen="0.3.0"),
)
