"""Finding many literal texts in raw bytes in one pass: hyperscan where it is installed, numpy everywhere.

Both answer the same question with the same answer: every place where an anchor begins, in order.
"""

import importlib.util
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np

from rldbg.core import PrerequisiteError
from rldbg.doctor.search.anchors import SHORTEST

EngineName = Literal["auto", "hyperscan", "numpy"]


class Engine(Protocol):
    """Finds anchors. `find` gives (start, anchor index) pairs in the order of the text.

    Only anchors that lie between `begin` and `end` are found; places count from the beginning of the text.
    """

    name: str

    def find(self, text: bytes | bytearray, begin: int = 0, end: int | None = None) -> list[tuple[int, int]]: ...


def engine_for(anchors: Sequence[bytes], name: EngineName = "auto") -> Engine:
    """The fastest engine there is, or the one asked for."""
    available = importlib.util.find_spec("hyperscan") is not None
    if name == "numpy" or (name == "auto" and not available):
        return GramEngine(anchors)
    if not available:
        raise PrerequisiteError("hyperscan is not installed", "pip install hyperscan, or use --engine numpy")
    return HyperscanEngine(anchors)


class HyperscanEngine:
    """All anchors as one hyperscan database."""

    name = "hyperscan"

    def __init__(self, anchors: Sequence[bytes]) -> None:
        import hyperscan

        self._lengths = [len(anchor) for anchor in anchors]
        self._database: Any = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        self._database.compile(
            expressions=[_escaped(anchor) for anchor in anchors],
            ids=list(range(len(anchors))),
            flags=[hyperscan.HS_FLAG_DOTALL] * len(anchors),
        )

    def find(self, text: bytes | bytearray, begin: int = 0, end: int | None = None) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        lengths = self._lengths

        def note(index: int, _start: int, stop: int, _flags: int, _context: Any) -> None:
            found.append((begin + stop - lengths[index], index))

        with memoryview(text) as whole, whole[begin:end] as part:
            self._database.scan(part, match_event_handler=note)
        found.sort()
        return found


def _escaped(anchor: bytes) -> bytes:
    r"""Every byte as \xNN, so that nothing in an anchor has a meaning."""
    return b"".join(b"\\x%02x" % byte for byte in anchor)


class GramEngine:
    """Eight-byte windows of the text, hashed into a small table of the anchors' rarest windows, then compared.

    Only the few positions the table lets through are looked at one by one.
    """

    name = "numpy"
    _BITS = 14
    _FACTOR = np.uint64(0x9E3779B97F4A7C15)
    _SHIFT = np.uint64(64 - _BITS)

    def __init__(self, anchors: Sequence[bytes]) -> None:
        self._lengths = [len(anchor) for anchor in anchors]
        self._by_gram: dict[int, list[tuple[bytes, int, int]]] = {}
        for index, anchor in enumerate(anchors):
            offset = _rarest_window(anchor)
            gram = int.from_bytes(anchor[offset : offset + SHORTEST], "little")
            self._by_gram.setdefault(gram, []).append((anchor, offset, index))
        self._grams = np.array(sorted(self._by_gram), dtype=np.uint64)
        self._table = np.zeros(1 << self._BITS, dtype=bool)
        self._table[((self._grams * self._FACTOR) >> self._SHIFT).astype(np.int64)] = True

    def find(self, text: bytes | bytearray, begin: int = 0, end: int | None = None) -> list[tuple[int, int]]:
        end = len(text) if end is None else min(end, len(text))
        view = np.frombuffer(text, dtype=np.uint8)[begin:end]
        found: list[tuple[int, int]] = []
        for alignment in range(SHORTEST):
            count = (len(view) - alignment) // SHORTEST
            if count <= 0:
                continue
            windows = view[alignment : alignment + count * SHORTEST].view(np.uint64)
            slots = (windows * self._FACTOR) >> self._SHIFT
            passed = np.flatnonzero(self._table[slots.view(np.int64)])
            passed = passed[np.isin(windows[passed], self._grams)]
            for place, gram in zip(passed.tolist(), windows[passed].tolist(), strict=True):
                self._compare(text, begin + place * SHORTEST + alignment, gram, found)
        found = [(start, index) for start, index in found if begin <= start <= end - self._lengths[index]]
        found.sort()
        return found

    def _compare(self, text: bytes | bytearray, at: int, gram: int, found: list[tuple[int, int]]) -> None:
        for anchor, offset, index in self._by_gram[gram]:
            start = at - offset
            if start >= 0 and text.startswith(anchor, start):
                found.append((start, index))


def _rarest_window(anchor: bytes) -> int:
    """Where the eight bytes begin that are least like ordinary words: capitals, digits and signs count as rare."""
    return max(
        range(len(anchor) - SHORTEST + 1),
        key=lambda offset: sum(not (97 <= byte <= 122 or byte == 32) for byte in anchor[offset : offset + SHORTEST]),
    )
