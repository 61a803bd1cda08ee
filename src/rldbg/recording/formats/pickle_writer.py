"""Plain data and arrays as a protocol 2 pickle, of the few opcodes that every torch.load accepts.

Lists of numbers are the affair of number_opcodes.
"""

import struct
from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np

from rldbg.recording.formats.number_opcodes import AsList, as_lists
from rldbg.recording.records import EncodedArray, Ragged

Buffer = bytes | bytearray | memoryview

_STORAGE_OF = {
    "float32": "FloatStorage",
    "float64": "DoubleStorage",
    "float16": "HalfStorage",
    "bfloat16": "BFloat16Storage",
    "int64": "LongStorage",
    "int32": "IntStorage",
    "int16": "ShortStorage",
    "int8": "CharStorage",
    "uint8": "ByteStorage",
    "bool": "BoolStorage",
    "complex64": "ComplexFloatStorage",
    "complex128": "ComplexDoubleStorage",
}
_UNTYPED = frozenset(
    {"uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"}
)
_SEPARATE_FROM_BYTES = 1 << 12
_MAX_DEPTH = 100


class PickleWriter:
    """Builds one pickle. `chunks` are its bytes in order, `storages` the bytes of each tensor's storage by number."""

    def __init__(self) -> None:
        self.chunks: list[Buffer] = []
        self.storages: list[np.ndarray] = []
        self._tail = bytearray(b"\x80\x02")

    def finish(self) -> None:
        self._tail += b"."
        self.chunks.append(self._tail)

    def write(self, value: Any, depth: int = 0) -> None:
        if depth > _MAX_DEPTH:
            raise ValueError(f"data nested deeper than {_MAX_DEPTH} levels cannot be written")
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or isinstance(value, bool | int | float | str | bytes | complex):
            self._scalar(value)
        elif isinstance(value, Mapping):
            self._mapping(value, depth)
        elif isinstance(value, list):
            self._list(value, depth)
        elif isinstance(value, tuple):
            self._tail += b"("
            for item in value:
                self.write(item, depth + 1)
            self._tail += b"t"
        elif isinstance(value, AsList):
            self._numbers(value)
        elif isinstance(value, Ragged):
            self._numbers(AsList(value))
        elif isinstance(value, np.ndarray | EncodedArray):
            self._tensor(value)
        else:
            raise TypeError(f"{type(value).__name__} cannot be written to a .pt file")

    def _scalar(self, value: Any) -> None:
        if value is None:
            self._tail += b"N"
        elif isinstance(value, bool):
            self._tail += b"\x88" if value else b"\x89"
        elif isinstance(value, int):
            self._tail += _integer(value)
        elif isinstance(value, float):
            self._tail += b"G" + struct.pack(">d", value)
        elif isinstance(value, str):
            self._text(value)
        elif isinstance(value, bytes):  # protocol 2 has no opcode for bytes
            self._tail += b"c_codecs\nencode\n("
            self._text(value.decode("latin1"))
            self._text("latin1")
            self._tail += b"tR"
        else:
            self._tail += b"c__builtin__\ncomplex\n(" + struct.pack(">cdcd", b"G", value.real, b"G", value.imag) + b"tR"

    def _text(self, value: str) -> None:
        data = value.encode("utf-8", "surrogatepass")
        self._tail += b"X" + struct.pack("<I", len(data)) + data

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> None:
        self._tail += b"}("
        for key, item in value.items():
            self.write(key, depth + 1)
            self.write(item, depth + 1)
        self._tail += b"u"

    def _list(self, value: list[Any], depth: int) -> None:
        numbers = _number_array(value)
        if numbers is not None:
            self._numbers(AsList(numbers))
            return
        self._tail += b"]("
        for item in value:
            self.write(item, depth + 1)
        self._tail += b"e"

    def _numbers(self, numbers: AsList) -> None:
        values = numbers.values
        if isinstance(values, Ragged):
            rows = as_lists(values)
        elif len(values.shape) == 1:
            self._tail += b"]"
            if len(values):
                self._tail += b"("
                self._append(numbers.opcodes())
                self._tail += b"e"
            return
        elif not values.shape:
            raise ValueError("a list of numbers needs at least one dimension")
        else:
            rows = [AsList(row) for row in np.asarray(values)]
        self._tail += b"]("
        for row in rows:
            self._numbers(row)
        self._tail += b"e"

    def _append(self, data: np.ndarray) -> None:
        """Large pieces stay where they are; small ones are gathered, so that there are few buffers to write."""
        if data.nbytes < _SEPARATE_FROM_BYTES:
            self._tail += data.tobytes()
            return
        self.chunks.append(self._tail)
        self.chunks.append(data.reshape(-1).data)
        self._tail = bytearray()

    def _tensor(self, value: np.ndarray | EncodedArray) -> None:
        dtype, bits = (value.dtype, value.bits) if isinstance(value, EncodedArray) else (value.dtype.name, value)
        is_untyped = dtype in _UNTYPED
        if not is_untyped and dtype not in _STORAGE_OF:
            raise TypeError(f"an array of {dtype} cannot be written as a torch tensor")
        raw = np.ascontiguousarray(bits.astype(bits.dtype.newbyteorder("="), copy=False)).reshape(-1).view(np.uint8)
        key = str(len(self.storages))
        self.storages.append(raw)
        self._tail += (
            b"ctorch._utils\n_rebuild_tensor_v3\n((" if is_untyped else b"ctorch._utils\n_rebuild_tensor_v2\n(("
        )
        self._text("storage")
        self._tail += (
            b"ctorch.storage\nUntypedStorage\n" if is_untyped else b"ctorch\n%b\n" % _STORAGE_OF[dtype].encode()
        )
        self._text(key)
        self._text("cpu")
        self._tail += _integer(raw.nbytes if is_untyped else bits.size) + b"tQK\x00("
        self._tail += b"".join(map(_integer, bits.shape)) + b"t("
        self._tail += b"".join(map(_integer, _contiguous_strides(bits.shape))) + b"t\x89ccollections\nOrderedDict\n)R"
        self._tail += (b"ctorch\n%b\n" % dtype.encode() if is_untyped else b"") + b"tR"


def _contiguous_strides(shape: tuple[int, ...]) -> list[int]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return strides[::-1]


def _integer(value: int) -> bytes:
    if 0 <= value < 1 << 8:
        return b"K" + struct.pack("<B", value)
    if 0 <= value < 1 << 16:
        return b"M" + struct.pack("<H", value)
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    length = value.bit_length() // 8 + 1
    data = value.to_bytes(length, "little", signed=True)
    return (b"\x8a" + struct.pack("<B", length) if length < 256 else b"\x8b" + struct.pack("<i", length)) + data


def _number_array(values: list[Any]) -> np.ndarray | None:
    """A Python list of one kind of number as an array, or None where it is anything else."""
    kinds = set(map(type, values))
    if len(kinds) != 1:
        return None
    try:
        if kinds == {int}:
            return np.frombuffer(array("q", values), dtype=np.int64)
        if kinds == {float}:
            return np.frombuffer(array("d", values), dtype=np.float64)
    except OverflowError:
        return None
    return np.array(values) if kinds == {bool} else None
