"""Anchors that a line break cuts in two: found by putting the ends of neighbouring lines together.

Pasted logs are small, so only logs of a few megabytes are searched this way; in larger ones an anchor has a second
piece elsewhere in the line.
"""

from bisect import bisect_right

from rldbg.doctor.cleaning import clean
from rldbg.doctor.engines import Engine
from rldbg.doctor.sources import Chunk

FOLDED_UP_TO_BYTES = 4 << 20
_EDGE = 40
_SHORTEST_LINE = 48
_PREFIX_STARTS = b"([\x1b{"


def straddling(chunk: Chunk, engine: Engine) -> list[tuple[int, int]]:
    """(place, anchor) of anchors that begin in one line and end in the next."""
    data = chunk.data
    places: list[int] = []
    starts: list[int] = []
    borders: list[int] = []
    pieces: list[bytes | bytearray] = []
    size = 0
    for start, end in _long_lines(data, chunk.begin, chunk.end):
        tail = data[max(start, end - _EDGE) : end].rstrip(b" \r")
        head = _head(data, end + 1)
        for glue in (b"", b" "):
            piece = tail + glue + head
            places.append(end - 1)
            starts.append(size)
            borders.append(size + len(tail))
            pieces.append(piece)
            size += len(piece) + 1
    found = []
    for at, anchor in engine.find(b"\n".join(pieces)) if pieces else ():
        number = bisect_right(starts, at) - 1
        if at < borders[number]:
            found.append((places[number], anchor))
    return found


def _long_lines(data: bytes | bytearray, begin: int, end: int) -> list[tuple[int, int]]:
    """The lines that are long enough to have been wrapped and have another one after them."""
    lines = []
    start = data.rfind(b"\n", 0, begin) + 1
    while (stop := data.find(b"\n", start)) != -1 and start < end:
        if stop - start >= _SHORTEST_LINE and stop + 1 < len(data):
            lines.append((start, stop))
        start = stop + 1
    return lines


def _head(data: bytes | bytearray, start: int) -> bytes | bytearray:
    """The first words of a line, without indentation and without the prefix that a launcher repeats."""
    raw = data[start : start + 200].split(b"\n", 1)[0].lstrip()
    if raw[:1] and raw[:1] in _PREFIX_STARTS:
        raw = clean(raw).text.lstrip().encode()
    return raw[:_EDGE]
