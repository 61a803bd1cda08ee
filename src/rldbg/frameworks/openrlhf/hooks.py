"""Phases and records of OpenRLHF: the classes that its Ray actors hold; their own are behind @ray.remote."""

from functools import partial

from rldbg.agent.profiling import Hook
from rldbg.frameworks.base import BATCH_KINDS, LOSS_KINDS, UPDATE_KINDS

_ACTOR = "openrlhf.trainer.ray.ppo_actor"
_MAKER = "openrlhf.trainer.ppo_utils.experience_maker"
_TRAINER = "openrlhf.trainer.ppo_trainer"
_Hook = partial(Hook, seen="0.11.2")

HOOKS = (
    _Hook(_TRAINER, "BasePPOTrainer.train_step", phase="step", step="global_step", offset=1, handler="train_step"),
    _Hook(_MAKER, "RemoteExperienceMaker.make_experience", phase="log_probs"),
    _Hook(
        _MAKER,
        "RemoteExperienceMaker.compute_advantages_and_returns",
        phase="advantage",
        records=BATCH_KINDS,
        handler="advantages",
    ),
    _Hook(_ACTOR, "ActorPPOTrainer.__init__", step="1", ends=True, owns_steps=True),
    _Hook(_ACTOR, "ActorPPOTrainer.ppo_train", phase="update", step="calls", offset=1, ends=True, handler="ppo_train"),
    _Hook(_ACTOR, "ActorPPOTrainer.training_step", phase="training_step", records=LOSS_KINDS, handler="training_step"),
    _Hook(_ACTOR, "ActorPPOTrainer.broadcast_to_vllm", phase="sync"),
    _Hook("openrlhf.models.loss", "PolicyLoss.forward", phase="loss", records=LOSS_KINDS, handler="policy_loss"),
    _Hook(
        "openrlhf.utils.deepspeed.deepspeed",
        "DeepspeedStrategy.optimizer_step",
        phase="optimizer",
        records=UPDATE_KINDS,
        handler="optimizer_step",
    ),
)
