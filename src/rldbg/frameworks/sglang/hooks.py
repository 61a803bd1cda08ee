"""Phases of SGLang's scheduler processes: batches, new weights, and memory that is lent to a trainer.

Weights are recorded before the first batch after an update, whichever way they came, and in however many requests.
"""

from functools import partial

from rldbg.agent.profiling import Hook
from rldbg.frameworks.base import WEIGHT_KINDS

_UPDATER = "sglang.srt.model_executor.model_runner_components.weight_updater"
_RUNNER = "sglang.srt.model_executor.model_runner"
_MEMORY = "sglang.srt.managers.scheduler_components.weight_updater"
# The version that receives weights by a broadcast in one function and loads them in another.
_SPLIT = "0.5.23"
_Hook = partial(Hook, since="0.5.13", seen="0.5.23")

HOOKS = (
    Hook(
        "sglang.srt.managers.scheduler",
        "Scheduler.run_batch",
        phase="forward",
        seen="0.5.23",
        records=WEIGHT_KINDS,
        handler="run_batch",
    ),
    *(
        _Hook(_UPDATER, f"WeightUpdater.{name}", phase="sync", since=since, gone=gone, seen=seen, handler="updated")
        for name, since, gone, seen in (
            ("update_weights_from_disk", "0.5.16", "", "0.5.23"),
            ("update_weights_from_tensor", "0.5.16", "", "0.5.23"),
            ("update_weights_from_ipc", "0.5.16", "", "0.5.23"),
            ("update_weights_from_distributed", "0.5.16", _SPLIT, "0.5.18"),
            ("load_weights_from_distributed", _SPLIT, "", "0.5.23"),
        )
    ),
    *(
        _Hook(
            _RUNNER,
            f"ModelRunner.update_weights_from_{way}",
            phase="sync",
            since="0.5.4" if way == "ipc" else "",
            gone="0.5.16",
            seen="0.5.15",
            handler="updated",
        )
        for way in ("disk", "distributed", "tensor", "ipc")
    ),
    _Hook(_MEMORY, "SchedulerWeightUpdaterManager.release_memory_occupation", phase="sleep"),
    _Hook(_MEMORY, "SchedulerWeightUpdaterManager.resume_memory_occupation", phase="wake_up"),
)
