"""Phases of GRPOTrainer; its steps are those of transformers' Trainer."""

from rldbg.agent.profiling import Hook

_GRPO = "trl.trainer.grpo_trainer"

HOOKS = (
    Hook(
        "transformers.trainer_callback",
        "CallbackHandler.on_step_begin",
        step="state.global_step",
        offset=1,
        seen="5.22.2",
    ),
    Hook("transformers.trainer", "Trainer.training_step", phase="training_step", seen="5.22.2"),
    Hook("transformers.trainer", "Trainer._clip_grad_norm", phase="clip", since="5.0.0", seen="5.22.2"),
    Hook(_GRPO, "GRPOTrainer._generate_and_score_completions", phase="rollout", since="0.19.0", seen="1.16.0"),
    Hook(_GRPO, "GRPOTrainer._get_per_token_logps_and_entropies", phase="log_probs", since="0.20.0", seen="1.16.0"),
    Hook(_GRPO, "GRPOTrainer._calculate_rewards", phase="reward", since="0.19.0", seen="1.16.0"),
    Hook(_GRPO, "GRPOTrainer._compute_loss", phase="loss", since="0.19.0", seen="1.16.0"),
)
