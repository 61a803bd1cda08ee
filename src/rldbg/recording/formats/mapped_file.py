"""The bytes of a file: mapped, unless it is so small that reading it is cheaper than mapping and faulting it in."""

import mmap
import os
from pathlib import Path

_MAP_FROM_BYTES = 1 << 16


def file_bytes(path: Path | str) -> memoryview:
    """The whole file, read-only. Views of it keep the mapping alive; the file may be unlinked meanwhile."""
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size < _MAP_FROM_BYTES:
            return memoryview(file.read())
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
