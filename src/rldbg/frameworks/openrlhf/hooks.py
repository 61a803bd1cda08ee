"""Phases and records of OpenRLHF: the classes that its Ray actors hold; their own are behind @ray.remote."""

from rldbg.agent.profiling import Hook

_ACTOR = "openrlhf.trainer.ray.ppo_actor"
_MAKER = "openrlhf.trainer.ppo_utils.experience_maker"
_TRAINER = "openrlhf.trainer.ppo_trainer"
_SEEN = "0.11.2"
_BATCH = ("trajectory", "prepared_trajectories", "old_log_probs")
_LOSS = ("forward_data", "is_loss_debug", "loss")

HOOKS = (
    Hook(
        _TRAINER,
        "BasePPOTrainer.train_step",
        phase="step",
        step="global_step",
        offset=1,
        seen=_SEEN,
        handler="train_step",
    ),
    Hook(_MAKER, "RemoteExperienceMaker.make_experience", phase="log_probs", seen=_SEEN),
    Hook(
        _MAKER,
        "RemoteExperienceMaker.compute_advantages_and_returns",
        phase="advantage",
        seen=_SEEN,
        records=_BATCH,
        handler="advantages",
    ),
    Hook(_ACTOR, "ActorPPOTrainer.__init__", step="1", ends=True, owns_steps=True, seen=_SEEN),
    Hook(
        _ACTOR,
        "ActorPPOTrainer.ppo_train",
        phase="update",
        step="calls",
        offset=1,
        ends=True,
        seen=_SEEN,
        handler="ppo_train",
    ),
    Hook(
        _ACTOR,
        "ActorPPOTrainer.training_step",
        phase="training_step",
        seen=_SEEN,
        records=_LOSS,
        handler="training_step",
    ),
    Hook(_ACTOR, "ActorPPOTrainer.broadcast_to_vllm", phase="sync", seen=_SEEN),
    Hook("openrlhf.models.loss", "PolicyLoss.forward", phase="loss", seen=_SEEN, records=_LOSS, handler="policy_loss"),
    Hook(
        "openrlhf.utils.deepspeed.deepspeed",
        "DeepspeedStrategy.optimizer_step",
        phase="optimizer",
        seen=_SEEN,
        records=("gradient", "param", "update_metrics"),
        handler="optimizer_step",
    ),
)
