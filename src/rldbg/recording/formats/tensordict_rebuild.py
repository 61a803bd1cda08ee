"""A consolidated TensorDict: one block of bytes and a description of where each tensor lies in it."""

from typing import Any

import numpy as np

from rldbg.recording.formats.malformed import Malformed
from rldbg.recording.formats.torch_rebuild import Storage, dtype_name, rebuild_tensor
from rldbg.recording.records import EncodedArray

_OWN_KEYS = frozenset({"cls", "cls_metadata", "leaves", "non_tensors"})
_MAX_DEPTH = 32


def rebuild_consolidated(metadata: Any, block: Any) -> dict[str, Any]:
    """Name to array, nested where TensorDicts were nested."""
    if isinstance(block, EncodedArray) or not isinstance(block, np.ndarray) or block.dtype.itemsize != 1:
        raise Malformed("a consolidated TensorDict has no block of bytes")
    return _node(metadata, block.reshape(-1).view(np.uint8), 0)


def _node(metadata: Any, block: np.ndarray, depth: int) -> dict[str, Any]:
    if not isinstance(metadata, dict) or depth > _MAX_DEPTH or not isinstance(metadata.get("leaves"), dict):
        raise Malformed("a consolidated TensorDict has an unknown description")
    result: dict[str, Any] = {}
    non_tensors = metadata.get("non_tensors")
    if isinstance(non_tensors, dict):
        result.update(non_tensors)
    for name, leaf in metadata["leaves"].items():
        result[name] = _leaf(leaf, block)
    for name, child in metadata.items():
        if name not in _OWN_KEYS and isinstance(child, dict):
            result[name] = _node(child, block, depth + 1)
    return result


def _leaf(leaf: Any, block: np.ndarray) -> Any:
    if not isinstance(leaf, tuple | list) or len(leaf) < 4:
        raise Malformed("a tensor of a consolidated TensorDict has an unknown description")
    dtype, shape, start, stop = leaf[:4]
    if type(start) is not int or type(stop) is not int or not 0 <= start <= stop <= len(block):
        raise Malformed(f"a tensor lies at bytes {start!r:.20} to {stop!r:.20} of a block of {len(block)}")
    storage = Storage(block[start:stop], dtype_name(dtype))
    return rebuild_tensor(storage, 0, shape, _contiguous(shape))


def _contiguous(shape: Any) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for size in reversed(tuple(shape)):
        strides.insert(0, step)
        step *= size
    return tuple(strides)
