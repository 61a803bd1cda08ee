"""Objects as the analysis of waits sees them: types, attributes and elements, without running any code of theirs.

They live in this process (`OwnObject`) or in the memory of another one (`far_objects.FarObject`)."""

import gc
import inspect
import io
import socket
import types
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from .buffers import BUFFERS, NUMBERS_OF_C, own_kind, own_word, own_writer, unwritten_bytes
from .layout import measured_buffers

_SEQUENCES: tuple[Any, ...] = (list, tuple, set, frozenset, deque)
_AWAITED = ("coroutine", "coroutine_wrapper", "generator", "async_generator", "FutureIter", "Task", "Future")
# What stands for a coroutine or an asynchronous generator while it is awaited; the first thing in it is the other.
STAND_INS = ("coroutine_wrapper", "async_generator_asend", "async_generator_athrow", "anext_awaitable")
_WRAPPING = (io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.BufferedRWPair)
# What is at the bottom of an open file or connection; anything else there may be the user's.
_OPENED = (io.FileIO, socket.SocketIO)
_PLAIN = (types.MemberDescriptorType, types.GetSetDescriptorType)


class Object(Protocol):
    """`address` identifies it in its process; what cannot be read is None or empty."""

    @property
    def address(self) -> int: ...
    @property
    def kind(self) -> str: ...
    def bases(self) -> tuple[str, ...]: ...
    def get(self, name: str) -> "Object | None": ...
    def attributes(self) -> "dict[str, Object]": ...
    def items(self) -> "list[tuple[str, Object]]": ...
    def pairs(self) -> "list[tuple[Object, Object]]": ...
    def elements(self) -> "list[Object]": ...
    def length(self) -> int | None: ...
    def text(self) -> str | None: ...
    def number(self) -> int | None: ...
    def real(self) -> float | None: ...
    def owner(self) -> int | None: ...
    def descriptor(self) -> int | None: ...
    def unwritten(self) -> int: ...
    def shared_name(self) -> str: ...
    def permits(self) -> int | None: ...
    def referent(self) -> "Object | None": ...
    def state(self) -> str: ...
    def suspended(self) -> "Suspended | None": ...
    def raised_in(self) -> "list[Frame]": ...


class Frame(Protocol):
    """A place in running code and its variables."""

    file: str
    line: int
    function: str

    def locals(self) -> dict[str, Object]: ...
    def variable(self, name: str) -> Object | None: ...


@dataclass(frozen=True)
class Suspended:
    """A coroutine or generator that waits: where (None for compiled ones), and what it awaits."""

    frame: Frame | None
    awaits: Object | None


class OwnFrame:
    """A frame of this process."""

    def __init__(self, frame: types.FrameType, line: int | None = None) -> None:
        self._frame = frame
        self.file = frame.f_code.co_filename
        self.line = line or frame.f_lineno or 0
        self.function = frame.f_code.co_qualname

    def locals(self) -> dict[str, Object]:
        if self._frame.f_locals is self._frame.f_globals:
            return {}
        return {name: OwnObject(value) for name, value in list(self._frame.f_locals.items())}

    def variable(self, name: str) -> Object | None:
        for names in (self._frame.f_locals, self._frame.f_globals):
            if name in names:
                return OwnObject(names[name])
        return None


def is_a(value: Object | None, *names: str) -> bool:
    return value is not None and any(name in names for name in value.bases())


def quoted(value: Object, most: int) -> str | None:
    """The beginning of a text as Python prints it; of bytes that are no text, that they are; None for anything else."""
    text = value.text()
    if text is None:
        return None
    if is_a(value, "bytes") and not text[:most].isprintable():
        return "bytes"
    return f"{'b' * is_a(value, 'bytes')}{text[:most]!r}"


