"""Phases and records of AReaL's trainer processes: the actor's own class, and the engine."""

from functools import partial

from rldbg.agent.profiling import Hook
from rldbg.frameworks.base import BATCH_KINDS, LOSS_KINDS, UPDATE_KINDS

_ACTOR = "areal.trainer.ppo.actor"
_ENGINES = (("areal.engine.fsdp_engine", "FSDPEngine"), ("areal.engine.megatron_engine", "MegatronEngine"))
_Hook = partial(Hook, since="1.0.0", seen="1.0.4")

HOOKS = (
    _Hook(_ACTOR, "PPOActor.__init__", step="1", ends=True, owns_steps=True),
    _Hook(_ACTOR, "PPOActor.compute_logp", phase="log_probs"),
    _Hook(_ACTOR, "PPOActor.compute_advantages", phase="advantage", records=BATCH_KINDS, handler="advantages"),
    _Hook(_ACTOR, "PPOActor.ppo_update", phase="update", step="calls", offset=1, ends=True, handler="update"),
    _Hook(_ACTOR, "grpo_loss_fn", phase="loss", records=LOSS_KINDS, handler="loss"),
    *(
        _Hook(module, f"{engine}.{method}", phase=phase)
        for module, engine in _ENGINES
        for method, phase in (("prepare_batch", "rollout"), ("update_weights", "sync"))
    ),
    _Hook(_ENGINES[0][0], "FSDPEngine.train_batch", handler="train_batch"),
    _Hook(
        _ENGINES[0][0], "FSDPEngine.optimizer_step", phase="optimizer", records=UPDATE_KINDS, handler="optimizer_step"
    ),
    _Hook(_ENGINES[1][0], "MegatronEngine.optimizer_step", phase="optimizer"),
)
