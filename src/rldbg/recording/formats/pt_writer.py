"""Files that torch.load reads, also with weights_only=True, written without torch.

Arrays become tensors; AsList and Ragged become Python lists of numbers. Array data is passed through, not copied.
"""

import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from rldbg.recording.formats.checksum import crc32
from rldbg.recording.formats.number_opcodes import AsList
from rldbg.recording.formats.pickle_writer import Buffer, PickleWriter

__all__ = ["AsList", "dump_pt", "encode_pt"]

_BUFFERS_A_CALL = 1024  # the least that every system accepts
_ALIGNMENT = 64
_LIMIT = 0xFFFFFFFF
_UTF8 = 0x800
_DATE = 0x21  # 1980-01-01, the first day zip files know
_LOCAL = struct.Struct("<4s5H3I2H")
_ENTRY = struct.Struct("<4s6H3I5H2I")
_PADDING_TAG = 0x4246  # "FB", as in torch's own files


def encode_pt(value: Any) -> list[Buffer]:
    """The bytes of the file, in order, as buffers that may refer to the arrays given."""
    pickle = PickleWriter()
    pickle.write(value)
    pickle.finish()
    members: list[tuple[str, list[Buffer]]] = [
        ("archive/data.pkl", pickle.chunks),
        ("archive/byteorder", [b"little"]),
    ]
    members += [(f"archive/data/{key}", [storage.data]) for key, storage in enumerate(pickle.storages)]
    members.append(("archive/version", [b"3\n"]))
    return zip_buffers(members)


def dump_pt(value: Any, target: Path | str | BinaryIO) -> None:
    """Write the file, to a path or to an open binary file."""
    buffers = encode_pt(value)
    if isinstance(target, Path | str):
        with open(target, "wb", buffering=0) as file:
            _write_all(file.fileno(), [memoryview(buffer) for buffer in buffers])
    else:
        target.writelines(buffers)


def _write_all(descriptor: int, buffers: list[memoryview]) -> None:
    """Many buffers per call: a file of lists has thousands of small ones."""
    first = 0
    while first < len(buffers):
        written = os.writev(descriptor, buffers[first : first + _BUFFERS_A_CALL])
        while first < len(buffers) and written >= buffers[first].nbytes:
            written -= buffers[first].nbytes
            first += 1
        if written:
            buffers[first] = buffers[first][written:]


def zip_buffers(members: Sequence[tuple[str, Sequence[Buffer]]]) -> list[Buffer]:
    """The whole file. Member bytes are passed through, never copied; their checksums are computed here."""
    result: list[Buffer] = []
    directory = bytearray()
    position = 0
    for name, chunks in members:
        size, crc = 0, 0
        for chunk in chunks:
            size += memoryview(chunk).nbytes
            crc = crc32(chunk, crc)
        header = _local_header(name.encode(), crc, size, position)
        directory += _entry(name.encode(), crc, size, position)
        result.append(header)
        result.extend(chunks)
        position += len(header) + size
    result.append(bytes(directory) + _end(len(members), len(directory), position))
    return result


def _local_header(name: bytes, crc: int, size: int, position: int) -> bytes:
    is_large = size >= _LIMIT
    sizes = struct.pack("<2H2Q", 1, 16, size, size) if is_large else b""
    short = _LIMIT if is_large else size
    unpadded = position + _LOCAL.size + len(name) + len(sizes)
    padding = -(unpadded + 4) % _ALIGNMENT
    extra = sizes + struct.pack("<2H", _PADDING_TAG, padding) + bytes(padding)
    version = 45 if is_large else 20
    return (
        _LOCAL.pack(b"PK\x03\x04", version, _UTF8, 0, 0, _DATE, crc, short, short, len(name), len(extra)) + name + extra
    )


def _entry(name: bytes, crc: int, size: int, position: int) -> bytes:
    wide = [value for value in (size, size, position) if value >= _LIMIT]
    extra = struct.pack(f"<2H{len(wide)}Q", 1, 8 * len(wide), *wide) if wide else b""
    short_size, short_position = min(size, _LIMIT), min(position, _LIMIT)
    version = 45 if wide else 20
    return (
        _ENTRY.pack(
            *(b"PK\x01\x02", version, version, _UTF8, 0, 0, _DATE, crc, short_size, short_size),
            *(len(name), len(extra), 0, 0, 0, 0, short_position),
        )
        + name
        + extra
    )


def _end(count: int, size: int, position: int) -> bytes:
    wide = b""
    if count >= 0xFFFF or size >= _LIMIT or position >= _LIMIT:
        wide = struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, size, position)
        wide += struct.pack("<4sIQI", b"PK\x06\x07", 0, position + size, 1)
    short_count = min(count, 0xFFFF)
    tail = (0, 0, short_count, short_count, min(size, _LIMIT), min(position, _LIMIT), 0)
    return wide + struct.pack("<4s4H2IH", b"PK\x05\x06", *tail)