class OwnObject:
    """An object of this process. Properties and other code of the user are never run."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    @property
    def address(self) -> int:
        return id(self.value)

    @property
    def kind(self) -> str:
        return type(self.value).__name__

    def bases(self) -> tuple[str, ...]:
        return tuple(each.__name__ for each in type(self.value).__mro__)

    def get(self, name: str) -> "OwnObject | None":
        try:
            found = inspect.getattr_static(self.value, name)
            if isinstance(found, _PLAIN):
                found = found.__get__(self.value, type(self.value))
        except (AttributeError, TypeError, ValueError, RuntimeError):
            # Futures expose their attributes only through their own lookup, which runs no user code.
            if not type(self.value).__module__.startswith(("asyncio", "_asyncio")):
                return None
            found = self.value.get_name() if name == "_name" else getattr(self.value, name, None)
            return OwnObject(found) if found is not None else None
        return OwnObject(found)

    def attributes(self) -> "dict[str, Object]":
        try:
            found = object.__getattribute__(self.value, "__dict__")
        except AttributeError:
            return {}
        return {str(name): OwnObject(value) for name, value in list(found.items())} if type(found) is dict else {}

    def items(self) -> "list[tuple[str, Object]]":
        if not isinstance(self.value, dict):
            return []
        return [(str(k) if isinstance(k, (str, int)) else "", OwnObject(v)) for k, v in list(dict.items(self.value))]

    def pairs(self) -> "list[tuple[Object, Object]]":
        if not isinstance(self.value, dict):
            return []
        return [(OwnObject(key), OwnObject(value)) for key, value in list(dict.items(self.value))]

    def elements(self) -> "list[Object]":
        for plain in _SEQUENCES:
            if isinstance(self.value, plain):
                return [OwnObject(each) for each in list(plain.__iter__(self.value))]
        return [value for _, value in self.items()]

    def length(self) -> int | None:
        for plain in (*_SEQUENCES, dict):
            if isinstance(self.value, plain):
                return int(plain.__len__(self.value))
        return self.value.qsize() if type(self.value).__name__ == "SimpleQueue" else None

    def text(self) -> str | None:
        if isinstance(self.value, bytes):
            return bytes.decode(self.value, "utf-8", "replace")
        return str.__str__(self.value) if isinstance(self.value, str) else None

    def number(self) -> int | None:
        plain = self._plain()
        return int(plain) if isinstance(plain, int) else None

    def real(self) -> float | None:
        plain = self._plain()
        return float(plain) if isinstance(plain, int | float) else None

    def _plain(self) -> Any:
        """Of a number in C, what it is."""
        kind = type(self.value)
        return self.value.value if kind.__module__ == "ctypes" and kind.__name__ in NUMBERS_OF_C else self.value

    def owner(self) -> int | None:
        """The thread that holds a reentrant lock; only its text tells."""
        text = repr(self.value) if type(self.value).__name__ == "RLock" else ""
        _, found, rest = text.partition("owner=")
        return int(rest.split()[0]) if found else None

    def descriptor(self) -> int | None:
        """That of an open socket or file."""
        if isinstance(self.value, socket.socket):
            return socket.socket.fileno(self.value)
        inner = self.value
        try:
            while type(inner) in _WRAPPING:
                if type(inner) is io.BufferedRWPair:
                    # It does not say which connection it reads and writes.
                    inner = own_writer(inner)
                else:
                    inner = inner.buffer if type(inner) is io.TextIOWrapper else inner.raw
            return int(inner.fileno()) if type(inner) in _OPENED else None
        except (AttributeError, OSError, ValueError):
            # It is closed or detached.
            return None

    def unwritten(self) -> int:
        """How many bytes were written into an open file and are still in its buffer."""
        own = type(self.value).__module__ == "_io" and self.kind in BUFFERS
        return unwritten_bytes(id(self.value), own_kind, own_word, measured_buffers()) if own else 0

    def shared_name(self) -> str:
        """What processes that share a semaphore have in common: its name, or where they inherited it; else empty."""
        return str(self.value.name or f"{self.value.handle:#x}") if type(self.value).__name__ == "SemLock" else ""

    def permits(self) -> int | None:
        """How often a semaphore of multiprocessing can be taken now; None for anything else."""
        return int(self.value._get_value()) if type(self.value).__name__ == "SemLock" else None

    def referent(self) -> "Object | None":
        found = self.value() if isinstance(self.value, weakref.ref) else None
        return OwnObject(found) if found is not None else None

    def state(self) -> str:
        """PENDING, CANCELLED or FINISHED for a future or task; else empty."""
        found = self.get("_state")
        return (found.text() if found is not None else None) or ""

    def suspended(self) -> Suspended | None:
        value = self.value
        if isinstance(value, types.CoroutineType):
            frame, awaits = value.cr_frame, value.cr_await
        elif isinstance(value, types.GeneratorType):
            frame, awaits = value.gi_frame, value.gi_yieldfrom
        elif isinstance(value, types.AsyncGeneratorType):
            frame, awaits = value.ag_frame, value.ag_await
        elif type(value).__name__.startswith(STAND_INS) or "coroutine" in type(value).__name__:
            return self._compiled()
        else:
            return None
        if frame is None:
            return None
        return Suspended(OwnFrame(frame), OwnObject(awaits) if awaits is not None else None)

    def _compiled(self) -> Suspended | None:
        """A coroutine that was compiled to C, or what stands for it while it is awaited."""
        held = [getattr(self.value, "cr_await", None), *gc.get_referents(self.value)]
        awaited = [each for each in held if type(each).__name__ in _AWAITED]
        return Suspended(None, OwnObject(awaited[0])) if awaited else None

    def raised_in(self) -> "list[Frame]":
        """The frames of an exception, innermost first."""
        found: list[Frame] = []
        trace = self.value.__traceback__ if isinstance(self.value, BaseException) else None
        while trace is not None:
            found.append(OwnFrame(trace.tb_frame, trace.tb_lineno))
            trace = trace.tb_next
        return found[::-1]


def called_on(function: Object | None) -> Object | None:
    """The object whose method a function in C is."""
    return function.get("__self__") if is_a(function, "builtin_function_or_method") and function is not None else None


def exception_text(error: Object) -> str:
    """Type and first argument; of an error of the system, its number and what it means. Nothing of it is run."""
    arguments = error.get("args")
    given = arguments.elements()[:2] if arguments is not None else []
    first = given[0] if given else None
    plain = (first.text() if first.text() is not None else first.number()) if first is not None else None
    if is_a(error, "OSError") and isinstance(plain, int) and len(given) > 1 and (text := given[1].text()):
        plain = f"[Errno {plain}] {text}"
    return error.kind if plain in (None, "") else f"{error.kind}: {plain}"


def path_text(value: Object) -> str:
    """A path of `pathlib`, which keeps its parts; empty for anything else."""
    if not is_a(value, "PurePath"):
        return ""
    parts = next((found for name in ("_raw_paths", "_parts") if (found := value.get(name)) is not None), None)
    texts = [text for each in (parts.elements() if parts is not None else []) if (text := each.text())]
    return "/".join(texts).replace("//", "/", 1)


def chain_of(coroutine: Object | None) -> Iterator[Suspended]:
    """A coroutine and what it awaits, outermost first, as far as these are coroutines."""
    for _ in range(100):
        step = coroutine.suspended() if coroutine is not None else None
        if step is None:
            return
        yield step
        coroutine = step.awaits
