"""Phases and records of prime-rl's trainer process."""

from functools import partial

from rldbg.agent.profiling import Hook
from rldbg.frameworks.base import LOSS_KINDS, UPDATE_KINDS

_Hook = partial(Hook, seen="0.8.1")

HOOKS = (
    _Hook("prime_rl.trainer.rl.data", "DataLoader.wait_for_batch", phase="rollout"),
    _Hook(
        "prime_rl.trainer.rl.data",
        "DataLoader.get_batch",
        step="calls",
        owns_steps=True,
        records=("trajectory", "prepared_trajectories"),
        handler="batch",
    ),
    _Hook("prime_rl.trainer.model", "forward", phase="forward", handler="forward"),
    _Hook("prime_rl.trainer.rl.loss", "compute_loss", phase="loss", records=LOSS_KINDS, handler="loss"),
    _Hook("prime_rl.trainer.utils", "clip_grad_norm_", phase="clip", records=UPDATE_KINDS, handler="clip"),
)
