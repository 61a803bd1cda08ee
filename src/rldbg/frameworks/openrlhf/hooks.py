"""Phases of OpenRLHF: the classes that its Ray actors hold, not the actors' own, which are behind @ray.remote."""

from rldbg.agent.profiling import Hook

_ACTOR = "openrlhf.trainer.ray.ppo_actor"
_MAKER = "openrlhf.trainer.ppo_utils.experience_maker"

HOOKS = (
    Hook(
        "openrlhf.trainer.ppo_trainer",
        "BasePPOTrainer.train_step",
        phase="step",
        step="global_step",
        seen="0.11.2",
    ),
    Hook(_MAKER, "RemoteExperienceMaker.make_experience", phase="log_probs", seen="0.11.2"),
    Hook(_MAKER, "RemoteExperienceMaker.compute_advantages_and_returns", phase="advantage", seen="0.11.2"),
    Hook(_ACTOR, "ActorPPOTrainer.ppo_train", phase="update", seen="0.11.2"),
    Hook(_ACTOR, "ActorPPOTrainer.training_step", phase="training_step", seen="0.11.2"),
    Hook(_ACTOR, "ActorPPOTrainer.broadcast_to_vllm", phase="sync", seen="0.11.2"),
    Hook("openrlhf.models.loss", "PolicyLoss.forward", phase="loss", seen="0.11.2"),
)
