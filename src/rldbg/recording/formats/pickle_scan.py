"""A walk over a pickle's opcodes before anything is unpickled: what would exhaust or crash the C unpickler is refused.

The C unpickler trusts memo indices (one opcode can ask for 64 GiB), hashes nested tuples recursively (a deep one as
a dictionary key overflows the stack), and makes any number of objects. The walk keeps a shadow of the
unpickler's stack that holds nothing but nesting depths.

On the way, lists of numbers can be taken out as arrays: the pickle then refers to them by persistent ids that are
integers, and no Python object is ever made for each number.
"""

import struct
from collections.abc import Callable

import numpy as np

from rldbg.recording.formats.malformed import Malformed
from rldbg.recording.formats.number_runs import NUMBER_OPCODES, NumberRuns
from rldbg.recording.formats.shared_lists import shared_lists

_MAX_OPCODES = 1 << 25
_MAX_DEPTH = 500
_MAX_MEMO_SKIP = 4096
_MAX_LONG_INTEGERS = 10_000  # integers beyond 64 bits can be made to collide as keys
_MAX_SETS = 1 << 20
_MIN_ARRAY = 32
_WIDE = {"i": np.int64, "f": np.float64, "b": np.bool_}

_MARK, _APPEND = ord("("), ord("a")
_LEAVES = {b"J": 4, b"K": 1, b"M": 2, b"G": 8, b"N": 0, b"\x88": 0, b"\x89": 0, b"}": 0, b")": 0}
_COUNTED = {
    b"T": "<I",
    b"U": "<B",
    b"X": "<I",
    b"\x8c": "<B",
    b"\x8d": "<Q",
    b"B": "<I",
    b"C": "<B",
    b"\x8e": "<Q",
    b"\x96": "<Q",
}
_PUT_BYTES = {ord("q"): 2, ord("r"): 5, 0x94: 1}

_Handler = Callable[[int], int]


