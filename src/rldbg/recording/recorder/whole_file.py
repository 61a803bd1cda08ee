"""Files that are complete or not there: written under a temporary name, then given their own.

The name is given by a hard link, which never replaces a file that is already there; a file system without hard links
gets a rename after a look, which two processes of one rank could in theory race.
"""

import errno
import itertools
import os
from collections.abc import Callable, Sequence

from rldbg.recording.recorder.checksum import Piece, SharedSum, crc32

PIECE_BYTES = 4 * 2**20
# Below this one thread sums and writes: handing work to another thread would cost more than it saves.
_SHARED_FROM_BYTES = 2 * PIECE_BYTES
# Below this it is cheapest to join all buffers and make one call for each step.
_JOIN_BELOW_BYTES = 32 * 2**10
_MOST_VIEWS = 512  # well under the kernel's limit of 1024 for one writev
_NO_HARD_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})


def write(path: str, buffers: Sequence[memoryview], offer: Callable[[Callable[[], None]], None]) -> tuple[int, int]:
    """Writes the buffers and returns size and CRC-32. `offer` may have the given help run by another thread."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        pieces = _pieces(buffers)
        size = sum(view.nbytes for piece in pieces for view in piece)
        if size < _SHARED_FROM_BYTES:
            return size, _write_alone(descriptor, pieces)
        shared = SharedSum(pieces)
        offer(shared.help_from_front)
        for piece in pieces:
            _write_piece(descriptor, piece)
        return size, shared.result()
    finally:
        os.close(descriptor)


def give_name(temporary: str, names: Callable[[int], str]) -> int:
    """Gives the file the first of the paths names(0), names(1) ... that is free, and returns its number."""
    for number in itertools.count():
        try:
            os.link(temporary, names(number))
        except FileExistsError:
            continue
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            if os.path.lexists(names(number)):
                continue
            os.rename(temporary, names(number))  # noqa: PTH104 - plain strings, as below
            return number
        os.unlink(temporary)  # noqa: PTH108 - pathlib would take a fifth of the time of a small file
        return number
    raise AssertionError("numbers never end")


def _write_alone(descriptor: int, pieces: list[Piece]) -> int:
    whole: list[memoryview] = [view for piece in pieces for view in piece]
    if sum(view.nbytes for view in whole) < _JOIN_BELOW_BYTES:
        whole = [memoryview(b"".join(whole))]
    _write_piece(descriptor, whole)
    return crc32(whole)


def _write_piece(descriptor: int, piece: Piece) -> None:
    for start in range(0, len(piece), _MOST_VIEWS):
        views = list(piece[start : start + _MOST_VIEWS])
        while views:
            written = os.writev(descriptor, views)
            while views and written >= views[0].nbytes:
                written -= views.pop(0).nbytes
            if views:
                views[0] = views[0][written:]


def _pieces(buffers: Sequence[memoryview]) -> list[Piece]:
    """The buffers cut and grouped into pieces of PIECE_BYTES; only the last piece is shorter."""
    pieces: list[Piece] = []
    current: list[memoryview] = []
    room = PIECE_BYTES
    for buffer in buffers:
        start = 0
        while start < buffer.nbytes:
            view = buffer[start : start + room]
            current.append(view)
            start += view.nbytes
            room -= view.nbytes
            if room == 0:
                pieces.append(current)
                current, room = [], PIECE_BYTES
    if current:
        pieces.append(current)
    return pieces
