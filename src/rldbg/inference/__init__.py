"""Inference: a batched sampler that runs in this process, with random numbers keyed by sample and position."""

from typing import TYPE_CHECKING

from rldbg.lazy import lazy_names

if TYPE_CHECKING:
    from rldbg.inference.engine import Generation, GenerationRequest, Sampler
    from rldbg.inference.keyed_random import sample_key, uniform
    from rldbg.inference.registry import Registry, Server, ServerProcess

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Generation": "engine",
        "GenerationRequest": "engine",
        "Registry": "registry",
        "Sampler": "engine",
        "Server": "registry",
        "ServerProcess": "registry",
        "sample_key": "keyed_random",
        "uniform": "keyed_random",
    },
)

__all__ = [
    "Generation",
    "GenerationRequest",
    "Registry",
    "Sampler",
    "Server",
    "ServerProcess",
    "sample_key",
    "uniform",
]
