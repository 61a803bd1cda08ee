"""Plain data and arrays as a protocol 2 pickle, of the few opcodes that every torch.load accepts.

Lists of numbers are written by number_opcodes.
"""

import struct
from array import array
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rldbg.recording.formats.number_opcodes import AsList, as_lists
from rldbg.recording.formats.torch_rebuild import BITS, STORAGE_CLASSES, contiguous_strides
from rldbg.recording.records import EncodedArray, Ragged

Buffer = bytes | bytearray | memoryview

_STORAGE_OF = {dtype: name for name, dtype in STORAGE_CLASSES.items() if dtype}
_UNTYPED = frozenset(BITS) - frozenset(_STORAGE_OF)
_SEPARATE_FROM_BYTES = 1 << 12
_MAX_DEPTH = 100
_SHORT_TEXT = 64


class PickleWriter:
    """Builds one pickle. `chunks` are its bytes in order, `storages` the bytes of each tensor's storage by number."""

    def __init__(self) -> None:
        self.chunks: list[Buffer] = []
        self.storages: list[np.ndarray] = []
        self._tail = bytearray(b"\x80\x02")
        self._texts: dict[str, bytes] = {}
        self._by_type: dict[type, Callable[[Any, int], None]] = {
            dict: self._mapping,
            list: self._list,
            tuple: self._tuple,
            AsList: self._numbers,
            Ragged: lambda value, depth: self._numbers(AsList(value), depth),
            np.ndarray: self._tensor,
            EncodedArray: self._tensor,
            str: self._text,
            **dict.fromkeys((bool, int, float, bytes, complex, type(None)), self._scalar),
        }

    def finish(self) -> None:
        self._tail += b"."
        self.chunks.append(self._tail)

    def write(self, value: Any, depth: int = 0) -> None:
        if depth > _MAX_DEPTH:
            raise ValueError(f"data nested deeper than {_MAX_DEPTH} levels cannot be written")
        handler = self._by_type.get(type(value))
        if handler is not None:
            handler(value, depth)
        elif isinstance(value, np.generic):
            self._scalar(value.item())
        elif isinstance(value, Mapping):
            self._mapping(value, depth)
        elif isinstance(value, tuple):
            self._tuple(value, depth)
        else:
            self._scalar(value)

    def _scalar(self, value: Any, _depth: int = 0) -> None:
        if value is None:
            self._tail += b"N"
        elif isinstance(value, bool):
            self._tail += b"\x88" if value else b"\x89"
        elif isinstance(value, int):
            self._tail += _integer(value)
        elif isinstance(value, float):
            self._tail += b"G" + struct.pack(">d", value)
        elif isinstance(value, str):
            self._text(str(value))
        elif isinstance(value, bytes):  # protocol 2 has no opcode for bytes
            self._tail += b"c_codecs\nencode\n("
            self._text(value.decode("latin1"))
            self._text("latin1")
            self._tail += b"tR"
        elif isinstance(value, complex):
            self._tail += b"c__builtin__\ncomplex\n(" + struct.pack(">cdcd", b"G", value.real, b"G", value.imag) + b"tR"
        else:
            raise TypeError(f"{type(value).__name__} cannot be written to a .pt file")

    def _text(self, value: str, _depth: int = 0) -> None:
        """Text; short ones, which are keys mostly, are encoded once."""
        encoded = self._texts.get(value)
        if encoded is None:
            data = value.encode("utf-8", "surrogatepass")
            encoded = b"X" + struct.pack("<I", len(data)) + data
            if len(data) < _SHORT_TEXT:
                self._texts[value] = encoded
        self._tail += encoded

    def _tuple(self, value: tuple[Any, ...], depth: int) -> None:
        self._tail += b"("
        for item in value:
            self.write(item, depth + 1)
        self._tail += b"t"

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> None:
        self._tail += b"}("
        for key, item in value.items():
            if type(key) is str:
                self._text(key)
            else:
                self.write(key, depth + 1)
            self.write(item, depth + 1)
        self._tail += b"u"

    def _list(self, value: list[Any], depth: int) -> None:
        numbers = _number_array(value)
        if numbers is not None:
            self._numbers(AsList(numbers), depth)
            return
        self._tail += b"]("
        for item in value:
            self.write(item, depth + 1)
        self._tail += b"e"

    def _numbers(self, numbers: AsList, depth: int) -> None:
        values = numbers.values
        if len(values) == 0:
            self._tail += b"]"
            return
        if isinstance(values, Ragged):
            rows = as_lists(values)
        elif len(values.shape) == 1:
            self._tail += b"]("
            self._append(numbers.opcodes())
            self._tail += b"e"
            return
        else:
            rows = [AsList(row) for row in np.asarray(values)]
        self._tail += b"]("
        for row in rows:
            self._numbers(row, depth + 1)
        self._tail += b"e"

    def _append(self, opcodes: np.ndarray) -> None:
        """Large pieces stay where they are; small ones are gathered, so that there are few buffers to write."""
        data = opcodes.reshape(-1).data
        if len(data) < _SEPARATE_FROM_BYTES:
            self._tail += data
        else:
            self.chunks += (self._tail, data)
            self._tail = bytearray()

    def _tensor(self, value: np.ndarray | EncodedArray, _depth: int) -> None:
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
        self._tail += b"".join(map(_integer, contiguous_strides(bits.shape))) + b"t\x89ccollections\nOrderedDict\n)R"
        self._tail += (b"ctorch\n%b\n" % dtype.encode() if is_untyped else b"") + b"tR"


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
