"""vLLM: an inference engine."""

from rldbg.frameworks.base import Framework

FRAMEWORK = Framework(
    name="vllm",
    title="vLLM",
    package=__name__,
    modules=("vllm",),
    programs=("vllm", "api_server.py"),
    classes=r"(?:Async)?EngineArgs|LLM|AsyncLLM\w*|AsyncMPClient|EngineCore\w*|GPUModelRunner\w*|LoRARequest"
    r"|SamplingParams|\w*StatLogger",
    is_engine=True,
    tested="a real engine of vLLM 0.32.0 on CPU",
)
