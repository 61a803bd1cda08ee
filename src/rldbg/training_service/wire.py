"""The protobuf wire format, as much of it as the training protocols use: varints, 64-bit and 32-bit numbers, bytes.

A message is read as a list of (field number, value) and written as concatenated fields; what the fields mean is the
caller's business. Every malformed message is a WireError, never an endless loop or an oversized allocation.
"""

import struct
from collections.abc import Iterator

Value = int | float | bytes

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class WireError(ValueError):
    """The bytes are no protobuf message of the expected shape."""


def read_fields(message: bytes) -> Iterator[tuple[int, Value]]:
    """The fields of a message in order; numbers of fixed width are read as floating point."""
    position = 0
    while position < len(message):
        tag, position = _read_varint(message, position)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise WireError("a field has the number 0")
        value: Value
        if kind == _VARINT:
            value, position = _read_varint(message, position)
        elif kind == _BYTES:
            length, position = _read_varint(message, position)
            value, position = _take(message, position, length)
        elif kind in (_FIXED64, _FIXED32):
            width, code = (8, "<d") if kind == _FIXED64 else (4, "<f")
            raw, position = _take(message, position, width)
            value = float(struct.unpack(code, raw)[0])
        else:
            raise WireError(f"field {number} has the unknown wire type {kind}")
        yield number, value


def signed(value: int) -> int:
    """A varint as the signed 64-bit number it stands for."""
    return value - (1 << 64) if value >= 1 << 63 else value


def packed_integers(value: Value) -> list[int]:
    """A repeated integer field: packed into bytes, or one varint of an unpacked list."""
    if isinstance(value, int):
        return [signed(value)]
    if not isinstance(value, bytes):
        raise WireError("a list of integers is neither packed nor a varint")
    numbers, position = [], 0
    while position < len(value):
        number, position = _read_varint(value, position)
        numbers.append(signed(number))
    return numbers


def as_bytes(value: Value) -> bytes:
    if not isinstance(value, bytes):
        raise WireError("expected bytes")
    return value


def as_text(value: Value) -> str:
    try:
        return as_bytes(value).decode("utf-8")
    except UnicodeDecodeError as error:
        raise WireError(f"text is not UTF-8: {error}") from error


def as_integer(value: Value) -> int:
    if not isinstance(value, int):
        raise WireError("expected an integer")
    return signed(value)


def as_number(value: Value) -> float:
    if not isinstance(value, float):
        raise WireError("expected a number")
    return value


def read_map_entry(message: bytes) -> tuple[str, Value | None]:
    """One entry of a map field: key is field 1, value is field 2 (None when it is left out, meaning its default)."""
    key, value = "", None
    for number, content in read_fields(message):
        if number == 1:
            key = as_text(content)
        elif number == 2:
            value = content
    return key, value


def write_integer(number: int, value: int) -> bytes:
    return _varint(number << 3 | _VARINT) + _varint(value & (1 << 64) - 1)


def write_double(number: int, value: float) -> bytes:
    return _varint(number << 3 | _FIXED64) + struct.pack("<d", value)


def write_bytes(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(value)) + value


def write_text(number: int, value: str) -> bytes:
    return write_bytes(number, value.encode("utf-8"))


def write_message(number: int, *fields: bytes) -> bytes:
    return write_bytes(number, b"".join(fields))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(message):
            raise WireError("the message ends inside a number")
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >= 1 << 64:
                raise WireError("a number has more than 64 bits")
            return value, position
        shift += 7
        if shift >= 70:
            raise WireError("a number has more than ten bytes")


def _take(message: bytes, position: int, length: int) -> tuple[bytes, int]:
    end = position + length
    if end > len(message):
        raise WireError(f"a field claims {length} bytes where {len(message) - position} are left")
    return message[position:end], end
