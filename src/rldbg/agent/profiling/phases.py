"""The phases of a process over time: one line per phase, in one file per process, readable after any kind of crash.

    {"worker": ..., "role": ..., "rank": ..., "host": ..., "pid": ...,     who; again when that changes
     "before_steps": -1}                                                   the step of phases before the first one
    {"clock": {"offset_ns": ..., "round_trip_ns": ...}}                    this host's clock against the broker's
    [phase, start_ns, duration_ns, step, thread, memory, cpu]              wall clock of this host

`memory` is entry, peak and exit of host memory, then of GPU memory, in KiB, then what malloc has in use at entry and
exit, in KiB, and the number of Python's blocks (both only where they are known); `cpu` the processor time of the
process at both ends, in ns. A phase costs two readings of clocks and memory, and one write. Phases are also marked in
a torch profile that is being taken and, under nsys, as NVTX ranges.
"""

import contextlib
import functools
import inspect
import itertools
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from .memory import SLEEPS, during, held
from .plan import Hook

PHASES = "phases"
BEFORE_STEPS = -1
"""The step of phases before the first one: a loop may count from 0."""
_CLOCK_EVERY_NS = 300 * 10**9


class Phases:
    """Writes spans. `marks` is set while a tool wants phases marked: a factory of context managers."""

    def __init__(
        self,
        folder: str,
        *,
        about: Callable[[], dict[str, Any]],
        step: Callable[[], int],
        clock: Callable[[], tuple[int, int] | None],
    ) -> None:
        self._folder = Path(folder) / PHASES
        self._about = about
        self._step = step
        self._clock = clock
        self._clock_due_ns = 0
        self._said: dict[str, Any] = {}
        self._file = -1
        self._opening = threading.Lock()
        self._shift_ns = time.time_ns() - time.monotonic_ns()
        self.marks: Callable[[str], Any] | None = None

    def forget_in_child(self) -> None:
        self._file = -1
        self._said = {}
        self._opening = threading.Lock()
        self.marks = None

    @contextlib.contextmanager
    def span(self, phase: str) -> Iterator[None]:
        mark = self.marks(phase) if self.marks is not None else contextlib.nullcontext()
        whole_device = phase in SLEEPS
        before, cpu = held(whole_device=whole_device), time.process_time_ns()
        started = time.monotonic_ns()
        try:
            with mark:
                yield
        finally:
            ended = time.monotonic_ns()
            after = held(whole_device=whole_device, since=before)
            self.write(phase, started, ended, during(before, after), [cpu, time.process_time_ns()])

    def write(
        self,
        phase: str,
        started_ns: int,
        ended_ns: int,
        memory_kib: Sequence[int | None] = (),
        cpu_ns: Sequence[int] = (),
    ) -> None:
        """Both times are of the monotonic clock."""
        if self._file < 0:
            self._open()
        elif self._said.get("kind") == "task":
            # A Ray worker gets its actor, and so its name, after the first record.
            self.say_who()
        start, length = started_ns + self._shift_ns, ended_ns - started_ns
        line = [phase, start, length, self._step(), threading.get_ident(), list(memory_kib), list(cpu_ns)]
        self._put(json.dumps(line, separators=(",", ":")) + "\n")

    def announce(self) -> None:
        """A process that works has a place on the timeline, also without phases."""
        if self._file < 0:
            self._open()

    def say_who(self) -> None:
        """Writes the identity of this process if it has changed."""
        about = self._about()
        if about != self._said:
            self._said = about
            self._put(json.dumps(about) + "\n")

    def say_clock(self) -> None:
        """Measures this host's clock against the broker's, now and then, for clocks that drift."""
        now = time.monotonic_ns()
        if now < self._clock_due_ns or self._file < 0:
            return
        self._clock_due_ns = now + _CLOCK_EVERY_NS
        measured = self._clock()
        if measured is not None:
            self._put(json.dumps({"clock": {"offset_ns": measured[0], "round_trip_ns": measured[1]}}) + "\n")

    def _open(self) -> None:
        with self._opening:
            if self._file >= 0:
                return
            with contextlib.suppress(OSError):
                self._folder.mkdir(parents=True, exist_ok=True)
                path = self._folder / f"{os.uname().nodename}_{os.getpid()}.jsonl"
                self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.say_who()
        self.say_clock()

    def _put(self, line: str) -> None:
        if self._file >= 0:
            with contextlib.suppress(OSError):
                os.write(self._file, line.encode())


