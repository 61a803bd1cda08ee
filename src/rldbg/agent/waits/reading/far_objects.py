"""Objects and frames of another process, read from its memory; see `objects`."""

import struct
from collections.abc import Iterator

from .buffers import BUFFERS, NUMBERS_OF_C, unwritten_bytes
from .layout import FUTURE_STATES
from .memory import ProcessMemory, decoded_line
from .objects import STAND_INS, Frame, Object, Suspended, is_a

_WORD = 8
_MANAGED, _INLINE = 1 << 4, 1 << 2
_INT, _LIST, _TUPLE, _BYTES, _TEXT, _DICT = (1 << bit for bit in range(24, 30))
_BASICSIZE, _BASE, _DICT_OF_TYPE, _DICTOFFSET = 32, 256, 264, 288
_BUFFERED = ("BufferedReader", "BufferedWriter", "BufferedRandom", "BufferedRWPair")
_COROUTINES = ("coroutine", "generator", "async_generator")
_PLACES = {
    ("Task", "_coro"): "task_coroutine",
    ("Task", "_fut_waiter"): "task_waiter",
    ("Task", "_name"): "task_name",
    ("Task", "_loop"): "loop",
    ("Task", "_exception"): "task_exception",
    ("Future", "_loop"): "loop",
    ("Future", "_exception"): "task_exception",
    ("function", "__globals__"): "globals",
    ("function", "__code__"): "code_of_function",
    ("method", "__func__"): "bound_function",
    ("method", "__self__"): "bound_self",
    ("builtin_function_or_method", "__self__"): "bound_in_c",
    ("BaseException", "args"): "exception_arguments",
    ("code", "co_filename"): "code_file",
    ("code", "co_qualname"): "code_name",
}


def object_at(memory: ProcessMemory, address: int) -> "FarObject | None":
    return FarObject(memory, address) if address and address % _WORD == 0 and memory.word(address + 8) else None


def modules_of(memory: ProcessMemory) -> dict[str, Object]:
    """`sys.modules`."""
    found = object_at(memory, memory.word(memory.interpreter() + memory.layout["modules"]))
    return dict(found.items()) if found is not None else {}


