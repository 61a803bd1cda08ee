"""Where in each framework the phases of a step are, and where its steps begin: plain data for the agent.

A module that a process never imports costs nothing; a function that a version of a framework lacks is one phase less.
Phases: rollout, log_probs, reward, loss, backward, optimizer, sync; `step` is the whole of one.
"""

from rldbg.profiling import Hook

_COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
)

_TORCH = (
    Hook("torch.autograd", "backward", phase="backward"),
    *(Hook("torch.distributed.distributed_c10d", name, phase="sync") for name in _COLLECTIVES),
)

# Its steps count from 0. A policy rank's step goes on from one update to the next: log probs come first.
_TRAINER = (
    Hook("rldbg.trainer.controller", "Controller._step", phase="step", step="step", offset=1),
    Hook("rldbg.trainer.policy", "PolicyWorker.start", phase="start", step="1", ends=True, owns_steps=True),
    Hook("rldbg.trainer.policy", "PolicyWorker.log_probs", phase="log_probs"),
    Hook("rldbg.trainer.policy", "PolicyWorker.update", phase="update", step="step", offset=2, ends=True),
    Hook("rldbg.trainer.policy", "PolicyWorker.weights", phase="sync"),
    Hook("rldbg.trainer.steps", "forward", phase="forward"),
    Hook("rldbg.trainer.steps", "compute_loss", phase="loss"),
    Hook("rldbg.trainer.actors", "RolloutActor.run", phase="rollout", step="step", offset=1),
    Hook("rldbg.trainer.inference_server", "InferenceServer.generate", phase="request"),
    Hook(
        "rldbg.trainer.inference_server",
        "InferenceServer.load_weights",
        phase="sync",
        step="policy_version",
        offset=1,
    ),
)

_TRL = (
    Hook("transformers.trainer_callback", "CallbackHandler.on_step_begin", step="state.global_step", offset=1),
    Hook("trl.trainer.grpo_trainer", "GRPOTrainer._generate_and_score_completions", phase="rollout"),
    Hook("trl.trainer.grpo_trainer", "GRPOTrainer._get_per_token_logps_and_entropies", phase="log_probs"),
    Hook("trl.trainer.grpo_trainer", "GRPOTrainer._calculate_rewards", phase="reward"),
    Hook("trl.trainer.grpo_trainer", "GRPOTrainer._compute_loss", phase="loss"),
    Hook("transformers.trainer", "Trainer.training_step", phase="training_step"),
)

_VERL = (
    Hook("verl.workers.actor.dp_actor", "DataParallelPPOActor.compute_log_prob", phase="log_probs"),
    Hook("verl.workers.actor.dp_actor", "DataParallelPPOActor.update_policy", phase="update"),
    Hook("verl.workers.rollout.vllm_rollout.vllm_rollout_spmd", "vLLMRollout.generate_sequences", phase="rollout"),
    Hook("verl.workers.fsdp_workers", "ActorRolloutRefWorker.generate_sequences", phase="rollout"),
    Hook("verl.trainer.ppo.ray_trainer", "compute_advantage", phase="advantage"),
)

_NEMO_RL = (
    Hook("nemo_rl.models.policy.dtensor_policy_worker", "DTensorPolicyWorker.train", phase="update"),
    Hook("nemo_rl.models.policy.dtensor_policy_worker", "DTensorPolicyWorker.get_logprobs", phase="log_probs"),
    Hook("nemo_rl.models.generation.vllm", "VllmGenerationWorker.generate", phase="rollout"),
    Hook("nemo_rl.algorithms.grpo", "refit_policy_generation", phase="sync"),
)

_ENGINES = (
    Hook("vllm.entrypoints.llm", "LLM.generate", phase="request"),
    Hook("vllm.worker.worker_base", "LocalOrDistributedWorkerBase.execute_model", phase="forward"),
    Hook("sglang.srt.managers.scheduler", "Scheduler.run_batch", phase="forward"),
)


def profile_hooks() -> tuple[Hook, ...]:
    """Every hook of every framework that rldbg knows."""
    return (*_TORCH, *_TRAINER, *_TRL, *_VERL, *_NEMO_RL, *_ENGINES)
