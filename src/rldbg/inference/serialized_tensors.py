"""Tensors that a trainer sends pickled, as SGLang's `MultiprocessingSerializer` writes them, read without running code.

A pickle may name only what is listed here, and each name stands for a function of ours. Tensors come as bytes, or as
the name of shared memory that torch made on this machine; CUDA memory and file descriptors of another process are
refused with what to do instead. The memory is copied, so nothing that is loaded depends on the sender.
"""

import base64
import io
import pickle
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from rldbg.inference.request_error import RequestError

if TYPE_CHECKING:
    import torch

_HTTP = (
    "POST the tensors as one safetensors file to /update_weights_from_tensor with Content-Type "
    "application/octet-stream and ?weight_version=N, or use /update_weights_from_disk"
)
_SHARED_MEMORY = re.compile(r"/torch_\d+_\d+_\d+")
_MANAGER = re.compile(r"/[\w./-]*torch-shm-dir-\w+/manager\.sock")
_DTYPES = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2",
           "int64", "int32", "int16", "int8", "uint8", "bool")  # fmt: skip


class _Inert:
    """An object of another package: what its pickle says of it, and nothing of its code."""

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.fields = dict(state)


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in _DTYPES:
            return dtype_of(name)
        try:
            return _allowed()[f"{module}.{name}"]
        except KeyError:
            raise RequestError(
                f"serialized_named_tensors names {module}.{name}, which is not read: only tensors are; {_HTTP}"
            ) from None


def named_tensors(parts: Sequence[Any], load_format: str | None) -> "dict[str, torch.Tensor]":
    """What `serialized_named_tensors` holds: names with tensors, or with `flattened_bucket` one buffer for all."""
    if len(parts) != 1:
        raise RequestError(
            f"serialized_named_tensors has {len(parts)} parts, one per tensor-parallel rank; this server is one rank"
        )
    content = unpickled(parts[0])
    if load_format == "flattened_bucket":
        return _of_bucket(content)
    try:
        return {
            str(name): _whole(tensor) for name, tensor in (content.items() if isinstance(content, dict) else content)
        }
    except (TypeError, ValueError) as error:
        raise RequestError("serialized_named_tensors does not hold pairs of name and tensor") from error


def unpickled(content: Any) -> Any:
    try:
        raw = content if isinstance(content, bytes) else base64.b64decode(content, validate=True)
        return _Reader(io.BytesIO(raw)).load()
    except RequestError:
        raise
    except Exception as error:  # a damaged pickle may raise anything; it can call nothing but ours
        raise RequestError(f"serialized_named_tensors cannot be read: {type(error).__name__}: {error}") from error


def dtype_of(name: object) -> "torch.dtype":
    import torch

    short = str(name).removeprefix("torch.")
    if short not in _DTYPES:
        raise RequestError(f"unknown dtype {str(name)[:80]!r}; choose one of {', '.join(_DTYPES)}")
    dtype: torch.dtype = getattr(torch, short)
    return dtype


def split(buffer: "torch.Tensor", names: Sequence[str], dtypes: Sequence[Any], shapes: Sequence[Any]) -> dict[str, Any]:
    """The tensors of a bucket: their bytes one after the other in one buffer."""
    import torch

    tensors, start, raw = {}, 0, buffer.contiguous().view(torch.uint8).reshape(-1)
    for name, dtype, shape in zip(names, dtypes, shapes, strict=True):
        end = start + byte_count(dtype, shape)
        if end > len(raw):
            raise RequestError(f"the bucket has {len(raw)} bytes; {name} would end at {end}")
        tensors[name] = raw[start:end].clone().view(dtype).reshape(list(shape))
        start = end
    return tensors


def byte_count(dtype: "torch.dtype", shape: Sequence[int]) -> int:
    count: int = dtype.itemsize
    for size in shape:
        if not isinstance(size, int) or size < 0:
            raise RequestError(f"shape is {list(shape)!r:.80}; it must be a list of integers")
        count *= size
    return count


