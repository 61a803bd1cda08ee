"""Phases of verl: the driver (TaskRunner actor) runs the trainer, ranks (WorkerDict actors) run an engine.

The driver of 0.9 and later passes keys of batches (trainer.ppo.v1), that of earlier versions the batches themselves
(trainer.ppo.ray_trainer, which is still there). Steps count from 1 in both.
"""

from functools import partial

from rldbg.agent.profiling import Hook
from rldbg.frameworks.base import BATCH_KINDS, UPDATE_KINDS, WEIGHT_KINDS

_V1 = "verl.trainer.ppo.v1.trainer_base"
_V0 = "verl.trainer.ppo.ray_trainer"
_BUFFER = "verl.trainer.ppo.v1.replay_buffer"
_AGENTS = "verl.experimental.agent_loop.agent_loop"
_WORKERS = "verl.workers.engine_workers"
_FSDP = "verl.workers.engine.fsdp.transformer_impl"
_MEGATRON = "verl.workers.engine.megatron.transformer_impl"
_OLD_ACTOR = "verl.workers.actor.dp_actor"
_Hook = partial(Hook, since="0.9.0", seen="0.9.1")

_DRIVER = (
    _Hook(
        _V1, "PPOTrainer.step", phase="step", step="self.global_steps", records=("training_metrics",), handler="step"
    ),
    # The driver waits for rollouts here, and in the next one for the ranks that send weights.
    *(_Hook(_BUFFER, f"{buffer}.sample", phase="rollout") for buffer in ("ReplayBuffer", "ReplayBufferAsync")),
    _Hook("verl.trainer.ppo.v1.trainer_sync", "PPOTrainerSync.on_step_end", phase="sync"),
    _Hook(_V1, "PPOTrainer._compute_reward_colocate", phase="reward"),
    _Hook(_V1, "PPOTrainer._compute_old_log_prob", phase="log_probs"),
    _Hook(_V1, "PPOTrainer._compute_ref_log_prob", phase="log_probs"),
    _Hook(_V1, "PPOTrainer._compute_values", phase="values"),
    _Hook(_V1, "PPOTrainer._compute_advantage", phase="advantage", records=BATCH_KINDS, handler="advantage"),
    _Hook(_V1, "PPOTrainer._update_critic", phase="update_critic"),
    _Hook(_V1, "PPOTrainer._update_actor", phase="update"),
    _Hook(_V0, "RayPPOTrainer._compute_old_log_prob", phase="log_probs", step="self.global_steps", since="0.7.0"),
    _Hook(_V0, "RayPPOTrainer._compute_ref_log_prob", phase="log_probs", since="0.7.0"),
    _Hook(_V0, "RayPPOTrainer._update_actor", phase="update", step="self.global_steps", since="0.7.0"),
    Hook(_V0, "compute_advantage", phase="advantage", seen="0.9.1"),
    _Hook(
        "verl.workers.rollout.llm_server", "LLMServerClient.generate", phase="request", since="0.8.0", handler="turn"
    ),
    _Hook("verl.experimental.reward_loop.reward_loop", "RewardLoopWorker.compute_score", phase="reward"),
    *(
        _Hook(_AGENTS, f"AgentLoopWorker.{function}", handler=handler)
        for function, handler in (("_run_agent_loop", "agent_loop"), ("_compute_score", "scored"))
    ),
)

# Methods of worker classes: Ray's actor classes are made from these and find what is set on them here.
_RANKS = (
    _Hook(_WORKERS, "ActorRolloutRefWorker.init_model", step="1", ends=True, owns_steps=True, since="0.7.0"),
    _Hook(_WORKERS, "ActorRolloutRefWorker.update_actor", step="calls", offset=1, ends=True, since="0.7.0"),
    _Hook(_WORKERS, "ActorRolloutRefWorker.compute_log_prob", phase="log_probs", since="0.7.0"),
    _Hook(
        _WORKERS,
        "ActorRolloutRefWorker.update_weights",
        phase="sync",
        since="0.7.1",
        records=WEIGHT_KINDS,
        handler="update_weights",
    ),
    *(
        _Hook(module, f"{engine}.get_per_tensor_param", since="0.7.0", records=WEIGHT_KINDS, handler="sent_weights")
        for module, engine in ((_FSDP, "FSDPEngine"), (_MEGATRON, "MegatronEngine"))
    ),
    _Hook(_WORKERS, "TrainingWorker.train_mini_batch", phase="update", since="0.7.0", handler="mini_batches"),
    _Hook(_WORKERS, "TrainingWorker.train_batch", since="0.7.0", handler="train_batch"),
    _Hook(
        _FSDP,
        "FSDPEngineWithLMHead.forward_step",
        phase="forward",
        since="0.6.0",
        records=("forward_data", "is_loss_debug", "loss", "value_loss"),
        handler="forward_step",
    ),
    _Hook(
        _FSDP,
        "FSDPEngine.optimizer_step",
        phase="optimizer",
        since="0.6.0",
        records=UPDATE_KINDS,
        handler="optimizer_step",
    ),
    _Hook(_MEGATRON, "MegatronEngineWithLMHead.forward_step", phase="forward", since="0.6.0"),
    _Hook(_MEGATRON, "MegatronEngine.optimizer_step", phase="optimizer", since="0.6.0"),
    Hook(_OLD_ACTOR, "DataParallelPPOActor.compute_log_prob", phase="log_probs", gone="0.8.0", seen="0.7.1"),
    Hook(_OLD_ACTOR, "DataParallelPPOActor.update_policy", phase="update", gone="0.8.0", seen="0.7.1"),
    Hook(
        "verl.workers.rollout.vllm_rollout.vllm_rollout_spmd",
        "vLLMRollout.generate_sequences",
        phase="rollout",
        gone="0.7.0",
        seen="0.6.1",
    ),
    Hook(
        "verl.workers.fsdp_workers",
        "ActorRolloutRefWorker.generate_sequences",
        phase="rollout",
        gone="0.8.0",
        seen="0.7.1",
    ),
)

HOOKS = (*_DRIVER, *_RANKS)
