"""Phases of SkyRL: the trainer in its entry-point task, and the base classes of its Ray workers."""

from rldbg.agent.profiling import Hook

_TRAINER = "skyrl.train.trainer"
_WORKER = "skyrl.backends.skyrl_train.workers.worker"

HOOKS = (
    Hook(_TRAINER, "RayPPOTrainer.generate", phase="rollout", step="self.global_step", seen="0.3.0"),
    Hook(_TRAINER, "RayPPOTrainer.fwd_logprobs_values_reward", phase="log_probs", seen="0.3.0"),
    Hook(_TRAINER, "RayPPOTrainer.compute_advantages_and_returns", phase="advantage", seen="0.3.0"),
    Hook(_TRAINER, "RayPPOTrainer.train_critic_and_policy", phase="update", seen="0.3.0"),
    Hook(_WORKER, "PolicyWorkerBase.forward_backward", phase="training_step", seen="0.3.0"),
    Hook(_WORKER, "PolicyWorkerBase.optim_step", phase="optimizer", seen="0.3.0"),
)
