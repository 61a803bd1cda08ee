"""Phases of prime-rl's trainer process."""

from rldbg.agent.profiling import Hook

HOOKS = (
    Hook("prime_rl.trainer.rl.data", "DataLoader.wait_for_batch", phase="rollout", seen="0.8.1"),
    Hook("prime_rl.trainer.model", "forward", phase="forward", seen="0.8.1"),
    Hook("prime_rl.trainer.rl.loss", "compute_loss", phase="loss", seen="0.8.1"),
)
