"""Files that are complete or not there: written under a temporary name, then given their own.

The name is given by a hard link, which never replaces a file that is already there; a file system without hard links
gets a rename after a look, which two processes of one rank could in theory race.
"""

import errno
import itertools
import os
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rldbg.recording.formats.checksum import crc32, join

# Large pieces: after each one the thread has to get the interpreter back from the trainer.
_PIECE_BYTES = 8 * 2**20
# Below this it is cheapest to join all buffers and make one call for each step.
_JOIN_BELOW_BYTES = 32 * 2**10
_MOST_VIEWS = 512  # well under the kernel's limit of 1024 for one writev
_NO_HARD_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})


class FilePiece(NamedTuple):
    offset: int
    size: int
    views: list[memoryview]


class SharedWriting:
    """The pieces of one file, checksummed and written by any idle thread; each piece exactly once."""

    def __init__(self, descriptor: int, pieces: Sequence[FilePiece]) -> None:
        self._descriptor = descriptor
        self._pieces = pieces
        self._sums = [0] * len(self._pieces)
        self._lock = threading.Lock()
        self._begun = 0
        self._missing = len(self._pieces)
        self._complete = threading.Event()
        self._error: BaseException | None = None

    def help(self) -> None:
        """Writes pieces until all have been started."""
        while (index := self._claim()) is not None:
            try:
                self._sums[index] = _write_piece(self._descriptor, self._pieces[index])
            except BaseException as error:  # noqa: BLE001 - raised by finish(), in the thread that owns the file
                self._error = error
            finally:
                self._finish_one()

    def finish(self) -> tuple[int, int]:
        """Writes the remaining pieces, waits for helping threads, and returns the file's size and CRC-32."""
        self.help()
        if self._pieces:
            self._complete.wait()
        if self._error is not None:
            raise self._error
        size, checksum = 0, 0
        for piece, value in zip(self._pieces, self._sums, strict=True):
            size, checksum = size + piece.size, join(checksum, value, piece.size) if size else value
        return size, checksum

    def _claim(self) -> int | None:
        with self._lock:
            if self._begun == len(self._pieces):
                return None
            self._begun += 1
            return self._begun - 1

    def _finish_one(self) -> None:
        with self._lock:
            self._missing -= 1
            if not self._missing:
                self._complete.set()


def write(path: str, buffers: Sequence[memoryview], offer: Callable[[Callable[[], None]], None]) -> tuple[int, int]:
    """Writes the buffers and returns size and CRC-32. `offer` may have the given help run by another thread."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        pieces = cut(buffers)
        if len(pieces) == 1:
            return pieces[0].size, _write_piece(descriptor, pieces[0])
        writing = SharedWriting(descriptor, pieces)
        offer(writing.help)
        return writing.finish()
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


def _write_piece(descriptor: int, piece: FilePiece) -> int:
    """Writes one piece at its place and returns its CRC-32."""
    checksum = 0
    for view in piece.views:
        checksum = crc32(view, checksum)
    views, offset = list(piece.views), piece.offset
    while views:
        written = os.pwritev(descriptor, views[:_MOST_VIEWS], offset)
        offset += written
        done = 0
        while done < len(views) and written >= views[done].nbytes:
            written -= views[done].nbytes
            done += 1
        del views[:done]
        if written:
            views[0] = views[0][written:]
    return checksum


def cut(buffers: Sequence[memoryview]) -> list[FilePiece]:
    """The buffers cut and grouped so that every piece but the last has the same size."""
    total = sum(buffer.nbytes for buffer in buffers)
    if total < _JOIN_BELOW_BYTES:
        buffers = [memoryview(b"".join(buffers))]
    if total <= _PIECE_BYTES:
        return [FilePiece(0, total, list(buffers))]
    groups: list[list[memoryview]] = []
    room = 0
    for buffer in buffers:
        start = 0
        while start < buffer.nbytes:
            if room == 0:
                groups.append([])
                room = _PIECE_BYTES
            view = buffer[start : start + room]
            groups[-1].append(view)
            start += view.nbytes
            room -= view.nbytes
    sizes = [sum(view.nbytes for view in group) for group in groups]
    return [
        FilePiece(number * _PIECE_BYTES, size, group)
        for number, (size, group) in enumerate(zip(sizes, groups, strict=True))
    ]
