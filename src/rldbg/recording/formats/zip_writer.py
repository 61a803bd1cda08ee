"""A zip file of stored members as a list of buffers, laid out as torch.save does: every member starts at 64 bytes."""

import struct
from collections.abc import Sequence

from rldbg.recording.formats.checksum import crc32
from rldbg.recording.formats.pickle_writer import Buffer

_ALIGNMENT = 64
_LIMIT = 0xFFFFFFFF
_UTF8 = 0x800
_DATE = 0x21  # 1980-01-01, the first day zip files know
_LOCAL = struct.Struct("<4s5H3I2H")
_ENTRY = struct.Struct("<4s6H3I5H2I")
_PADDING_TAG = 0x4246  # "FB", as in torch's own files


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
