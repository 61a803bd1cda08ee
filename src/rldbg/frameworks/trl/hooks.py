"""Phases and records of TRL's online trainers; their steps are those of transformers' Trainer."""

from collections.abc import Iterator

from rldbg.agent.profiling import Hook

_GRPO, _RLOO = "trl.trainer.grpo_trainer", "trl.trainer.rloo_trainer"
_ASYNC = "trl.experimental.async_grpo.async_grpo_trainer"
_VLLM = "trl.generation.vllm_generation"
_HANDLER, _TRAINER = "transformers.trainer_callback", "transformers.trainer"


def _online_trainer(module: str, trainer: str) -> Iterator[Hook]:
    """GRPOTrainer and RLOOTrainer have the same methods. A step is a generation, not an optimizer step."""
    yield Hook(module, f"{trainer}.__init__", since="0.19.0", seen="1.16.0", handler="created")
    yield Hook(
        module,
        f"{trainer}.training_step",
        step="self._step",
        per=("args.steps_per_generation", "num_iterations"),
        offset=1,
        since="0.19.0",
        seen="1.16.0",
    )
    yield Hook(
        module, f"{trainer}._generate", since="0.20.0", seen="1.16.0", records=("trajectory",), handler="generate"
    )
    yield Hook(
        module,
        f"{trainer}._calculate_rewards",
        phase="reward",
        since="0.19.0",
        seen="1.16.0",
        records=("trajectory",),
        handler="rewards",
    )
    yield Hook(
        module,
        f"{trainer}._generate_and_score_completions",
        phase="rollout",
        since="0.19.0",
        seen="1.16.0",
        records=("trajectory",),
        handler="batch",
    )
    yield Hook(
        module,
        f"{trainer}._get_per_token_logps_and_entropies",
        phase="log_probs",
        since="0.20.0",
        seen="1.16.0",
        records=("forward_data",),
        handler="log_probs",
    )
    yield Hook(
        module,
        f"{trainer}._compute_loss",
        phase="loss",
        since="0.19.0",
        seen="1.16.0",
        records=("forward_data", "is_loss_debug", "loss"),
        handler="loss",
    )
    yield Hook(
        module, f"{trainer}.compute_loss", since="0.19.0", seen="1.16.0", records=("loss",), handler="compute_loss"
    )


HOOKS = (
    Hook(
        _VLLM,
        "VLLMGeneration.sync_weights",
        phase="sync",
        since="1.0.0",
        seen="1.16.0",
        records=("weights", "weight_values"),
        handler="sync_weights",
    ),
    Hook(
        _VLLM,
        "VLLMGeneration._iter_named_params",
        since="1.16.0",
        seen="1.16.0",
        records=("weights", "weight_values"),
        handler="sent_weights",
    ),
    Hook(
        _HANDLER,
        "CallbackHandler.on_step_begin",
        step="state.global_step",
        offset=1,
        unless=(_GRPO, _RLOO),
        seen="5.22.2",
    ),
    Hook(_HANDLER, "CallbackHandler.on_step_end", seen="5.22.2", records=("param",), handler="step_end"),
    Hook(_TRAINER, "Trainer.training_step", phase="training_step", seen="5.22.2"),
    Hook(_TRAINER, "Trainer.compute_loss", seen="5.22.2", records=("loss",), handler="compute_loss"),
    Hook(
        _TRAINER,
        "Trainer._clip_grad_norm",
        phase="clip",
        since="5.0.0",
        seen="5.22.2",
        records=("gradient",),
        handler="gradients",
    ),
    Hook(
        _TRAINER,
        "Trainer._get_grad_norm",
        since="5.0.0",
        seen="5.22.2",
        records=("gradient", "training_metrics"),
        handler="gradient_norm",
    ),
    Hook(_ASYNC, "AsyncGRPOTrainer.__init__", since="1.16.0", seen="1.16.0", handler="async_created"),
    Hook(_ASYNC, "RolloutQueueDataset.__iter__", since="1.16.0", seen="1.16.0", handler="async_samples"),
    Hook(
        _ASYNC,
        "DataCollatorForRollout.torch_call",
        since="1.16.0",
        seen="1.16.0",
        records=("trajectory", "prepared_trajectories", "old_log_probs"),
        handler="async_batch",
    ),
    Hook(
        _ASYNC,
        "AsyncGRPOTrainer.compute_loss",
        phase="loss",
        since="1.16.0",
        seen="1.16.0",
        records=("forward_data", "is_loss_debug", "loss"),
        handler="async_loss",
    ),
    Hook(
        _ASYNC,
        "AsyncGRPOTrainer._sync_weight",
        phase="sync",
        since="1.16.0",
        seen="1.16.0",
        records=("weights", "weight_values"),
        handler="async_sync",
    ),
    Hook(
        _ASYNC,
        "AsyncGRPOTrainer._streaming_iter",
        since="1.16.0",
        seen="1.16.0",
        records=("weights", "weight_values"),
        handler="sent_weights",
    ),
    Hook(_ASYNC, "nanmin", since="1.16.0", seen="1.16.0", handler="async_pass"),
    *_online_trainer(_GRPO, "GRPOTrainer"),
    *_online_trainer(_RLOO, "RLOOTrainer"),
)
