"""Files that torch.load reads, also with weights_only=True, written without torch.

Arrays become tensors; AsList and Ragged become Python lists of numbers. Array data is passed through, not copied.
"""

import os
from pathlib import Path
from typing import Any, BinaryIO

from rldbg.recording.formats.number_opcodes import AsList
from rldbg.recording.formats.pickle_writer import Buffer, PickleWriter
from rldbg.recording.formats.zip_writer import zip_buffers

__all__ = ["AsList", "dump_pt", "encode_pt"]

_BUFFERS_A_CALL = 1024  # the least that every system accepts


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