class PickleScan:
    """One walk. Afterwards `pickled` is what to unpickle, `arrays` what its whole-number persistent ids mean, and
    `end` where the pickle ends in the data given."""

    def __init__(self, pickled: bytes, *, take_arrays: bool = False) -> None:
        self.arrays: list[np.ndarray] = []
        self.end = 0
        self._data = pickled
        self._take_arrays = take_arrays
        self._runs = NumberRuns(pickled, decode=take_arrays)
        self._shared = shared_lists() if take_arrays else None
        self._stack: list[int] = []  # nesting depths; below zero, a list taken out: array number -1 - value
        self._marks: list[int] = []
        self._memo: dict[int, int] = {}
        self._long_integers = 0
        self._sets = 0
        self._cuts: list[tuple[int, int, bytes]] = []
        self._cut_of_array: list[int] = []
        self._put_back: set[int] = set()
        self._walk()

    @property
    def pickled(self) -> bytes:
        pieces, position = [], 0
        for number, (start, stop, replacement) in enumerate(self._cuts):
            if number not in self._put_back:
                pieces += [self._data[position:start], replacement]
                position = stop
        return b"".join((*pieces, self._data[position:])) if pieces else self._data

    def _walk(self) -> None:
        data, handlers, position = self._data, self._handlers(), 0
        try:
            for _ in range(_MAX_OPCODES):
                self.end = position + 1
                position = handlers[data[position]](position)
                if position < 0:
                    return
        except (IndexError, struct.error) as error:
            raise Malformed("the pickle ends in the middle, or uses more than it has") from error
        raise Malformed(f"a pickle of more than {_MAX_OPCODES} operations")

    def _handlers(self) -> list[_Handler]:
        table: list[_Handler] = [self._unknown] * 256
        for op, size in _LEAVES.items():
            table[op[0]] = self._leaf(1 + size)
        for op, length in _COUNTED.items():
            table[op[0]] = self._counted(struct.Struct(length))
        for op, pops in ((b"a", 1), (b"s", 2), (b"b", 1)):  # APPEND, SETITEM, BUILD: into what lies below
            table[op[0]] = self._into(pops)
        for op, pops in ((b"\x85", 1), (b"\x86", 2), (b"\x87", 3), (b"R", 2), (b"\x81", 2), (b"\x92", 3), (b"\x93", 2)):
            table[op[0]] = self._combine(pops)
        for code in b"eu\x90":  # APPENDS, SETITEMS, ADDITEMS
            table[code] = self._into_from_mark
        for code in b"tld\x91o":  # TUPLE, LIST, DICT, FROZENSET, OBJ
            table[code] = self._combine_from_mark
        for code in b"FSVP":
            table[code] = self._line
        table[ord("I")] = table[ord("L")] = self._number_line
        table[ord("c")] = self._two_lines
        table[ord("]")] = self._empty_list
        table[_MARK] = self._mark
        table[ord("0")], table[ord("1")], table[ord("2")] = self._pop, self._pop_mark, self._duplicate
        table[ord("p")], table[ord("g")] = self._put_line, self._get_line
        table[ord("q")], table[ord("r")] = self._put_of(struct.Struct("<B")), self._put_of(struct.Struct("<I"))
        table[ord("h")], table[ord("j")] = self._get_of(struct.Struct("<B")), self._get_of(struct.Struct("<I"))
        table[0x94] = self._memoize
        table[ord("i")] = self._instance
        table[ord("Q")] = self._persistent
        table[0x8F] = self._empty_set
        table[0x8A], table[0x8B] = self._long(struct.Struct("<B")), self._long(struct.Struct("<I"))
        table[0x80] = lambda position: position + 2
        table[0x95] = self._frame
        table[ord(".")] = lambda position: -1
        return table

    def _unknown(self, position: int) -> int:
        raise Malformed(f"opcode {self._data[position]:#04x} at byte {position} is not allowed in a dump")

    # Leaves: one more value, nothing nested.

    def _leaf(self, size: int) -> _Handler:
        push = self._stack.append

        def handle(position: int) -> int:
            push(0)
            return position + size

        return handle

    def _counted(self, length: struct.Struct) -> _Handler:
        def handle(position: int) -> int:
            self._stack.append(0)
            return self._skip(position + 1 + length.size, length.unpack_from(self._data, position + 1)[0])

        return handle

    def _long(self, length: struct.Struct) -> _Handler:
        def handle(position: int) -> int:
            size: int = length.unpack_from(self._data, position + 1)[0]
            self._count_long(size > 8)
            self._stack.append(0)
            return self._skip(position + 1 + length.size, size)

        return handle

    def _skip(self, position: int, size: int) -> int:
        if size > len(self._data) - position:
            raise Malformed(f"the pickle claims {size} more bytes at byte {position} than there are")
        return position + size

    def _count_long(self, is_long: bool) -> None:
        self._long_integers += is_long
        if self._long_integers > _MAX_LONG_INTEGERS:
            raise Malformed(f"more than {_MAX_LONG_INTEGERS} integers beyond 64 bits")

    def _end_of_line(self, position: int) -> int:
        end = self._data.find(b"\n", position)
        if end < 0:
            raise Malformed("the pickle ends in the middle of a line")
        return end

    def _line(self, position: int) -> int:
        self._stack.append(0)
        return self._end_of_line(position) + 1

    def _number_line(self, position: int) -> int:
        self._count_long(self._end_of_line(position) - position > 20)
        return self._line(position)

    def _two_lines(self, position: int) -> int:
        return self._line(self._end_of_line(position) + 1)

    def _empty_set(self, position: int) -> int:
        self._sets += 1
        if self._sets > _MAX_SETS:
            raise Malformed(f"more than {_MAX_SETS} sets")
        self._stack.append(0)
        return position + 1

    def _persistent(self, position: int) -> int:
        self._stack[-1] = 0
        return position + 1

    def _frame(self, position: int) -> int:
        self._skip(position + 9, struct.unpack_from("<Q", self._data, position + 1)[0])
        if self._take_arrays:  # frames state lengths, which change when lists are taken out; they are optional
            self._cuts.append((position, position + 9, b""))
        return position + 9

    # The stack.

    def _mark(self, position: int) -> int:
        self._marks.append(len(self._stack))
        return position + 1

    def _since_mark(self) -> list[int]:
        start = self._marks.pop()
        items = self._stack[start:]
        del self._stack[start:]
        return items

    def _pop(self, position: int) -> int:
        if self._marks and self._marks[-1] == len(self._stack):
            self._marks.pop()
        else:
            self._stack.pop()
        return position + 1

    def _pop_mark(self, position: int) -> int:
        self._since_mark()
        return position + 1

    def _duplicate(self, position: int) -> int:
        self._stack.append(self._stack[-1])
        return position + 1

    def _nested(self, items: list[int]) -> int:
        depth = 1 + max(items, default=0)
        if depth > _MAX_DEPTH:
            raise Malformed(f"data nested deeper than {_MAX_DEPTH} levels")
        return max(depth, 1)

    def _combine(self, pops: int) -> _Handler:
        def handle(position: int) -> int:
            if len(self._stack) < pops:
                raise IndexError
            self._stack[-pops:] = [self._nested(self._stack[-pops:])]
            return position + 1

        return handle

    def _combine_from_mark(self, position: int) -> int:
        self._stack.append(self._nested(self._since_mark()))
        return position + 1

    def _instance(self, position: int) -> int:
        self._stack.append(self._nested(self._since_mark()))
        return self._end_of_line(self._end_of_line(position) + 1) + 1

    def _into(self, pops: int) -> _Handler:
        def handle(position: int) -> int:
            self._keep_list(self._stack[-pops - 1])
            del self._stack[-pops:]
            return position + 1

        return handle

    def _into_from_mark(self, position: int) -> int:
        self._since_mark()
        self._keep_list(self._stack[-1])
        return position + 1

    # The memo.

    def _put(self, index: int) -> None:
        if index > len(self._memo) + _MAX_MEMO_SKIP:
            raise Malformed(
                f"the pickle asks for memo entry {index} after {len(self._memo)}: a memory bomb",
                "do not trust this file; no pickler writes such an index",
            )
        self._memo[index] = self._stack[-1]

    def _put_of(self, index: struct.Struct) -> _Handler:
        def handle(position: int) -> int:
            self._put(index.unpack_from(self._data, position + 1)[0])
            return position + 1 + index.size

        return handle

    def _get_of(self, index: struct.Struct) -> _Handler:
        def handle(position: int) -> int:
            self._stack.append(self._memo.get(index.unpack_from(self._data, position + 1)[0], 0))
            return position + 1 + index.size

        return handle

    def _memoize(self, position: int) -> int:
        self._memo[len(self._memo)] = self._stack[-1]
        return position + 1

    def _put_line(self, position: int) -> int:
        end = self._end_of_line(position)
        self._put(int(self._data[position + 1 : min(end, position + 20)]))
        return end + 1

    def _get_line(self, position: int) -> int:
        end = self._end_of_line(position)
        self._stack.append(self._memo.get(int(self._data[position + 1 : min(end, position + 20)]), 0))
        return end + 1

    # Lists of numbers.

    def _empty_list(self, position: int) -> int:
        """A list; when nothing but numbers is appended to it at once, all of that is passed over in one go."""
        self._stack.append(0)
        body = position + 1 + _PUT_BYTES.get(self._data[position + 1], 0)
        end, parts = self._numbers_from(body)
        if not parts:
            return position + 1
        if self._take_arrays and sum(map(len, parts)) >= _MIN_ARRAY and len({part.dtype.kind for part in parts}) == 1:
            self._stack[-1] = -1 - len(self.arrays)
            reference = b"J" + struct.pack("<i", len(self.arrays)) + b"Q" + self._data[position + 1 : body]
            self._cut_of_array.append(len(self._cuts))
            self._cuts.append((position, end, reference))
            self.arrays.append(self._joined(parts, body, end))
        if body > position + 1:  # the memo entry between the list and its numbers
            self._handle_put(position + 1)
        return end

    def _joined(self, parts: list[np.ndarray], start: int, end: int) -> np.ndarray:
        """The numbers of one list in one array, which others may share."""
        wide = _WIDE[parts[0].dtype.kind]
        values = parts[0] if len(parts) == 1 and parts[0].dtype == wide else np.concatenate(parts, dtype=wide)
        if self._shared is not None:
            self._shared.add(self._data[start:end], values)
        return values

    def _handle_put(self, position: int) -> None:
        op = self._data[position]
        if op == 0x94:
            self._memoize(position)
        else:
            self._put(int.from_bytes(self._data[position + 1 : position + _PUT_BYTES[op]], "little"))

    def _numbers_from(self, position: int) -> tuple[int, list[np.ndarray]]:
        """Batches (MARK numbers APPENDS), and a last single number, that follow each other from here."""
        parts: list[np.ndarray] = []
        data = self._data
        if self._shared is not None and (known := self._shared.find(data, position)) is not None:
            position += len(known[0])
            parts.append(known[1])
        while data[position] == _MARK and data[position + 1] in NUMBER_OPCODES:
            run = self._runs.batches(position) or self._runs.at(position + 1)
            if run is None:
                return (position, parts) if not parts else (-1, [])
            parts.append(run.values)
            position = run.end + 1
        last = self._runs.single(position) if parts else None
        return (last.end + 1, [*parts, last.values]) if last is not None else (position, parts)

    def _keep_list(self, target: int) -> None:
        """Something else is put into a list that was taken out: it has to stay a list."""
        if target < 0:
            self._put_back.add(self._cut_of_array[-1 - target])
