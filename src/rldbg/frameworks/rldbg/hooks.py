"""Phases and steps of the embedded trainer.

Its steps count from 0. A policy rank's step lasts from one update to the next, because log probs come first.
"""

from rldbg.agent.profiling import Hook

_TRAINER = "rldbg.trainer"

HOOKS = (
    Hook(f"{_TRAINER}.controller", "Controller._step", phase="step", step="step", offset=1),
    Hook(f"{_TRAINER}.policy", "PolicyWorker.start", phase="start", step="1", ends=True, owns_steps=True),
    Hook(f"{_TRAINER}.policy", "PolicyWorker.log_probs", phase="log_probs"),
    Hook(f"{_TRAINER}.policy", "PolicyWorker.update", phase="update", step="step", offset=2, ends=True),
    Hook(f"{_TRAINER}.policy", "PolicyWorker.weights", phase="sync"),
    Hook(f"{_TRAINER}.steps", "forward", phase="forward"),
    Hook(f"{_TRAINER}.steps", "compute_loss", phase="loss"),
    Hook(f"{_TRAINER}.actors", "RolloutActor.run", phase="rollout", step="step", offset=1),
    Hook(f"{_TRAINER}.inference_server", "InferenceServer.generate", phase="request"),
    Hook(f"{_TRAINER}.inference_server", "InferenceServer.load_weights", phase="sync", step="policy_version", offset=1),
)
