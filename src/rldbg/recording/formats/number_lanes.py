"""Runs of number opcodes of different widths, stepped through side by side: one opcode of each run at a time.

Where an opcode starts depends on all opcodes before it, so one run cannot be read by numpy; two thousand can. Their
starts are guessed from bytes that look like MARK and a number, behind a new list or the batch before. A wrong guess
only wastes a lane, because the reader of the pickle asks only for runs that it reaches by itself.
"""

import numpy as np

MIXABLE = frozenset(b"KMJG")

_MARK, _APPENDS, _EMPTY_LIST, _MEMOIZE = ord("("), ord("e"), ord("]"), 0x94
_BINPUT, _LONG_BINPUT = ord("q"), ord("r")
_BATCH = 1000  # CPython's pickler writes lists in batches of this many items
_LANES = 1000  # rows of a power of two fall into the same lines of the cache when they are transposed
_GUESSES = 8 * _LANES
_GLANCE = 12
_CHECK_EVERY = 32
_WIDEST = 9
_MARGIN = 16  # runs that end this close to the end of the pickle are left to others; reads need not be guarded then

_WIDTHS = {ord("K"): 2, ord("M"): 3, ord("J"): 5, ord("G"): _WIDEST}
_WIDTH_TABLE = bytes(_WIDTHS.get(op, 0) for op in range(256))
_OPERAND_BITS = np.array([0, 0, 0xFF, 0xFFFF, 0, -1, 0, 0, 0, 0], np.int32)  # by width, of the four bytes after it


def _run_starts(data: np.ndarray, width: np.ndarray) -> np.ndarray:
    """Where a run may start: a number after the MARK that follows an empty list, its memo or the end of a batch."""
    marks = np.flatnonzero(data[:-1] == _MARK)
    marks = marks[width.take(marks + 1) > 0]
    before = data.take(marks - 1, mode="clip")
    is_start = (before == _APPENDS) | (before == _EMPTY_LIST) | (before == _MEMOIZE)
    for distance, put in ((2, _BINPUT), (5, _LONG_BINPUT)):
        is_start |= data.take(marks - distance, mode="clip") == put
    starts: np.ndarray = marks[is_start] + 1
    return starts


class NumberLanes:
    """The mixed runs of one pickle, asked for in the order in which they lie there."""

    def __init__(self, pickled: bytes, *, decode: bool) -> None:
        self._pickled = pickled
        self._decode = decode
        self._data = np.frombuffer(pickled, np.uint8)
        self._width = np.empty(0, np.uint8)
        self._guesses = np.empty(0, np.intp)
        self._block: dict[int, tuple[np.ndarray, int]] = {}

    def known(self, start: int) -> tuple[np.ndarray, int] | None:
        """Like `at`, for a run that was read together with an earlier one."""
        return self._block.get(start)

    def at(self, start: int) -> tuple[np.ndarray, int] | None:
        """Values (int32, or float64 where there is any float) and end of the run that starts here."""
        if not len(self._width):
            self._width = np.frombuffer(self._pickled.translate(_WIDTH_TABLE), np.uint8)
            self._guesses = _run_starts(self._data, self._width)
        found = self._block.get(start)
        if found is None:
            ahead = {first: run for first, run in self._block.items() if first > start}
            self._block = ahead | self._step_block(start)
            found = self._block.get(start)
        return found

    def _step_block(self, start: int) -> dict[int, tuple[np.ndarray, int]]:
        """The runs from here on, as many as fit one block of lanes."""
        first = int(np.searchsorted(self._guesses, start, "right"))
        position = self._chosen(np.append(np.intp(start), self._guesses[first : first + _GUESSES]))
        # Half the memory to move where a place fits four bytes.
        trail = np.empty((_BATCH + 1, len(position)), np.int32 if len(self._data) < 1 << 31 else np.intp)
        last = _BATCH
        for step in range(_BATCH):
            trail[step] = position
            position = position + self._width.take(position, mode="clip")
            if step % _CHECK_EVERY == 0 and np.array_equal(position, trail[step]):
                last = step
                break
        trail[last] = position
        return self._runs_of(trail[: last + 1])

    def _chosen(self, guesses: np.ndarray) -> np.ndarray:
        """The first guess, which was asked for, and similar ones that look like complete runs.

        Most runs of one width need no lane, so that lanes go to runs as varied as the first; where it begins with
        one width only (zeros for a prompt, then floats), to those that begin with the same.
        """
        width = self._width
        position = guesses.copy()
        is_varied = np.zeros(len(guesses), bool)
        first_width = width.take(guesses)
        for _ in range(_GLANCE):
            step = width.take(position, mode="clip")
            is_varied |= (step != first_width) & (step > 0)
            position += step
        is_run = (width.take(position, mode="clip") > 0) | (self._data.take(position, mode="clip") == _APPENDS)
        is_run &= is_varied if is_varied[0] else ~is_varied & (first_width == first_width[0])
        is_run[0] = True
        chosen: np.ndarray = guesses[is_run][:_LANES]
        return chosen

    def _runs_of(self, trail: np.ndarray) -> dict[int, tuple[np.ndarray, int]]:
        """The lanes that ended at APPENDS: start to values and end."""
        ends = trail[-1]
        is_whole = (ends < len(self._data) - _MARGIN) & (self._data.take(ends, mode="clip") == _APPENDS)
        if not self._decode:
            nothing = np.empty(0)
            return {first: (nothing, end) for first, end in trail[[0, -1]][:, is_whole].T.tolist()}
        places = np.ascontiguousarray(trail[:, is_whole].T)  # one row per run
        widths = np.diff(places, axis=1).astype(np.uint8)
        operands: np.ndarray = np.ndarray((len(self._data) - 4,), "<i4", self._pickled, 1, (1,))
        values = operands[places[:, :-1]] & _OPERAND_BITS.take(widths)
        counts = np.count_nonzero(widths, axis=1).tolist()
        has_floats = (widths == _WIDEST).any(axis=1).tolist()
        runs = {}
        for row, (first, end) in enumerate(places[:, [0, -1]].tolist()):
            numbers = values[row, : counts[row]]
            if has_floats[row]:
                numbers = self._with_floats(numbers, places[row, : counts[row]], widths[row, : counts[row]])
            runs[first] = (numbers, end)
        return runs

    def _with_floats(self, numbers: np.ndarray, places: np.ndarray, widths: np.ndarray) -> np.ndarray:
        result = numbers.astype(np.float64)
        is_float = widths == _WIDEST
        operands: np.ndarray = np.ndarray((len(self._data) - 8,), ">f8", self._pickled, 1, (1,))
        result[is_float] = operands[places[is_float]]
        return result
