"""Phases and records of NeMo RL: the driver calls grpo_train, workers are Ray actors made from the *Impl classes.

The class that Ray decorates is sent to its workers by value; its base, named here, is imported there.
"""

from functools import partial

from rldbg.agent.profiling import Hook
from rldbg.frameworks.base import BATCH_KINDS, LOSS_KINDS, UPDATE_KINDS

_WORKERS = "nemo_rl.models.policy.workers"
_VLLM = "nemo_rl.models.generation.vllm"
_POLICIES = (
    (f"{_WORKERS}.dtensor_policy_worker", "DTensorPolicyWorkerImpl"),
    (f"{_WORKERS}.dtensor_policy_worker_v2", "DTensorPolicyWorkerV2Impl"),
    (f"{_WORKERS}.megatron_policy_worker", "MegatronPolicyWorkerImpl"),
)
_ESTIMATORS = ("GRPO", "GDPO", "ReinforcePlusPlus", "RawReward")
_Hook = partial(Hook, since="0.7.0", seen="0.7.0")

HOOKS = (
    Hook("nemo_rl.algorithms.grpo", "refit_policy_generation", phase="sync", seen="0.7.0"),
    *(
        _Hook(
            "nemo_rl.algorithms.advantage_estimator",
            f"{name}AdvantageEstimator.compute_advantage",
            phase="advantage",
            handler="advantage",
        )
        for name in _ESTIMATORS
    ),
    _Hook("nemo_rl.models.policy.lm_policy", "Policy.__init__", step="1", ends=True, owns_steps=True),
    _Hook(
        "nemo_rl.models.policy.lm_policy",
        "Policy.train",
        phase="update",
        step="calls",
        offset=1,
        ends=True,
        records=BATCH_KINDS,
        handler="policy_train",
    ),
    *(
        _Hook(
            module,
            f"{worker}.train",
            phase="update",
            step="calls",
            offset=1,
            ends=True,
            since="0.6.0",
            handler="worker_train",
        )
        for module, worker in _POLICIES
    ),
    *(
        _Hook(module, f"{worker}.__init__", step="1", ends=True, owns_steps=True, since="0.6.0")
        for module, worker in _POLICIES
    ),
    *(_Hook(module, f"{worker}.get_logprobs", phase="log_probs", since="0.6.0") for module, worker in _POLICIES),
    _Hook(
        "nemo_rl.algorithms.loss.loss_functions",
        "ClippedPGLossFn.__call__",
        phase="loss",
        records=LOSS_KINDS,
        handler="loss",
    ),
    Hook(
        "nemo_automodel.components.training.utils",
        "scale_grads_and_clip_grad_norm",
        records=UPDATE_KINDS,
        handler="clip",
    ),
    _Hook(f"{_VLLM}.vllm_worker", "VllmGenerationWorkerImpl.generate", phase="rollout"),
    _Hook(f"{_VLLM}.vllm_worker_async", "VllmAsyncGenerationWorkerImpl.generate_async", phase="rollout"),
)
