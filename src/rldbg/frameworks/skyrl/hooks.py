"""Phases and records of SkyRL: the trainer in its entry-point task, and the base classes of its Ray workers."""

from functools import partial

from rldbg.agent.profiling import Hook
from rldbg.frameworks.base import BATCH_KINDS, LOSS_KINDS, UPDATE_KINDS

_TRAINER = "skyrl.train.trainer"
_WORKER = "skyrl.backends.skyrl_train.workers.worker"
_MODEL = "skyrl.backends.skyrl_train.workers.model_wrapper"
_Hook = partial(Hook, seen="0.3.0")

HOOKS = (
    _Hook(_TRAINER, "RayPPOTrainer.generate", phase="rollout", step="self.global_step"),
    _Hook(_TRAINER, "RayPPOTrainer.fwd_logprobs_values_reward", phase="log_probs"),
    _Hook(_TRAINER, "RayPPOTrainer.compute_advantages_and_returns", phase="advantage"),
    _Hook(_TRAINER, "RayPPOTrainer.train_critic_and_policy", phase="update", records=BATCH_KINDS, handler="train"),
    _Hook(
        _WORKER,
        "PolicyWorkerBase.forward_backward",
        phase="training_step",
        step="data.metadata.global_step",
        owns_steps=True,
        handler="forward_backward",
    ),
    _Hook(_WORKER, "PolicyWorkerBase._forward_backward_micro", records=LOSS_KINDS, handler="micro_batch"),
    _Hook(_MODEL, "HFModelWrapper.forward", phase="forward", records=LOSS_KINDS, handler="forward"),
    _Hook(_WORKER, "PolicyWorkerBase.optim_step", phase="optimizer", records=UPDATE_KINDS, handler="optimizer_step"),
)
