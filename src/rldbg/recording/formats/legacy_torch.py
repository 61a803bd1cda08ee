"""The torch.save format from before zip files: of whole files, and of the storages that plain pickles of tensors embed.

Five pickles: magic number, protocol, system information, the object, the keys of its storages in a list; then, for each
storage in that order, how many values it has (int64, little-endian) and their bytes.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rldbg.recording.formats.malformed import Malformed
from rldbg.recording.formats.torch_rebuild import BITS, Storage, StorageClass

MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_SYSTEM_PICKLES = 3

# Reads the pickle at the start of the bytes, given a resolver of persistent ids; returns its value and length.
ReadPickle = Callable[[bytes, Callable[[Any], Any]], tuple[Any, int]]


def read_storage(data: Any, read_pickle: ReadPickle) -> Storage:
    """The storage, as a view of the data."""
    if not isinstance(data, bytes) or not data.startswith(MAGIC):
        raise Malformed("not a storage as torch pickles it")
    position = 0
    for _ in range(_SYSTEM_PICKLES):
        position += read_pickle(data[position:], _reference)[1]
    reference, length = read_pickle(data[position:], _reference)
    position += length
    keys, length = read_pickle(data[position:], _reference)
    position += length
    if not isinstance(reference, tuple) or len(reference) != 2 or keys != [reference[1]]:
        raise Malformed("something other than one storage in the old format of torch.save")
    return _storage(data, position, reference[0])


def read_legacy(data: bytes, read_pickle: ReadPickle) -> Any:
    """The object in a file. It is unpickled twice: what its storages are is known only when it has been once."""
    position = 0
    for _ in range(_SYSTEM_PICKLES):
        about, length = read_pickle(data[position:], _reference)
        position += length
    if isinstance(about, dict) and about.get("little_endian") is False:
        raise Malformed("written on a big-endian machine in the old format of torch.save", "save it again there")
    promised = _Promised(len(data))
    _, length = read_pickle(data[position:], promised)
    keys, keys_length = read_pickle(data[position + length :], _reference)
    if not isinstance(keys, list):
        raise Malformed("the old format of torch.save without a list of storages")
    storages: dict[str, Storage] = {}
    start = position + length + keys_length
    for key in keys:
        if key not in promised.storages:
            raise Malformed(f"storage {key!r:.20} belongs to nothing")
        dtype = promised.storages[key].dtype
        storages[key] = _storage(data, start, dtype)
        start += 8 + len(storages[key].data)
    return read_pickle(data[position:], lambda pid: _found(storages, pid))[0]


class _Promised:
    """Answers references before the storages are read, with placeholder zeros."""

    def __init__(self, size_bytes: int) -> None:
        self.storages: dict[str, Storage] = {}
        self._left = size_bytes

    def __call__(self, pid: Any) -> Storage:
        dtype, key = _reference(pid)
        if key not in self.storages:
            count = pid[4]
            size = count * (BITS[dtype].itemsize if dtype else 1) if type(count) is int else -1
            if not 0 <= size <= self._left:
                raise Malformed(f"storage {key!r:.20} claims {count!r:.20} values, more than there are")
            self._left -= size
            self.storages[key] = Storage(np.zeros(size, np.uint8), dtype)
        return self.storages[key]


def _found(storages: Mapping[str, Storage], pid: Any) -> Storage:
    _, key = _reference(pid)
    if len(pid) > 5 and pid[5] is not None:
        raise Malformed("a view of a storage as torch wrote it before 0.4", "load it once with torch and save it again")
    if key not in storages:
        raise Malformed(f"storage {key!r:.20} is not in the file")
    return storages[key]


def _storage(data: bytes, position: int, dtype: str) -> Storage:
    count: int = struct.unpack_from("<q", data, position)[0]
    size = count * (BITS[dtype].itemsize if dtype else 1)
    if not 0 <= size <= len(data) - position - 8:
        raise Malformed(f"a storage claims {count} values, more than there are")
    return Storage(np.frombuffer(data, np.uint8, size, position + 8), dtype)


def _reference(pid: Any) -> tuple[str, str]:
    if not isinstance(pid, tuple) or len(pid) < 5 or pid[0] != "storage" or not isinstance(pid[1], StorageClass):
        raise Malformed(f"an unknown persistent id: {pid!r:.60}")
    return pid[1].dtype, pid[2]
