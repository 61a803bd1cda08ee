"""safetensors files: a JSON header and flat tensors, mapped and returned as views.

Everything the header says is checked before a byte of data is touched: names, dtypes, shapes, offsets that lie in
the file, follow each other without gaps or overlaps, and end where the file ends.
"""

import json
import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rldbg.recording.formats.bounded_json import parse_json
from rldbg.recording.formats.malformed import Malformed, reading
from rldbg.recording.formats.mapped_file import file_bytes
from rldbg.recording.formats.numpy_rebuild import refuse_odd_bools
from rldbg.recording.records import ENCODED_DTYPES, EncodedArray

# our name of a dtype: safetensors' name
DTYPES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
}
# Made once: json.dumps with separators makes an encoder each time it is called.
ENCODE_JSON = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
_NAMES = {theirs: ours for ours, theirs in DTYPES.items()}
_MAX_HEADER_BYTES = 1 << 28
_MAX_DIMENSIONS = 32
_ALIGNMENT = 64


class TensorInfo(NamedTuple):
    """Where a tensor lies: bytes [start, stop) of the data, which begins after the header."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def item_bytes(self) -> int:
        return np.dtype(ENCODED_DTYPES.get(self.dtype, self.dtype)).itemsize


class Header(NamedTuple):
    metadata: dict[str, str]
    tensors: dict[str, TensorInfo]
    data_offset: int


def open_tensors(path: Path | str) -> tuple[dict[str, str], dict[str, np.ndarray | EncodedArray]]:
    """The metadata and every tensor, as read-only views of the mapped file."""
    with reading(path):
        data = file_bytes(path)
        length = _header_length(bytes(data[:8]), len(data))
        header = _checked(bytes(data[8 : 8 + length]), len(data))
        block = np.frombuffer(data, dtype=np.uint8)[header.data_offset :]
        return header.metadata, {name: _tensor(block, info) for name, info in header.tensors.items()}


def encode_header(tensors: Sequence[tuple[str, str, Sequence[int], int]], metadata: Mapping[str, str]) -> bytes:
    """The length and header of a file whose tensors (name, dtype, shape, nbytes) follow in this order.

    Padded with spaces to a multiple of 64 bytes, so that data stays aligned when dtypes are given widest first.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    position = 0
    for name, dtype, shape, nbytes in tensors:
        if name in header:
            raise ValueError(f"two tensors are named {name!r}")
        header[name] = {"dtype": DTYPES[dtype], "shape": list(shape), "data_offsets": [position, position + nbytes]}
        position += nbytes
    text = ENCODE_JSON(header).encode("utf-8", "backslashreplace")
    text += b" " * (-(len(text) + 8) % _ALIGNMENT)
    return struct.pack("<Q", len(text)) + text


def _header_length(head: bytes, size: int) -> int:
    if len(head) < 8:
        raise Malformed(f"too short for a safetensors file: {size} bytes")
    length: int = struct.unpack("<Q", head)[0]
    if length > _MAX_HEADER_BYTES or 8 + length > size:
        raise Malformed(f"claims a header of {length} bytes in a file of {size}")
    return length


def _checked(text: bytes, size: int) -> Header:
    header = parse_json(text, unique_keys=True)
    if not isinstance(header, dict):
        raise Malformed("the header is not a JSON object")
    metadata = header.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(item, str) for item in metadata.values()):
        raise Malformed("__metadata__ does not map text to text")
    tensors = {name: _info(name, entry) for name, entry in header.items()}
    data_offset = 8 + len(text)
    position = 0
    for name, info in sorted(tensors.items(), key=lambda item: item[1][2:]):
        if info.start != position:
            raise Malformed(f"tensor {name!r:.60} starts at byte {info.start} instead of {position}")
        position = info.stop
    if data_offset + position != size:
        raise Malformed(f"the tensors end at byte {data_offset + position}, the file at {size}")
    return Header(metadata, tensors, data_offset)


def _info(name: str, entry: Any) -> TensorInfo:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise Malformed(f"tensor {name!r:.60} has no dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _NAMES:
        raise Malformed(f"tensor {name!r:.60} has the unknown dtype {dtype!r:.40}")
    if not (_are_sizes(shape) and len(shape) <= _MAX_DIMENSIONS and _are_sizes(offsets) and len(offsets) == 2):
        raise Malformed(f"tensor {name!r:.60} has shape {shape!r:.60} at {offsets!r:.60}")
    info = TensorInfo(_NAMES[dtype], tuple(shape), *offsets)
    if info.stop - info.start != math.prod(shape) * info.item_bytes:
        raise Malformed(f"tensor {name!r:.60} of shape {shape!r:.60} does not take {info.stop - info.start} bytes")
    return info


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 1 << 62 for value in values)


def _tensor(block: np.ndarray, info: TensorInfo) -> np.ndarray | EncodedArray:
    raw = block[info.start : info.stop]
    if info.start == info.stop:
        raw = np.empty(0, np.uint8)
    elif raw.ctypes.data % info.item_bytes:  # other writers need not align; numpy's fast paths do
        raw = raw.copy()
    bits = raw.view(ENCODED_DTYPES.get(info.dtype, info.dtype)).reshape(info.shape)
    refuse_odd_bools(bits)
    return EncodedArray(bits, info.dtype) if info.dtype in ENCODED_DTYPES else bits
