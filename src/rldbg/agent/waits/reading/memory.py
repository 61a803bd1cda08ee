"""The memory of another process; the process is neither stopped nor changed.

What is read may change meanwhile: anything that cannot be read is absent, and nothing here raises to its caller.
"""

import os
import struct
from collections.abc import Iterator
from typing import Any

from .layout import LayoutError, MemoryLayout, base_of, library_of

_WORD = 8
_LIMIT = 20_000
_PAGE_BITS = 12
_PAGE = 1 << _PAGE_BITS
_FLAGS = 168


class ProcessMemory:
    """The memory of a process of this host. Needs the right to trace it."""

    def __init__(self, pid: int, layout: MemoryLayout) -> None:
        self.pid = pid
        self.layout = layout
        self.minor = layout["minor"]
        self._file = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
        self._types: dict[int, tuple[str, int]] = {}
        self._pages: dict[int, bytes] = {}
        self.tables: dict[int, Any] = {}

    def close(self) -> None:
        os.close(self._file)

    def forget(self) -> None:
        """What is read from now on is read anew."""
        self._pages.clear()
        self.tables.clear()

    def read(self, address: int, size: int) -> bytes:
        if not 0 < address < 1 << 62 or not 0 <= size <= 1 << 20:
            return b""
        first, last = address >> _PAGE_BITS, (address + size - 1) >> _PAGE_BITS
        begin = address & (_PAGE - 1)
        if first >= last:
            return self._page(first)[begin : begin + size]
        return b"".join(self._page(number) for number in range(first, last + 1))[begin : begin + size]

    def _page(self, number: int) -> bytes:
        """Each page is read once, so that a snapshot is consistent per page and cheap."""
        if number not in self._pages:
            try:
                self._pages[number] = os.pread(self._file, _PAGE, number << _PAGE_BITS)
            except OSError:
                self._pages[number] = b""
        return self._pages[number]

    def word(self, address: int) -> int:
        data = self.read(address, _WORD)
        return int.from_bytes(data, "little") if len(data) == _WORD else 0

    def words(self, address: int, count: int) -> tuple[int, ...]:
        data = self.read(address, _WORD * min(count, _LIMIT))
        return struct.unpack(f"<{len(data) // _WORD}Q", data[: len(data) // _WORD * _WORD])

    def interpreter(self) -> int:
        """Where the state of its main interpreter lies; 0 when it cannot be found."""
        try:
            runtime = base_of(self.pid, library_of(self.pid)) + self.layout["runtime"]
        except (OSError, LayoutError):
            return 0
        return self.word(runtime + self.layout["interpreter"])

    def type_facts(self, address: int) -> tuple[str, int]:
        """Name and flags of a type."""
        if address not in self._types:
            name = self.read(self.word(address + 24), 200).partition(b"\0")[0].decode("ascii", "replace")
            self._types[address] = name.rpartition(".")[2], self.word(address + _FLAGS)
        return self._types[address]

    def keyed(self, keys: int, values: int) -> Iterator[tuple[int, int]]:
        """Pairs of pointers of a table of keys; `values` is the separate array of a split table, or 0."""
        head = self.read(keys, 32)
        if len(head) < 32:
            return
        index_bytes, is_text, entries = 1 << head[9], head[10], int.from_bytes(head[24:32], "little")
        width = 2 if is_text else 3
        table = self.words(keys + 32 + index_bytes, min(entries, _LIMIT) * width)
        apart = self.words(values, entries) if values else ()
        for at in range(len(table) // width):
            key, value = table[at * width + width - 2 : at * width + width]
            if values:
                value = apart[at] if at < len(apart) else 0
            if key and value:
                yield key, value


def decoded_line(table: bytes, first: int, offset: int) -> int:
    """The line of an instruction, from a table of locations (the format of Python 3.11 and later)."""
    line, begin, at = first, 0, 0
    while at < len(table):
        kind, units = table[at] >> 3 & 15, (table[at] & 7) + 1
        body = at + 1
        if kind in (13, 14):
            value = shift = 0
            while body < len(table):
                value |= (table[body] & 63) << shift
                shift += 6
                body += 1
                if not table[body - 1] & 64:
                    break
            line += -(value >> 1) if value & 1 else value >> 1
        elif 10 <= kind <= 12:
            line += kind - 10
        if begin <= offset < begin + units * 2:
            return line
        begin += units * 2
        at += 1
        while at < len(table) and not table[at] & 128:
            at += 1
    return line