def _of_bucket(content: Any) -> "dict[str, torch.Tensor]":
    try:
        parts = [part.fields for part in content["metadata"]]
        names = [str(part["name"]) for part in parts]
        dtypes = [dtype_of(part["dtype"]) for part in parts]
        shapes = [[int(size) for size in part["shape"]] for part in parts]
        return split(content["flattened_tensor"], names, dtypes, shapes)
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise RequestError("the bucket does not hold flattened_tensor and metadata") from error


def _whole(tensor: Any) -> "torch.Tensor":
    """SGLang wraps a tensor once more per rank of the engine."""
    import torch

    if isinstance(tensor, _Inert):
        values = tensor.fields.get("values")
        if not isinstance(values, list) or len(values) != 1:
            raise RequestError("a tensor was split for several tensor-parallel ranks; this server is one rank")
        tensor = unpickled(values[0])
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{type(tensor).__name__} is not a tensor")
    return tensor


def _refusal(what: str) -> Callable[..., Any]:
    def refuse(*_arguments: Any, **_keywords: Any) -> Any:
        raise RequestError(f"the tensors are {what}; {_HTTP}")

    return refuse


def _shared_storage(_class: Any, manager: Any, handle: Any, size: Any, dtype: Any = None) -> Any:
    """Memory that torch shares by name (`set_sharing_strategy("file_system")`)."""
    import torch

    place, key = (value.decode() if isinstance(value, bytes) else "" for value in (manager, handle))
    if not _SHARED_MEMORY.fullmatch(key) or not _MANAGER.fullmatch(place):
        raise RequestError("the shared memory is not torch's")
    try:
        shared = torch.UntypedStorage._new_shared_filename_cpu(manager, handle, int(size))
    except RuntimeError as error:
        raise RequestError(f"the shared memory {key} is not on this machine: {error}") from error
    copy = shared.clone()
    shared._shared_decref()
    return copy


def _stored_bytes(content: bytes) -> Any:
    """A storage as torch pickles it outside of multiprocessing; torch's own reader refuses anything but tensors."""
    import torch

    typed = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    return typed._untyped_storage, typed.dtype


def _tensor(storage: Any, offset: int, size: Sequence[int], stride: Sequence[int], *_rest: Any) -> "torch.Tensor":
    import torch

    memory, dtype = storage
    return torch.empty(0, dtype=dtype).set_(memory).as_strided(tuple(size), tuple(stride), offset)


@cache
def _allowed() -> Mapping[str, Any]:
    import torch

    shared = "torch.multiprocessing.reductions."
    buckets = ("weight_sync.tensor_bucket", "model_executor.model_runner")
    wrappers = ("model_executor.model_runner", "model_executor.model_runner_components.weight_updater")
    return {
        "torch.Size": torch.Size,
        "torch.Tensor": torch.Tensor,
        "torch.nn.parameter.Parameter": torch.Tensor,
        "torch.storage.UntypedStorage": torch.UntypedStorage,
        "collections.OrderedDict": dict,
        "torch._utils._rebuild_tensor_v2": _tensor,
        "torch._utils._rebuild_parameter": lambda tensor, *_rest: tensor,
        "torch.storage._load_from_bytes": _stored_bytes,
        f"{shared}rebuild_tensor": lambda _class, storage, place: _tensor(storage, *place),
        f"{shared}rebuild_typed_storage": lambda memory, dtype: (memory, dtype),
        f"{shared}rebuild_storage_empty": lambda _class: torch.UntypedStorage(0),
        f"{shared}rebuild_storage_filename": _shared_storage,
        f"{shared}rebuild_storage_fd": _refusal(
            'shared by a file descriptor of the sender: call torch.multiprocessing.set_sharing_strategy("file_system") '
            "there"
        ),
        f"{shared}rebuild_cuda_tensor": _refusal("CUDA memory of the sender: this server reads memory of the CPU only"),
        "multiprocessing.resource_sharer.DupFd": _Inert,
        **{f"sglang.srt.{module}.FlattenedTensorMetadata": _Inert for module in buckets},
        **{f"sglang.srt.{module}.LocalSerializedTensor": _Inert for module in wrappers},
        "sglang.srt.utils.patch_torch._rebuild_cuda_tensor_modified": _refusal(
            "CUDA memory of the sender: this server reads memory of the CPU only"
        ),
    }