class FarObject:
    """An object in another process; see `Object`."""

    __slots__ = ("_address", "_memory", "_type")

    def __init__(self, memory: ProcessMemory, address: int) -> None:
        self._memory = memory
        self._address = address
        self._type = memory.word(address + 8)

    @property
    def address(self) -> int:
        return self._address

    @property
    def kind(self) -> str:
        return self._memory.type_facts(self._type)[0]

    @property
    def _flags(self) -> int:
        return self._memory.type_facts(self._type)[1]

    def bases(self) -> tuple[str, ...]:
        return tuple(self._memory.type_facts(each)[0] for each in self._type_chain(self._type))

    def _type_chain(self, address: int) -> Iterator[int]:
        for _ in range(50):
            if not address:
                return
            yield address
            address = self._memory.word(address + _BASE)

    def get(self, name: str) -> "FarObject | None":
        place = next((_PLACES[base, name] for base in self.bases() if (base, name) in _PLACES), None)
        # Futures of threads are written in Python, and keep these as attributes.
        own = self.attributes().get(name) if place is None or is_a(self, "Future") else None
        if own is not None:
            return own  # type: ignore[return-value]
        if place is not None:
            return self._at(self._memory.layout[place])
        start = self._address if self.kind == "type" else self._type
        for each in self._type_chain(start):
            table = object_at(self._memory, self._memory.word(each + _DICT_OF_TYPE))
            found = dict(table.items()).get(name) if table is not None else None
            if isinstance(found, FarObject):
                return self._bound(found)
        return None

    def _bound(self, found: "FarObject") -> "FarObject | None":
        """An attribute of the class; a slot leads to the value in the instance, and what C computes is unknown."""
        if found.kind == "member_descriptor":
            return self._at(self._memory.word(self._memory.word(found.address + 40) + 16))
        return None if found.kind == "getset_descriptor" else found

    def _at(self, offset: int) -> "FarObject | None":
        return object_at(self._memory, self._memory.word(self._address + offset))

    def attributes(self) -> dict[str, Object]:
        memory, flags = self._memory, self._flags
        if self.kind == "module":
            table = self._at(16)
        elif flags & _MANAGED:
            table, keys, values = self._managed()
            if table is None and values:
                return self._named(memory.keyed(keys, values))
        else:
            offset = memory.word(self._type + _DICTOFFSET)
            table = self._at(offset) if 0 < offset < 1 << 16 else None
        return dict(table.items()) if table is not None and table.kind == "dict" else {}

    def _managed(self) -> "tuple[FarObject | None, int, int]":
        """The dictionary of an instance, or the shared names of its class and its own values."""
        memory, before = self._memory, self._memory.word(self._address - 24)
        keys = memory.word(self._type + memory.layout["cached_keys"])
        if memory.minor == 11:
            values = memory.word(self._address - 32)
            return (None, keys, values) if values else (object_at(memory, before), 0, 0)
        if memory.minor == 12:
            return (None, keys, before + 1) if before & 1 else (object_at(memory, before), 0, 0)
        if before or not self._flags & _INLINE:
            return object_at(memory, before), 0, 0
        return None, keys, self._address + memory.word(self._type + _BASICSIZE) + _WORD

    def _named(self, pairs: Iterator[tuple[int, int]]) -> dict[str, Object]:
        found: dict[str, Object] = {}
        for key, value in pairs:
            name, each = object_at(self._memory, key), object_at(self._memory, value)
            if name is not None and each is not None:
                found[name.text() or str(name.number() or "")] = each
        return found

    def _table(self) -> Iterator[tuple[int, int]]:
        """The pointers of a dictionary."""
        keys, values = self._memory.words(self._address + 32, 2)[:2] if self._flags & _DICT else (0, 0)
        if values and self._memory.minor >= 13:
            values += _WORD
        return self._memory.keyed(keys, values) if keys else iter(())

    def items(self) -> list[tuple[str, Object]]:
        if self._address not in self._memory.tables:
            self._memory.tables[self._address] = self._named(self._table())
        return list(self._memory.tables[self._address].items())

    def pairs(self) -> list[tuple[Object, Object]]:
        found = ((object_at(self._memory, key), object_at(self._memory, value)) for key, value in self._table())
        return [(key, value) for key, value in found if key is not None and value is not None]

    def elements(self) -> list[Object]:
        memory, flags, size = self._memory, self._flags, self.length() or 0
        if flags & _TUPLE:
            pointers = memory.words(self._address + memory.layout["tuple"], size)
        elif flags & _LIST:
            pointers = memory.words(memory.word(self._address + 24), size)
        elif self.kind in ("set", "frozenset"):
            slots = memory.word(self._address + 32) + 1
            pointers = memory.words(memory.word(self._address + 40), slots * 2)[::2]
        elif self.kind == "deque":
            pointers = tuple(self._deque(size))
        else:
            pointers = tuple(value for _, value in self._table())
        found = (object_at(memory, each) for each in pointers)
        return [each for each in found if each is not None]

    def _deque(self, size: int) -> Iterator[int]:
        memory = self._memory
        block, _, index = memory.words(self._address + 24, 3) or (0, 0, 0)
        for _ in range(min(size, 20_000)):
            if index == 64:
                block, index = memory.word(block + _WORD * 65), 0
            yield memory.word(block + _WORD * (1 + index))
            index += 1

    def length(self) -> int | None:
        if self._flags & (_LIST | _TUPLE | _BYTES | _DICT) or self.kind == "deque":
            return self._memory.word(self._address + 16)
        return self._memory.word(self._address + 24) if self.kind in ("set", "frozenset") else None

    def text(self) -> str | None:
        if self._flags & _BYTES:
            data = self._memory.read(self._address + self._memory.layout["bytes"], min(self.length() or 0, 4000))
            return data.decode("utf-8", "replace")
        if not self._flags & _TEXT:
            return None
        size, state = self._memory.word(self._address + 16), self._memory.read(self._address + 32, 1)
        # Compact text of ASCII letters: names are.
        if not state or not state[0] & 0x40:
            return None
        return self._memory.read(self._address + self._memory.layout["text"], min(size, 4000)).decode(
            "ascii", "replace"
        )

    def state(self) -> str:
        """That of a future; those in C keep it as a number."""
        own = self.attributes().get("_state")
        if own is not None or not is_a(self, "Future", "Task"):
            return (own.text() if own is not None else None) or ""
        number = int.from_bytes(self._memory.read(self._address + self._memory.layout["future_state"], 4), "little")
        return FUTURE_STATES[number] if number < len(FUTURE_STATES) else ""

    def descriptor(self) -> int | None:
        if "socket" in self.bases() or self.kind == "FileIO":
            return int.from_bytes(self.raw(20)[16:], "little", signed=True)
        # A file of text has one of bytes, and that the open file itself.
        inner = self._at(32) if self.kind == "TextIOWrapper" else self._at(16) if self.kind in _BUFFERED else None
        if inner is not None and inner.kind == "SocketIO":
            inner = inner.attributes().get("_sock")  # type: ignore[assignment]
        return inner.descriptor() if inner is not None else None

    def unwritten(self) -> int:
        """How many bytes were written into an open file and are still in its buffer."""
        memory = self._memory
        if self.kind not in BUFFERS:
            return 0
        return unwritten_bytes(self._address, lambda at: FarObject(memory, at).kind, memory.word, memory.layout)

    def raw(self, size: int) -> bytes:
        """Its first bytes, for what a library in C keeps in them."""
        return self._memory.read(self._address, size)

    def number(self) -> int | None:
        if not self._flags & _INT:
            found = self._number_of_c()
            return int(found) if isinstance(found, int) else None
        size = self._memory.word(self._address + 16)
        digits = self._memory.read(self._address + 24, 12)
        if self._memory.minor == 11:
            signed = size - (1 << 64) if size >> 63 else size
            count, negative = abs(signed), signed < 0
        else:
            count, negative = size >> 3, size & 3 == 2
        parts = struct.unpack("<3I", digits) if len(digits) == 12 else (0, 0, 0)
        value: int = sum(part << 30 * at for at, part in enumerate(parts[: min(count, 3)]))
        return -value if negative else value

    def real(self) -> float | None:
        if self.kind != "float":
            found = self._number_of_c()
            return float(found) if found is not None else self.number()
        data = self._memory.read(self._address + 16, 8)
        return float(struct.unpack("<d", data)[0]) if len(data) == 8 else None

    def _number_of_c(self) -> float | int | None:
        """That of ctypes: a pointer to it comes first."""
        form = NUMBERS_OF_C.get(self.kind) if "_SimpleCData" in self.bases() else None
        data = self._memory.read(self._memory.word(self._address + 16), struct.calcsize(form)) if form else b""
        return struct.unpack(form, data)[0] if form and data else None

    def owner(self) -> int | None:
        if self.kind != "RLock":
            return None
        return self._memory.word(self._address + self._memory.layout["lock_owner"]) or None

    def shared_name(self) -> str:
        """What processes that share a semaphore have in common: its name, the last thing in it, or its place."""
        if self.kind != "SemLock" or "object" not in self.bases()[1:2]:
            return ""
        place = self._memory.word(self._type + _BASICSIZE) - _WORD
        name = self._memory.read(self._memory.word(self._address + place), 100).partition(b"\0")[0]
        return name.decode("ascii", "replace") or f"{self._memory.word(self._address + 16):#x}"

    def permits(self) -> int | None:
        """The value that the C library keeps first in a semaphore."""
        if self.kind != "SemLock" or "object" not in self.bases()[1:2]:
            return None
        return int.from_bytes(self._memory.read(self._memory.word(self._address + 16), 4), "little")

    def referent(self) -> "Object | None":
        """What a weak reference refers to: it is the first thing in it."""
        return self._at(16) if "weakref" in self.kind or "ReferenceType" in self.bases() else None

    def suspended(self) -> Suspended | None:
        if self.kind in STAND_INS:
            return Suspended(None, self._at(16))
        if self.kind not in _COROUTINES:
            return None
        layout = self._memory.layout
        frame = FarFrame(self._memory, self._address + layout["frame_code"] - layout["frame_start"])
        return Suspended(frame, frame.top()) if frame.file else self._compiled()

    def _compiled(self) -> Suspended | None:
        """A coroutine that was compiled to C: among the first things it holds is what it awaits."""
        for word in self._memory.words(self._address + 24, 12):
            held = object_at(self._memory, word)
            if held is not None and held.kind in (*_COROUTINES, "FutureIter", "coroutine_wrapper", "Task", "Future"):
                return Suspended(None, held)
        return None

    def raised_in(self) -> list[Frame]:
        """The frames of an exception, innermost first."""
        found: list[Frame] = []
        layout, memory = self._memory.layout, self._memory
        trace = self._at(layout["traceback"]) if "BaseException" in self.bases() else None
        while trace is not None and trace.kind == "traceback" and len(found) < 500:
            # A traceback begins with the next one, its frame object, and the instruction at which it was left.
            following, frame = memory.words(trace.address + 16, 2)
            last = int.from_bytes(memory.read(trace.address + 32, 4), "little")
            place = FarFrame(memory, memory.word(frame + 24), last)
            if place.file:
                found.append(place)
            trace = object_at(memory, following)
        return found[::-1]

    def line_at(self, code: int, offset: int) -> int:
        layout, memory = self._memory.layout, self._memory
        first = int.from_bytes(memory.read(code + layout["code_first_line"], 4), "little")
        table = memory.word(code + layout["code_lines"])
        data = memory.read(table + layout["bytes"], memory.word(table + 16))
        return decoded_line(data, first, offset)


