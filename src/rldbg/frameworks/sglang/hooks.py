"""Phases of SGLang's scheduler processes: batches, and new weights."""

from rldbg.agent.profiling import Hook

_UPDATER = "sglang.srt.model_executor.model_runner_components.weight_updater"
_RUNNER = "sglang.srt.model_executor.model_runner"
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
)
