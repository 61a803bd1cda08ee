"""Phases of NeMo RL: the driver calls grpo_train, workers are Ray actors made from the *Impl classes.

The class that Ray decorates is sent to its workers by value; its base, named here, is imported there.
"""

from rldbg.agent.profiling import Hook

_WORKERS = "nemo_rl.models.policy.workers"
_VLLM = "nemo_rl.models.generation.vllm"
_POLICIES = (
    (f"{_WORKERS}.dtensor_policy_worker", "DTensorPolicyWorkerImpl"),
    (f"{_WORKERS}.dtensor_policy_worker_v2", "DTensorPolicyWorkerV2Impl"),
    (f"{_WORKERS}.megatron_policy_worker", "MegatronPolicyWorkerImpl"),
)

HOOKS = (
    Hook("nemo_rl.algorithms.grpo", "refit_policy_generation", phase="sync", seen="0.7.0"),
    *(
        Hook(module, f"{worker}.{method}", phase=phase, since="0.6.0", seen="0.7.0")
        for module, worker in _POLICIES
        for method, phase in (("train", "update"), ("get_logprobs", "log_probs"))
    ),
    Hook(f"{_VLLM}.vllm_worker", "VllmGenerationWorkerImpl.generate", phase="rollout", since="0.7.0", seen="0.7.0"),
    Hook(
        f"{_VLLM}.vllm_worker_async",
        "VllmAsyncGenerationWorkerImpl.generate_async",
        phase="rollout",
        since="0.7.0",
        seen="0.7.0",
    ),
)
