"""Reads MessagePack without running any code: numbers, texts, bytes, lists and maps. Lists of numbers become arrays.

Declared lengths are checked against the bytes left, and the nesting depth is limited.
"""

import struct
from typing import Any

import numpy as np

from rldbg.recording.formats.malformed import Malformed

_DEEPEST = 32
_NUMBERS = {tag: f">{code}" for tag, code in enumerate("fdBHIQbhiq", start=0xCA)}
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_SIZES = {1: ">B", 2: ">H", 4: ">I"}
_TEXTS, _BYTES, _LISTS, _MAPS = (
    {0xD9: 1, 0xDA: 2, 0xDB: 4},
    {0xC4: 1, 0xC5: 2, 0xC6: 4},
    {0xDC: 2, 0xDD: 4},
    {0xDE: 2, 0xDF: 4},
)
_DOUBLE = np.dtype([("tag", "u1"), ("value", ">f8")])


def read_msgpack(data: bytes) -> Any:
    """The one value that the bytes are; Malformed when they are not, or more follows."""
    reader = _Reader(data)
    value = reader.value(0)
    if reader.at != len(data):
        raise Malformed(f"{len(data) - reader.at} bytes follow the MessagePack value")
    return value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def value(self, depth: int) -> Any:
        if depth > _DEEPEST:
            raise Malformed("MessagePack nested too deeply")
        tag = self._take(1)[0]
        if tag <= 0x7F:
            return tag
        if tag >= 0xE0:
            return tag - 0x100
        if tag in _CONSTANTS:
            return _CONSTANTS[tag]
        if tag in _NUMBERS:
            return self._number(_NUMBERS[tag])
        return self._sized(tag, depth)

    def _sized(self, tag: int, depth: int) -> Any:
        if 0xA0 <= tag <= 0xBF:
            return self._text(tag & 0x1F)
        if 0x90 <= tag <= 0x9F:
            return self._list(tag & 0x0F, depth)
        if 0x80 <= tag <= 0x8F:
            return self._map(tag & 0x0F, depth)
        if tag in _TEXTS:
            return self._text(self._number(_SIZES[_TEXTS[tag]]))
        if tag in _BYTES:
            return bytes(self._take(self._number(_SIZES[_BYTES[tag]])))
        if tag in _LISTS:
            return self._list(self._number(_SIZES[_LISTS[tag]]), depth)
        if tag in _MAPS:
            return self._map(self._number(_SIZES[_MAPS[tag]]), depth)
        raise Malformed(f"MessagePack type 0x{tag:02x} is not read")

    def _take(self, count: int) -> bytes:
        if count > len(self._data) - self.at:
            raise Malformed("the MessagePack data ends too early")
        self.at += count
        return self._data[self.at - count : self.at]

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _text(self, length: int) -> str:
        return self._take(length).decode("utf-8", "replace")

    def _list(self, count: int, depth: int) -> Any:
        if count > len(self._data) - self.at:
            raise Malformed(f"a MessagePack list claims {count} items in {len(self._data) - self.at} bytes")
        doubles = self._doubles(count)
        return doubles if doubles is not None else [self.value(depth + 1) for _ in range(count)]

    def _doubles(self, count: int) -> np.ndarray | None:
        """A list of nothing but doubles, as log probs are, at once."""
        end = self.at + count * _DOUBLE.itemsize
        if count < 2 or end > len(self._data):
            return None
        rows = np.frombuffer(self._data, _DOUBLE, count, self.at)
        if not (rows["tag"] == 0xCB).all():
            return None
        self.at = end
        return rows["value"].astype(np.float64)

    def _map(self, count: int, depth: int) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for _ in range(count):
            key = self.value(depth + 1)
            if not isinstance(key, str | int):
                raise Malformed("a MessagePack map has a key that is neither text nor number")
            found[key] = self.value(depth + 1)
        return found
