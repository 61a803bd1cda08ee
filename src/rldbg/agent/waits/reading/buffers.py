"""What was written into an open file and is still in its buffer, from where the interpreter keeps files in memory."""

import ctypes
from collections.abc import Callable
from typing import Any

from .layout import MemoryLayout

_WORD = 8
# Where a file of text has that of bytes, and the pair that `socket.makefile("rw")` gives its writer.
_INNER = {"TextIOWrapper": 32, "BufferedRWPair": 24}
_OF_BYTES = ("BufferedWriter", "BufferedRandom")
BUFFERS = frozenset({*_INNER, *_OF_BYTES})
_MOST = 1 << 30
# How numbers of ctypes lie in memory, by their types.
NUMBERS_OF_C = {"c_bool": "<?", "c_byte": "<b", "c_ubyte": "<B", "c_short": "<h", "c_ushort": "<H", "c_int": "<i"}
NUMBERS_OF_C |= {"c_uint": "<I", "c_long": "<q", "c_ulong": "<Q", "c_float": "<f", "c_double": "<d"}


def own_word(address: int) -> int:
    """A word of this process's memory."""
    return int(ctypes.c_uint64.from_address(address).value)


def own_writer(pair: Any) -> Any:
    return ctypes.cast(own_word(id(pair) + _INNER["BufferedRWPair"]), ctypes.py_object).value


def own_kind(address: int) -> str:
    """Of a file of Python's own; a class of the user's may have the same name and other things in these places."""
    kind = type(ctypes.cast(address, ctypes.py_object).value)
    return kind.__name__ if kind.__module__ == "_io" else ""


def unwritten_bytes(
    address: int, kind_at: Callable[[int], str], word: Callable[[int], int], layout: MemoryLayout
) -> int:
    """How many bytes; a file of text has a buffer of its own before that of the bytes."""
    found, kind = 0, kind_at(address)
    while kind in _INNER:
        pending = word(address + layout["text_pending"]) if kind == "TextIOWrapper" else 0
        found += pending if pending < _MOST else 0
        address = word(address + _INNER[kind])
        kind = kind_at(address) if address else ""
    if kind in _OF_BYTES:
        begins, ends = (word(address + layout["written_end"] - at) for at in (_WORD, 0))
        # Where nothing is in it, the end is -1.
        found += ends - begins if begins < ends < _MOST else 0
    return found
