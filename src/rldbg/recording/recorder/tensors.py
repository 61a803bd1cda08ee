"""torch tensors as arrays, without importing torch: a tensor can only come from a process that already has.

bfloat16 and float8 become EncodedArray; views, gradients, lazy conjugation and DTensors are seen through.
"""

import sys
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np

from rldbg.recording.records import ENCODED_DTYPES, EncodedArray


def torch_module() -> ModuleType | None:
    """torch, if this process has loaded it."""
    return sys.modules.get("torch")


def is_tensor(value: Any) -> bool:
    torch = torch_module()
    return torch is not None and isinstance(value, torch.Tensor)


def plain_tensor(tensor: Any) -> Any:
    """The strided tensor behind a parameter, a DTensor's local shard, a pending collective or a sparse tensor."""
    torch = torch_module()
    assert torch is not None
    if is_plain(tensor):
        return tensor.detach() if tensor.requires_grad else tensor
    tensor = tensor.detach()
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    if type(tensor).__name__ == "AsyncCollectiveTensor":
        tensor = tensor.wait()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    return tensor.resolve_conj().resolve_neg()


def is_plain(tensor: Any) -> bool:
    """Whether a tensor's memory holds its values as they are."""
    torch = torch_module()
    assert torch is not None
    is_ordinary = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return is_ordinary and tensor.layout is torch.strided and not tensor.is_conj() and not tensor.is_neg()


def dtype_name(tensor: Any) -> str:
    """The usual name of a tensor's dtype: float32, bfloat16 ..."""
    return name_of(tensor.dtype)


@lru_cache(maxsize=64)  # torch makes the text again each time it is asked for
def name_of(dtype: Any) -> str:
    """The usual name of torch's dtype."""
    return str(dtype).removeprefix("torch.")


def array_of(tensor: Any) -> np.ndarray | EncodedArray:
    """A CPU tensor's values, sharing its memory."""
    name = dtype_name(tensor)
    if name not in ENCODED_DTYPES:
        array: np.ndarray = tensor.numpy()
        return array
    torch = torch_module()
    assert torch is not None
    bits = np.dtype(ENCODED_DTYPES[name])
    integer = torch.int16 if bits.itemsize == 2 else torch.uint8
    return EncodedArray(tensor.view(integer).numpy().view(bits), name)


def array_from_bytes(memory: np.ndarray, dtype: str, shape: tuple[int, ...]) -> np.ndarray | EncodedArray:
    """Raw bytes as an array of the dtype with this name."""
    if dtype in ENCODED_DTYPES:
        return EncodedArray(memory.view(ENCODED_DTYPES[dtype]).reshape(shape), dtype)
    return memory.view(np.dtype(dtype)).reshape(shape)
