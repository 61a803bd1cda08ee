"""Phases and records of prime-rl's trainer process."""

from rldbg.agent.profiling import Hook

_SEEN = "0.8.1"

HOOKS = (
    Hook("prime_rl.trainer.rl.data", "DataLoader.wait_for_batch", phase="rollout", seen=_SEEN),
    Hook(
        "prime_rl.trainer.rl.data",
        "DataLoader.get_batch",
        step="calls",
        owns_steps=True,
        seen=_SEEN,
        records=("trajectory", "prepared_trajectories"),
        handler="batch",
    ),
    Hook("prime_rl.trainer.model", "forward", phase="forward", seen=_SEEN, handler="forward"),
    Hook(
        "prime_rl.trainer.rl.loss",
        "compute_loss",
        phase="loss",
        seen=_SEEN,
        records=("forward_data", "is_loss_debug", "loss"),
        handler="loss",
    ),
    Hook(
        "prime_rl.trainer.utils",
        "clip_grad_norm_",
        phase="clip",
        seen=_SEEN,
        records=("gradient", "param", "update_metrics"),
        handler="clip",
    ),
)
