"""A storage as plain pickles of tensors embed it: in the torch.save format from before zip files.

Five pickles: magic number, protocol, system information, a reference to the storage, its key in a list; then how many
values it has (int64, little-endian) and their bytes.
"""

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from rldbg.recording.formats.malformed import Malformed
from rldbg.recording.formats.torch_rebuild import BITS, Storage, StorageClass

MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_SYSTEM_PICKLES = 3

# Reads the pickle that the bytes begin with, given who answers persistent ids: its value, and how long it is.
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
        raise Malformed("something else than one storage in the old format of torch.save")
    count: int = struct.unpack_from("<q", data, position)[0]
    dtype: str = reference[0]
    size = count * (BITS[dtype].itemsize if dtype else 1)
    if not 0 <= size <= len(data) - position - 8:
        raise Malformed(f"a storage claims {count} values, more than there are")
    return Storage(np.frombuffer(data, np.uint8, size, position + 8), dtype)


def _reference(pid: Any) -> tuple[str, str]:
    if not isinstance(pid, tuple) or len(pid) < 5 or pid[0] != "storage" or not isinstance(pid[1], StorageClass):
        raise Malformed(f"an unknown persistent id: {pid!r:.60}")
    return pid[1].dtype, pid[2]
