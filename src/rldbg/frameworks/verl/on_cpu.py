"""verl on a machine without an accelerator, with `rldbg serve` as its rollout engine. verl itself is not changed.

verl imports this module in each of its processes (VERL_USE_EXTERNAL_MODULES, set by `rldbg run --laptop`); importing it
registers a platform for the CPU and a rollout engine, verl's own ways to be extended, and adjusts two functions of
torch that verl calls with what only an accelerator has, and the one that loads critics. RLDBG_LAPTOP_SERVER is the
address of the server.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
import torch.distributed
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

from rldbg.agent import AfterImports

_ENGINES = ("vllm", "sglang", "trtllm")
_ROLLOUT = "rldbg.frameworks.verl.cpu_rollout"
_MEMORY_BYTES = 16 * 2**30


class CpuDevice:
    """torch.cpu with what verl asks of an accelerator beyond it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def _nothing(self, *_: Any, **__: Any) -> int:
        return 0

    max_memory_allocated = max_memory_reserved = memory_allocated = memory_reserved = _nothing
    empty_cache = reset_peak_memory_stats = ipc_collect = _nothing

    def get_device_name(self, *_: Any) -> str:
        return "cpu"

    def mem_get_info(self, *_: Any) -> tuple[int, int]:
        return _MEMORY_BYTES, _MEMORY_BYTES

    def get_rng_state(self, *_: Any) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, *_: Any) -> None:
        torch.set_rng_state(state)


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):  # type: ignore[misc]
    """Logical devices of Ray are counted as GPUs: verl reserves nothing else."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = CpuDevice()

    def is_available(self) -> bool:
        return True

    def current_device(self) -> str:
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None


def _one_backend_per_device(original: Any) -> Any:
    """verl asks for `cpu:gloo` and for the platform's own backend, which is the same here; torch refuses it twice."""

    @functools.wraps(original)
    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> Any:
        parts = dict.fromkeys((backend or "").split(","))
        return original(",".join(parts) if backend else backend, *args, **kwargs)

    return init_process_group


def _without_pinned_memory(policy: Any) -> None:
    """Pinned memory needs an accelerator."""
    original = policy.__init__

    @functools.wraps(original)
    def __init__(self: Any, pin_memory: bool = False) -> None:  # noqa: N807 - it takes the place of one
        original(self, pin_memory=pin_memory and torch.accelerator.is_available())

    policy.__init__ = __init__


def _register_replicas(module: ModuleType) -> None:
    for name in _ENGINES:
        module.RolloutReplicaRegistry.register(name, lambda: import_module(_ROLLOUT).LaptopReplica)


def _register_rollouts(module: ModuleType) -> None:
    for name in _ENGINES:
        module._ROLLOUT_REGISTRY[name, "async"] = f"{_ROLLOUT}.LaptopRollout"


def _value_heads_without_flash_attention(module: ModuleType) -> None:
    """verl asks for flash attention in critics, whatever their configuration says."""

    def load_valuehead_model(local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool) -> Any:
        return import_module("transformers").AutoModelForTokenClassification.from_pretrained(
            local_path,
            torch_dtype=torch_dtype,
            config=model_config,
            attn_implementation="eager",
            trust_remote_code=trust_remote_code,
        )

    module.load_valuehead_model = load_valuehead_model  # type: ignore[attr-defined]


def _register() -> None:
    """What is slow to import is extended when verl itself imports it."""
    rollout = "verl.workers.rollout"
    AfterImports(
        {
            f"{rollout}.replica": _register_replicas,
            f"{rollout}.base": _register_rollouts,
            "verl.utils.model": _value_heads_without_flash_attention,
        }
    ).install()
    torch.distributed.init_process_group = _one_backend_per_device(torch.distributed.init_process_group)
    from torch.distributed.fsdp import CPUOffloadPolicy

    _without_pinned_memory(CPUOffloadPolicy)


_register()
