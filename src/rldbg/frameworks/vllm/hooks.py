"""Phases of vLLM's engine: requests in the front end, passes and new weights in the workers.

Weights are recorded before the first pass after a model loaded some, whichever way they came.
"""

from functools import partial

from rldbg.agent.profiling import Hook
from rldbg.frameworks.base import WEIGHT_KINDS

_WORKER = "vllm.v1.worker.gpu_worker"
_Hook = partial(Hook, since="0.8.0", seen="0.28.0")

HOOKS = (
    Hook("vllm.entrypoints.llm", "LLM.generate", phase="request", seen="0.32.0"),
    _Hook("vllm.v1.engine.core", "EngineCore.step", phase="engine_step"),
    _Hook(
        _WORKER, "Worker.execute_model", phase="forward", seen="0.32.0", records=WEIGHT_KINDS, handler="execute_model"
    ),
    _Hook(_WORKER, "Worker.load_model", seen="0.32.0", handler="load_model"),
    _Hook("vllm.model_executor.models.utils", "AutoWeightsLoader.load_weights", seen="0.32.0", handler="load_weights"),
    _Hook(_WORKER, "Worker.sleep", phase="sleep"),
    _Hook(_WORKER, "Worker.wake_up", phase="wake_up"),
    _Hook(_WORKER, "Worker.update_weights", phase="sync", since="0.16.0"),
    Hook(
        "vllm.worker.worker_base",
        "LocalOrDistributedWorkerBase.execute_model",
        phase="forward",
        gone="0.11.0",
        seen="0.10.2",
    ),
)
