"""Weaver's binary transport (`tensor_transport="http-binary"`): a JSON manifest and one file of raw tensors.

In the manifest a tensor is `{"$tensor": {"format": "raw-tensor", "dtype", "shape", "offset", "size_bytes"}}`, a slice
of the file, which may be zstd-compressed as a whole. Plain JSON requests pass through.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from rldbg.training_service.bodies import decompress, parse_object
from rldbg.training_service.errors import ServiceRequestError

_DTYPES = {"int64": np.int64, "int32": np.int32, "float32": np.float32, "float64": np.float64}
_BOUNDARY = re.compile(r'boundary="?([^";,]{1,200})"?')
_PART_NAME = re.compile(rb'name="([a-z_]+)"')


def read_request(content_type: str, content: bytes, limit_bytes: int) -> Mapping[str, Any]:
    """The request as a mapping, its tensors as arrays."""
    if not content_type.lower().startswith("multipart/form-data"):
        return parse_object(content)
    boundary = _BOUNDARY.search(content_type)
    if boundary is None:
        raise ServiceRequestError("multipart/form-data without a boundary")
    parts = _parts(content, boundary[1].encode("latin-1"))
    if set(parts) != {"manifest", "tensor_pack"}:
        raise ServiceRequestError(
            f"expected the parts manifest and tensor_pack, got {', '.join(sorted(parts)) or 'none'}"
        )
    manifest = parse_object(parts["manifest"])
    pack = _unpack(parts["tensor_pack"], manifest.get("tensor_pack"), limit_bytes)
    request = manifest.get("request")
    if manifest.get("version") != 1 or not isinstance(request, Mapping):
        raise ServiceRequestError("the manifest has no version 1 request")
    resolved: Mapping[str, Any] = _resolve(request, pack)
    return resolved


def _parts(content: bytes, boundary: bytes) -> dict[str, bytes]:
    found = {}
    for section in (b"\r\n" + content).split(b"\r\n--" + boundary)[1:]:
        if section.startswith(b"--"):
            break
        head, separator, body = section.partition(b"\r\n\r\n")
        name = _PART_NAME.search(head)
        if not separator or name is None:
            raise ServiceRequestError("a part of the multipart body has no name")
        found[name[1].decode("ascii")] = body
    return found


def _unpack(raw: bytes, facts: Any, limit_bytes: int) -> bytes:
    if not isinstance(facts, Mapping):
        raise ServiceRequestError("the manifest does not describe tensor_pack")
    if facts.get("size_bytes") != len(raw) or facts.get("sha256") != hashlib.sha256(raw).hexdigest():
        raise ServiceRequestError("the tensor pack is not the one the manifest describes: its size or sha256 differs")
    codec = facts.get("codec", "raw")
    if codec not in ("raw", "zstd"):
        raise ServiceRequestError(f"the tensor pack's codec {codec!r} is neither raw nor zstd")
    pack = raw if codec == "raw" else decompress(raw, limit_bytes)
    if facts.get("decoded_size_bytes", len(pack)) != len(pack):
        raise ServiceRequestError("the size of the tensor pack differs from the manifest")
    return pack


def _resolve(value: Any, pack: bytes) -> Any:
    if isinstance(value, Mapping):
        if "$tensor" in value:
            return _tensor(value["$tensor"], pack)
        return {key: _resolve(item, pack) for key, item in value.items()}
    return [_resolve(item, pack) for item in value] if isinstance(value, list) else value


def _tensor(facts: Any, pack: bytes) -> np.ndarray:
    try:
        dtype = np.dtype(_DTYPES[facts["dtype"]])
        shape = [int(size) for size in facts["shape"]]
        offset, size = int(facts.get("offset", 0)), int(facts["size_bytes"])
    except (KeyError, TypeError, ValueError) as error:
        raise ServiceRequestError(f"a tensor of the manifest is not described: {error!r}") from error
    wanted = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if min([offset, *shape], default=0) < 0 or size != wanted or offset + size > len(pack):
        raise ServiceRequestError(
            "a tensor of the manifest lies outside the tensor pack, or its size is not its shape's"
        )
    array = np.frombuffer(pack, dtype=dtype, count=size // dtype.itemsize, offset=offset).reshape(shape)
    return array.astype(np.int64 if dtype.kind == "i" else np.float32, copy=False)
