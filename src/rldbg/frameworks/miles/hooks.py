"""Phases and records of miles: the functions of slime in packages of its own. Steps are rollouts, from 0."""

from functools import partial

from rldbg.agent.profiling import Hook
from rldbg.frameworks.base import BATCH_KINDS, LOSS_KINDS, UPDATE_KINDS

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
_Hook = partial(Hook, seen=_SEEN)

HOOKS = (
    _Hook("miles.rollout.sglang_rollout", "generate_rollout", phase="rollout", step="rollout_id", offset=1),
    *(
        _Hook(
            module,
            f"{actor}.train",
            phase="step",
            step="rollout_id",
            offset=1,
            owns_steps=True,
            since=since,
            handler="train",
        )
        for module, actor, since in _ACTORS
    ),
    _Hook(f"{_MEGATRON}.actor", "MegatronTrainRayActor.compute_log_prob", phase="log_probs"),
    _Hook(f"{_MEGATRON}.actor", "MegatronTrainRayActor.train_actor", phase="update"),
    *(_Hook(module, f"{actor}.update_weights", phase="sync", since=since) for module, actor, since in _ACTORS),
    _Hook(
        f"{_TRAINING}.loss",
        "compute_advantages_and_returns",
        phase="advantage",
        records=BATCH_KINDS,
        handler="advantages",
    ),
    *(
        _Hook(
            f"{_TRAINING}.{module}",
            function,
            phase=phase,
            since=since,
            gone=gone,
            seen=seen,
            records=LOSS_KINDS,
            handler=handler,
        )
        for function, phase, handler, place in (
            ("get_log_probs_and_entropy", "", "log_probs", "loss_hub.logit_processors"),
            ("policy_loss_function", "loss", "loss", "loss_hub.losses"),
        )
        for module, since, gone, seen in ((place, _SPLIT, "", _SEEN), ("loss", "", _SPLIT, "0.0.2"))
    ),
    _Hook(
        f"{_MEGATRON}.model", "train_one_step", phase="training_step", records=UPDATE_KINDS, handler="train_one_step"
    ),
)