class FarFrame:
    """A frame of another process, with its variables."""

    def __init__(self, memory: ProcessMemory, address: int, instruction_at: int | None = None) -> None:
        layout = memory.layout
        self._memory = memory
        self._begin = address + layout["frame_start"] - layout["frame_code"]
        code = object_at(memory, memory.word(address + layout["frame_start"]))
        self.file = self.function = ""
        self.line = 0
        self._code = code.address if code is not None and code.kind == "code" else 0
        if not self._code or code is None:
            return
        file, function = code.get("co_filename"), code.get("co_qualname")
        self.file = (file.text() if file else "") or ""
        self.function = (function.text() if function else "") or ""
        # The trampolines of the interpreter itself have a name in angle brackets for their file.
        if self.file.startswith("<") and "trampoline" in self.file + self.function:
            self.file = ""
        offset = memory.word(self._begin + layout["instruction"]) - code.address - layout["code_bytes"]
        self.line = code.line_at(code.address, offset if instruction_at is None else instruction_at)

    def locals(self) -> dict[str, Object]:
        memory, layout = self._memory, self._memory.layout
        names = object_at(memory, memory.word(self._code + layout["names"]))
        wanted = [each.text() or "" for each in names.elements()] if names is not None else []
        found: dict[str, Object] = {}
        for name, address in zip(wanted, memory.words(self._begin + layout["frame_locals"], len(wanted)), strict=False):
            value = object_at(memory, address)
            if value is not None and value.kind == "cell":
                value = object_at(memory, memory.word(value.address + 16))
            if value is not None and name:
                found[name] = value
        return found

    def top(self) -> Object | None:
        """What a suspended frame awaits: the last thing on its stack."""
        memory, layout = self._memory, self._memory.layout
        top = int.from_bytes(memory.read(self._begin + layout["instruction"] + 8, 4), "little")
        return (
            object_at(memory, memory.word(self._begin + layout["frame_locals"] + 8 * (top - 1)))
            if 0 < top < 10_000
            else None
        )

    def variable(self, name: str) -> Object | None:
        """A local variable or one of the enclosing function, else a global one."""
        own = self.locals().get(name)
        if own is not None:
            return own
        table = object_at(self._memory, self._memory.word(self._begin + self._memory.layout["frame_globals"]))
        return dict(table.items()).get(name) if table is not None else None