def nvtx_marks() -> Callable[[str], Any] | None:
    """NVTX ranges through the torch of this process; None where it has none."""
    nvtx: Any = getattr(getattr(sys.modules.get("torch"), "cuda", None), "nvtx", None)
    if nvtx is None or not hasattr(nvtx, "range_push") or not sys.modules["torch"].cuda.is_available():
        return None

    @contextlib.contextmanager
    def mark(phase: str) -> Iterator[None]:
        nvtx.range_push(phase)
        try:
            yield
        finally:
            nvtx.range_pop()

    return mark


def torch_marks() -> Callable[[str], Any] | None:
    """User annotations in a torch profile."""
    profiler: Any = sys.modules.get("torch.profiler")
    return (lambda phase: profiler.record_function(f"phase:{phase}")) if profiler is not None else None


class HookedFunction:
    """Puts one hook into a module that was just imported: the function is wrapped in its place."""

    def __init__(
        self, hook: Hook, *, span: Callable[[str], Any], enter_step: Callable[[int], None], own: Callable[[], None]
    ) -> None:
        self._hook = hook
        self._span = span
        self._enter_step = enter_step
        self._own = own

    def install(self, module: ModuleType) -> str:
        """Wraps the function, and says why it could not: another version of the framework may lack it."""
        owner: Any = module
        *parents, name = self._hook.function.split(".")
        for parent in parents:
            owner = getattr(owner, parent, None)
            if owner is None:
                return f"{module.__name__} has no {parent}"
            if hasattr(owner, "__ray_metadata__"):
                # Ray sends the class to its workers as it was when it was decorated; what is set here stays here.
                return f"{parent} is a Ray actor class, whose workers do not see the hook; name its base class instead"
        original = inspect.getattr_static(owner, name, None)
        if not callable(original):
            return f"there is no function {self._hook.function}"
        if isinstance(original, staticmethod):
            setattr(owner, name, staticmethod(self._wrapped(original.__func__)))
        else:
            setattr(owner, name, self._wrapped(original))
        if self._hook.owns_steps:
            self._own()
        return ""

    def _wrapped(self, original: Any) -> Any:
        step_of = self._step_of(original)
        phase, ends = self._hook.phase, self._hook.ends

        @contextlib.contextmanager
        def around(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
            number = step_of(args, kwargs)
            if number and not ends:
                self._enter_step(number)
            with self._span(phase) if phase else contextlib.nullcontext():
                yield
            if number and ends:
                self._enter_step(number)

        if inspect.iscoroutinefunction(original):

            @functools.wraps(original)
            async def later(*args: Any, **kwargs: Any) -> Any:
                with around(args, kwargs):
                    return await original(*args, **kwargs)

            return later

        @functools.wraps(original)
        def now(*args: Any, **kwargs: Any) -> Any:
            with around(args, kwargs):
                return original(*args, **kwargs)

        return now

    def _step_of(self, original: Any) -> Callable[[tuple[Any, ...], dict[str, Any]], int]:
        """Reads the step's number from a call; 0 if the call has none."""
        text, offset, per, unless = self._hook.step, self._hook.offset, self._hook.per, self._hook.unless
        if not text:
            return lambda _args, _kwargs: 0
        if text.isdigit():
            return lambda _args, _kwargs: int(text)
        if text == "calls":
            calls = itertools.count(1 + offset)
            return lambda _args, _kwargs: next(calls)
        name, *attributes = text.split(".")
        names = list(inspect.signature(original).parameters)
        place = names.index(name) if name in names else -1

        def number(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
            argument: Any = kwargs.get(name, args[place] if 0 <= place < len(args) else None)
            value = _attribute(argument, attributes)
            if value is None or any(module in sys.modules for module in unless):
                return 0
            divisors = [_attribute(argument, path.split(".")) or 1 for path in per]
            return int(value) // math.prod(divisors) + offset

        return number


def _attribute(value: Any, path: Iterable[str]) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else getattr(value, name, None)
    return value
