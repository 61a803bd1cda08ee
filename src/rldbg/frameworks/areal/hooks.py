"""Phases of AReaL's trainer processes: the actor's own class, which the controller's copies call, and the engine."""

from rldbg.agent.profiling import Hook

_ACTOR = "areal.trainer.ppo.actor"
_ENGINES = (("areal.engine.fsdp_engine", "FSDPEngine"), ("areal.engine.megatron_engine", "MegatronEngine"))

HOOKS = (
    Hook(_ACTOR, "PPOActor.compute_logp", phase="log_probs", since="1.0.0", seen="1.0.4"),
    Hook(_ACTOR, "PPOActor.compute_advantages", phase="advantage", since="1.0.0", seen="1.0.4"),
    Hook(_ACTOR, "PPOActor.ppo_update", phase="update", since="1.0.0", seen="1.0.4"),
    Hook(_ACTOR, "grpo_loss_fn", phase="loss", since="1.0.0", seen="1.0.4"),
    *(
        Hook(module, f"{engine}.{method}", phase=phase, since="1.0.0", seen="1.0.4")
        for module, engine in _ENGINES
        for method, phase in (("prepare_batch", "rollout"), ("optimizer_step", "optimizer"), ("update_weights", "sync"))
    ),
)
