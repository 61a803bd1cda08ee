"""What torch.save puts into pickles, rebuilt as numpy views of the file: storages, tensors, parameters, DTensors,
TensorDicts."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from rldbg.recording.formats.malformed import Malformed
from rldbg.recording.formats.numpy_rebuild import checked_shape, refuse_odd_bools
from rldbg.recording.records import ENCODED_DTYPES, EncodedArray

STORAGE_CLASSES = {
    "FloatStorage": "float32",
    "DoubleStorage": "float64",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
    "UntypedStorage": "",
}
# torch dtype name: the numpy dtype that holds its bits
BITS: dict[str, np.dtype[Any]] = {
    name: np.dtype(ENCODED_DTYPES.get(name, name))
    for name in (*filter(None, STORAGE_CLASSES.values()), "uint16", "uint32", "uint64", *ENCODED_DTYPES)
}
ALIASES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "short": "int16",
    "int": "int32",
    "long": "int64",
    "cfloat": "complex64",
    "cdouble": "complex128",
    "chalf": "complex32",
}
UNSUPPORTED = frozenset(
    [
        "qint8",
        "qint32",
        "quint8",
        "quint4x2",
        "quint2x4",
        "float4_e2m1fn_x2",
        "bit",
        "bits8",
        "bits16",
        "bits1x8",
        "bits2x4",
        "bits4x2",
    ]
) | frozenset(f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8))

_HALF_COMPLEX = "complex32"
KNOWN = frozenset({*BITS, *UNSUPPORTED, _HALF_COMPLEX})
"""Names that are torch dtypes, whether this reader has them or refuses them."""

_MAX_EXPANDED_BYTES = 1 << 30
_MAX_EXPANSION = 64
# Of a consolidated TensorDict: one block of bytes and a description of where each tensor lies in it.
_OWN_KEYS = frozenset({"cls", "cls_metadata", "leaves", "non_tensors"})
_MAX_NESTED = 32


class StorageClass:
    """torch.FloatStorage and its like: only the name of a dtype; the empty name is untyped bytes."""

    __slots__ = ("dtype",)

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype


class Storage:
    """The bytes of one storage and the dtype they were filed under."""

    __slots__ = ("_flat", "data", "dtype", "is_swapped")

    def __init__(self, data: np.ndarray, dtype: str, is_swapped: bool = False) -> None:
        self.data = data
        self.dtype = dtype
        self.is_swapped = is_swapped
        self._flat: dict[str, np.ndarray] = {}

    def values(self, dtype: str) -> np.ndarray:
        """The whole storage as a flat array, native byte order, aligned; a view wherever that is possible.

        Kept, so that a thousand views of one storage check and convert it once.
        """
        if dtype not in self._flat:
            self._flat[dtype] = self._convert(dtype)
        return self._flat[dtype]

    def _convert(self, dtype: str) -> np.ndarray:
        if dtype == _HALF_COMPLEX:  # which numpy has not; complex64 holds its values exactly
            halves = self.values("float16")
            return halves[: len(halves) // 2 * 2].astype(np.float32).view(np.complex64)
        bits = BITS.get(dtype)
        if bits is None:
            raise Malformed(f"torch.{dtype} tensors are not supported", "cast the tensor before it is saved")
        data = self.data[: len(self.data) // bits.itemsize * bits.itemsize]
        if data.ctypes.data % bits.itemsize:
            data = data.copy()
        flat = data.view(bits)
        refuse_odd_bools(flat)
        return flat.byteswap() if self.is_swapped and bits.itemsize > 1 else flat


def dtype_name(value: Any) -> str:
    """The bare name of a torch dtype, which this reader represents by its text: torch.float32."""
    if not isinstance(value, str) or not value.startswith("torch."):
        raise Malformed(f"{value!r:.40} is not a torch dtype")
    return value.removeprefix("torch.")


def rebuild_tensor(
    storage: Any,
    offset: Any,
    size: Any,
    stride: Any,
    _grad: Any = False,
    _hooks: Any = None,
    metadata: Any = None,
) -> np.ndarray | EncodedArray:
    if not isinstance(storage, Storage):
        raise Malformed("a tensor has no storage")
    return _resolved(_tensor(storage, storage.dtype or "uint8", offset, size, stride), metadata)


def rebuild_tensor_v3(
    storage: Any,
    offset: Any,
    size: Any,
    stride: Any,
    _grad: Any,
    _hooks: Any,
    dtype: Any,
    metadata: Any = None,
) -> np.ndarray | EncodedArray:
    if not isinstance(storage, Storage):
        raise Malformed("a tensor has no storage")
    return _resolved(_tensor(storage, dtype_name(dtype), offset, size, stride), metadata)


def _resolved(values: np.ndarray | EncodedArray, metadata: Any) -> np.ndarray | EncodedArray:
    """The values of a lazy view: torch files a conjugate, and a negative, as the original with a mark."""
    if not isinstance(metadata, dict) or not isinstance(values, np.ndarray):
        return values
    if metadata.get("conj"):
        values = np.conj(values)
    return np.negative(values) if metadata.get("neg") else values


def rebuild_wrapped(function: Callable[..., Any], cls: Any, args: Any, state: Any) -> Any:
    """A tensor subclass. Of a DTensor the local shard is what the file holds; others are rebuilt as their base."""
    attributes = state[-1] if isinstance(state, tuple) and state else state
    if isinstance(attributes, dict) and "_local_tensor" in attributes:
        return attributes["_local_tensor"]
    if not isinstance(args, tuple):
        raise Malformed("a tensor subclass has no arguments")
    return function(*args)


def rebuild_first(data: Any, *_: Any) -> Any:
    """Parameters and tensors of other devices: the plain tensor they are made of."""
    return data


def refuse_quantized(*_: Any) -> Any:
    raise Malformed("quantized tensors are not supported", "save tensor.dequantize() instead")


def device_text(kind: Any, index: Any = None) -> str:
    return str(kind) if index is None else f"{kind}:{index}"


def _tensor(storage: Storage, dtype: str, offset: Any, size: Any, stride: Any) -> np.ndarray | EncodedArray:
    shape, strides = checked_shape(size), checked_shape(stride)
    if len(shape) != len(strides) or type(offset) is not int or offset < 0:
        raise Malformed(f"a tensor has shape {shape}, strides {strides}, offset {offset!r:.20}")
    flat = storage.values(dtype)
    count = math.prod(shape)
    if count == 0:
        view = np.empty(shape, flat.dtype)
    else:
        last = offset + sum((length - 1) * step for length, step in zip(shape, strides, strict=True))
        if last >= len(flat):
            raise Malformed(f"a tensor of shape {shape} reaches beyond its storage of {len(flat)} values")
        if count * flat.itemsize > max(_MAX_EXPANDED_BYTES, _MAX_EXPANSION * flat.nbytes):
            raise Malformed(f"a tensor expands {flat.nbytes} bytes to the absurd shape {shape}")
        view = _strided(flat[offset:], shape, strides)
    return EncodedArray(view, dtype) if dtype in ENCODED_DTYPES else view


def _strided(flat: np.ndarray, shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
    expected = 1
    for length, step in zip(reversed(shape), reversed(strides), strict=True):
        if length != 1 and step != expected:
            byte_strides = tuple(step * flat.itemsize for step in strides)
            return np.lib.stride_tricks.as_strided(flat, shape, byte_strides, writeable=False)
        expected *= length
    return flat[:expected].reshape(shape)


def rebuild_consolidated(metadata: Any, block: Any) -> dict[str, Any]:
    """Name to array, nested where TensorDicts were nested."""
    if isinstance(block, EncodedArray) or not isinstance(block, np.ndarray) or block.dtype.itemsize != 1:
        raise Malformed("a consolidated TensorDict has no block of bytes")
    return _node(metadata, block.reshape(-1).view(np.uint8), 0)


def _node(metadata: Any, block: np.ndarray, depth: int) -> dict[str, Any]:
    if not isinstance(metadata, dict) or depth > _MAX_NESTED or not isinstance(metadata.get("leaves"), dict):
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
    return rebuild_tensor(storage, 0, shape, contiguous_strides(checked_shape(shape)))


def contiguous_strides(shape: tuple[int, ...]) -> list[int]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return strides[::-1]
