"""Phases and records of SkyRL: the trainer in its entry-point task, and the base classes of its Ray workers."""

from rldbg.agent.profiling import Hook

_TRAINER = "skyrl.train.trainer"
_WORKER = "skyrl.backends.skyrl_train.workers.worker"
_MODEL = "skyrl.backends.skyrl_train.workers.model_wrapper"
_SEEN = "0.3.0"
_BATCH = ("trajectory", "prepared_trajectories", "old_log_probs")
_LOSS = ("forward_data", "is_loss_debug", "loss")

HOOKS = (
    Hook(_TRAINER, "RayPPOTrainer.generate", phase="rollout", step="self.global_step", seen=_SEEN),
    Hook(_TRAINER, "RayPPOTrainer.fwd_logprobs_values_reward", phase="log_probs", seen=_SEEN),
    Hook(_TRAINER, "RayPPOTrainer.compute_advantages_and_returns", phase="advantage", seen=_SEEN),
    Hook(
        _TRAINER,
        "RayPPOTrainer.train_critic_and_policy",
        phase="update",
        seen=_SEEN,
        records=_BATCH,
        handler="train",
    ),
    Hook(
        _WORKER,
        "PolicyWorkerBase.forward_backward",
        phase="training_step",
        step="data.metadata.global_step",
        owns_steps=True,
        seen=_SEEN,
        handler="forward_backward",
    ),
    Hook(_WORKER, "PolicyWorkerBase._forward_backward_micro", seen=_SEEN, records=_LOSS, handler="micro_batch"),
    Hook(_MODEL, "HFModelWrapper.forward", phase="forward", seen=_SEEN, records=_LOSS, handler="forward"),
    Hook(
        _WORKER,
        "PolicyWorkerBase.optim_step",
        phase="optimizer",
        seen=_SEEN,
        records=("gradient", "param", "update_metrics"),
        handler="optimizer_step",
    ),
)
