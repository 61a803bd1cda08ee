"""Phases of NexRL: the trainer, and the ranks of its self-hosted training service."""

from rldbg.agent.profiling import Hook

_ACTOR = "nexrl.train_service_backend.fsdp_worker.fsdp_actor"

HOOKS = (
    Hook("nexrl.trainer.self_hosted_trainer", "SelfHostedTrainer.train", phase="step", seen="1.4.0"),
    Hook("nexrl.trainer.remote_api_trainer", "RemoteApiTrainer.train", phase="step", seen="1.4.0"),
    Hook(_ACTOR, "DataParallelPPOActor.compute_log_prob", phase="log_probs", seen="1.4.0"),
    Hook(_ACTOR, "DataParallelPPOActor.update_policy", phase="update", seen="1.4.0"),
)
