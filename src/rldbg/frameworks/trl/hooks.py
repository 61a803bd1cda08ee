"""Phases and records of TRL's online trainers; their steps are those of transformers' Trainer."""

from collections.abc import Iterator
from functools import partial

from rldbg.agent.profiling import Hook
from rldbg.frameworks.base import BATCH_KINDS, LOSS_KINDS, WEIGHT_KINDS

_GRPO, _RLOO = "trl.trainer.grpo_trainer", "trl.trainer.rloo_trainer"
_ASYNC = "trl.experimental.async_grpo.async_grpo_trainer"
_VLLM = "trl.generation.vllm_generation"
_HANDLER, _TRAINER = "transformers.trainer_callback", "transformers.trainer"
_Hook = partial(Hook, since="1.16.0", seen="1.16.0")


def _online_trainer(module: str, trainer: str) -> Iterator[Hook]:
    """GRPOTrainer and RLOOTrainer have the same methods. A step is a generation, not an optimizer step."""
    yield _Hook(module, f"{trainer}.__init__", since="0.19.0", handler="created")
    yield _Hook(
        module,
        f"{trainer}.training_step",
        step="self._step",
        per=("args.steps_per_generation", "num_iterations"),
        offset=1,
        since="0.19.0",
    )
    yield _Hook(module, f"{trainer}._generate", since="0.20.0", records=("trajectory",), handler="generate")
    yield _Hook(
        module,
        f"{trainer}._calculate_rewards",
        phase="reward",
        since="0.19.0",
        records=("trajectory",),
        handler="rewards",
    )
    yield _Hook(
        module,
        f"{trainer}._generate_and_score_completions",
        phase="rollout",
        since="0.19.0",
        records=("trajectory",),
        handler="batch",
    )
    yield _Hook(
        module,
        f"{trainer}._get_per_token_logps_and_entropies",
        phase="log_probs",
        since="0.20.0",
        records=("forward_data",),
        handler="log_probs",
    )
    yield _Hook(module, f"{trainer}._compute_loss", phase="loss", since="0.19.0", records=LOSS_KINDS, handler="loss")
    yield _Hook(module, f"{trainer}.compute_loss", since="0.19.0", records=("loss",), handler="compute_loss")


HOOKS = (
    _Hook(
        _VLLM, "VLLMGeneration.sync_weights", phase="sync", since="1.0.0", records=WEIGHT_KINDS, handler="sync_weights"
    ),
    _Hook(_VLLM, "VLLMGeneration._iter_named_params", records=WEIGHT_KINDS, handler="sent_weights"),
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
    _Hook(
        _TRAINER,
        "Trainer._clip_grad_norm",
        phase="clip",
        since="5.0.0",
        seen="5.22.2",
        records=("gradient",),
        handler="gradients",
    ),
    _Hook(
        _TRAINER,
        "Trainer._get_grad_norm",
        since="5.0.0",
        seen="5.22.2",
        records=("gradient", "training_metrics"),
        handler="gradient_norm",
    ),
    _Hook(_ASYNC, "AsyncGRPOTrainer.__init__", handler="async_created"),
    _Hook(_ASYNC, "RolloutQueueDataset.__iter__", handler="async_samples"),
    _Hook(_ASYNC, "DataCollatorForRollout.torch_call", records=BATCH_KINDS, handler="async_batch"),
    _Hook(_ASYNC, "AsyncGRPOTrainer.compute_loss", phase="loss", records=LOSS_KINDS, handler="async_loss"),
    _Hook(_ASYNC, "AsyncGRPOTrainer._sync_weight", phase="sync", records=WEIGHT_KINDS, handler="async_sync"),
    _Hook(_ASYNC, "AsyncGRPOTrainer._streaming_iter", records=WEIGHT_KINDS, handler="sent_weights"),
    _Hook(_ASYNC, "nanmin", handler="async_pass"),
    *_online_trainer(_GRPO, "GRPOTrainer"),
    *_online_trainer(_RLOO, "RLOOTrainer"),
)
