"""Phases of SGLang's scheduler processes: batches, new weights, and memory that is lent to a trainer."""

from rldbg.agent.profiling import Hook

_UPDATER = "sglang.srt.model_executor.model_runner_components.weight_updater"
_RUNNER = "sglang.srt.model_executor.model_runner"
_MEMORY = "sglang.srt.managers.scheduler_components.weight_updater"
_WAYS = ("disk", "distributed", "tensor", "ipc")

HOOKS = (
    Hook("sglang.srt.managers.scheduler", "Scheduler.run_batch", phase="forward", seen="0.5.18"),
    *(
        Hook(_UPDATER, f"WeightUpdater.update_weights_from_{way}", phase="sync", since="0.5.16", seen="0.5.18")
        for way in _WAYS
    ),
    *(
        Hook(_RUNNER, f"ModelRunner.update_weights_from_{way}", phase="sync", gone="0.5.16", seen="0.5.15")
        for way in _WAYS[:3]
    ),
    Hook(_RUNNER, "ModelRunner.update_weights_from_ipc", phase="sync", since="0.5.4", gone="0.5.16", seen="0.5.15"),
    Hook(
        _MEMORY, "SchedulerWeightUpdaterManager.release_memory_occupation", phase="sleep", since="0.5.13", seen="0.5.18"
    ),
    Hook(
        _MEMORY,
        "SchedulerWeightUpdaterManager.resume_memory_occupation",
        phase="wake_up",
        since="0.5.13",
        seen="0.5.18",
    ),
)
