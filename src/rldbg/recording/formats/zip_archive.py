"""Members of a zip file as views of its bytes. Nothing is extracted, so names are only keys and cannot traverse.

Written for torch.save files: stored members (zero copy), zip64, any order. Deflated members are accepted within bounds.
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from rldbg.recording.formats.checksum import crc32
from rldbg.recording.formats.malformed import Malformed

_END = struct.Struct("<4s4H2IH")
_END64_LOCATOR = struct.Struct("<4sIQI")
_END64 = struct.Struct("<4sQ2H2I4Q")
_ENTRY = struct.Struct("<4s6H3I5H2I")
_LOCAL = struct.Struct("<4s5H3I2H")

_STORED, _DEFLATED = 0, 8
_ENCRYPTED_FLAG = 1
_MAX_INFLATED_BYTES = 1 << 30
_MAX_RATIO = 200
_SMALL_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class Member:
    """One entry of the directory; `size` is what it holds, `packed_size` what it takes in the file."""

    name: str
    method: int
    flags: int
    crc32: int
    packed_size: int
    size: int
    header_offset: int


class ZipArchive:
    """The directory of a zip file that lies in memory (usually mapped)."""

    def __init__(self, buffer: memoryview) -> None:
        self._buffer = buffer
        self._inflated_bytes = 0
        self.members = {member.name: member for member in _directory(buffer)}

    def read(self, name: str) -> memoryview:
        """The bytes of a member: a view of the file when it is stored, as all of torch's are."""
        member = self.members[name]
        packed = self._packed(member)
        if member.flags & _ENCRYPTED_FLAG:
            raise Malformed(f"member {name!r} is encrypted")
        if member.method == _STORED:
            if member.size != member.packed_size:
                raise Malformed(f"member {name!r} declares two sizes, {member.size} and {member.packed_size}")
            return packed
        if member.method == _DEFLATED:
            return self._inflate(member, packed)
        raise Malformed(f"member {name!r} is compressed with the unknown method {member.method}")

    def check(self, name: str) -> bool:
        """Whether a member's bytes are those its checksum was made of. torch writes 0 when told to skip checksums."""
        recorded = self.members[name].crc32
        return recorded == 0 or crc32(self.read(name)) == recorded

    def _packed(self, member: Member) -> memoryview:
        start = member.header_offset
        if start + _LOCAL.size > len(self._buffer):
            raise Malformed(f"member {member.name!r} lies beyond the end of the file")
        signature, *_, name_length, extra_length = _LOCAL.unpack_from(self._buffer, start)
        if signature != b"PK\x03\x04":
            raise Malformed(f"member {member.name!r} has no header where the directory says")
        start += _LOCAL.size + name_length + extra_length
        if start + member.packed_size > len(self._buffer):
            raise Malformed(
                f"member {member.name!r} claims {member.packed_size} bytes, more than the file holds from there"
            )
        return self._buffer[start : start + member.packed_size]

    def _inflate(self, member: Member, packed: memoryview) -> memoryview:
        if member.size > max(_SMALL_BYTES, _MAX_RATIO * member.packed_size):
            raise Malformed(
                f"member {member.name!r} would inflate {member.packed_size} bytes to {member.size}: a zip bomb",
                "do not trust this file; torch.save never compresses its members",
            )
        self._inflated_bytes += member.size
        if self._inflated_bytes > _MAX_INFLATED_BYTES:
            raise Malformed(f"compressed members of more than {_MAX_INFLATED_BYTES >> 20} MiB in all")
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        data = inflater.decompress(packed, member.size + 1)
        if len(data) != member.size or not inflater.eof:
            raise Malformed(f"member {member.name!r} does not inflate to the {member.size} bytes it declares")
        return memoryview(data)


def _directory(buffer: memoryview) -> Iterator[Member]:
    position, end, count = _directory_span(buffer)
    for _ in range(count):
        if position + _ENTRY.size > end:
            raise Malformed("the zip directory ends in the middle of an entry")
        fields = _ENTRY.unpack_from(buffer, position)
        if fields[0] != b"PK\x01\x02":
            raise Malformed("the zip directory holds something that is not an entry")
        flags, method = fields[3], fields[4]
        crc32, packed_size, size = fields[7:10]
        name_length, extra_length, comment_length = fields[10:13]
        name_end = position + _ENTRY.size + name_length
        position = name_end + extra_length + comment_length
        if position > end:
            raise Malformed("the zip directory ends in the middle of an entry")
        name = bytes(buffer[name_end - name_length : name_end]).decode("utf-8", "backslashreplace")
        extra = buffer[name_end : name_end + extra_length]
        size, packed_size, offset = _widen(extra, size, packed_size, fields[16])
        yield Member(name, method, flags, crc32, packed_size, size, offset)


def _directory_span(buffer: memoryview) -> tuple[int, int, int]:
    """Where the directory starts and ends, and how many entries it has."""
    tail_start = max(0, len(buffer) - _END.size - 0xFFFF)
    found = bytes(buffer[tail_start:]).rfind(b"PK\x05\x06")
    end = tail_start + found
    if found < 0 or end + _END.size > len(buffer):
        raise Malformed("not a whole zip file: its directory at the end is missing")
    _, _, _, _, count, size, start, _ = _END.unpack_from(buffer, end)
    locator = end - _END64_LOCATOR.size
    if locator >= 0 and bytes(buffer[locator : locator + 4]) == b"PK\x06\x07":
        _, _, end64, _ = _END64_LOCATOR.unpack_from(buffer, locator)
        if end64 + _END64.size > locator or bytes(buffer[end64 : end64 + 4]) != b"PK\x06\x06":
            raise Malformed("the zip64 directory is not where the file says")
        *_, count, size, start = _END64.unpack_from(buffer, end64)
        end = end64
    if start + size > end or count > size // _ENTRY.size:
        raise Malformed("the zip directory does not fit into the file")
    return start, start + size, count


def _widen(extra: memoryview, size: int, packed_size: int, offset: int) -> tuple[int, int, int]:
    """The 64-bit values of a zip64 entry, which its extra field holds in place of 0xFFFFFFFF."""
    values = [size, packed_size, offset]
    if 0xFFFFFFFF not in values:
        return size, packed_size, offset
    position = 0
    while position + 4 <= len(extra):
        tag, length = struct.unpack_from("<2H", extra, position)
        position += 4
        if tag == 1:
            for index, value in enumerate(values):
                if value == 0xFFFFFFFF:
                    (values[index],) = struct.unpack_from("<Q", extra, position)
                    position += 8
            return values[0], values[1], values[2]
        position += length
    raise Malformed("a zip64 entry lacks its sizes")
