"""Phases of vLLM's engine: requests in the front end, passes and new weights in the workers.

Weights are recorded before the first pass after a model loaded some, whichever way they came.
"""

from rldbg.agent.profiling import Hook

_WORKER = "vllm.v1.worker.gpu_worker"

HOOKS = (
    Hook("vllm.entrypoints.llm", "LLM.generate", phase="request", seen="0.32.0"),
    Hook("vllm.v1.engine.core", "EngineCore.step", phase="engine_step", since="0.8.0", seen="0.28.0"),
    Hook(
        _WORKER,
        "Worker.execute_model",
        phase="forward",
        since="0.8.0",
        seen="0.32.0",
        records=("weights", "weight_values"),
        handler="execute_model",
    ),
    Hook(_WORKER, "Worker.load_model", since="0.8.0", seen="0.32.0", handler="load_model"),
    Hook(
        "vllm.model_executor.models.utils",
        "AutoWeightsLoader.load_weights",
        since="0.8.0",
        seen="0.32.0",
        handler="load_weights",
    ),
    Hook(_WORKER, "Worker.sleep", phase="sleep", since="0.8.0", seen="0.28.0"),
    Hook(_WORKER, "Worker.wake_up", phase="wake_up", since="0.8.0", seen="0.28.0"),
    Hook(_WORKER, "Worker.update_weights", phase="sync", since="0.16.0", seen="0.28.0"),
    Hook(
        "vllm.worker.worker_base",
        "LocalOrDistributedWorkerBase.execute_model",
        phase="forward",
        gone="0.11.0",
        seen="0.10.2",
    ),
)
