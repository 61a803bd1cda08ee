"""Where CPython keeps things in memory, measured in an interpreter of the same build rather than written down.

`python layout.py` prints the measurements as JSON. A process is then read with the measurements of its own executable.
"""

import asyncio
import ctypes
import functools
import io
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

MemoryLayout = dict[str, int]
_WORD = 8
_FIRST_LINE = 54321
_MEASURING_S = 20.0
# In the order of their numbers.
FUTURE_STATES = ("PENDING", "CANCELLED", "FINISHED")


class LayoutError(Exception):
    """This build keeps something in a way that is not understood."""


def measured_layout(pid: int) -> MemoryLayout:
    """The layout of the interpreter that runs a process of this host. Raises LayoutError."""
    exe = f"/proc/{pid}/exe"
    try:
        # In the environment of that process: its interpreter may need it to start at all.
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = [entry.partition(b"=") for entry in file.read().split(b"\0")]
        kept = {name: value for name, _, value in entries if name in (b"LD_LIBRARY_PATH", b"PATH", b"PYTHONHOME")}
        done = subprocess.run(
            [str(Path(exe).readlink()), "-E", "-s", "-S", "-c", _own_source()],
            env=kept,
            capture_output=True,
            text=True,
            timeout=_MEASURING_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise LayoutError(f"its interpreter could not be started: {type(error).__name__}") from error
    if done.returncode:
        raise LayoutError(f"its interpreter is not supported: {done.stderr.strip().rpartition(chr(10))[2][:200]}")
    layout: MemoryLayout = json.loads(done.stdout)
    return layout


def _own_source() -> str:
    loader: Any = globals().get("__loader__")
    return str(loader.get_source(__name__)) + "\nif __name__ == '__main__':\n    print(json.dumps(measure()))\n"


def measure() -> MemoryLayout:
    """The layout of this interpreter. Raises LayoutError."""
    if sys.maxsize < 2**32 or not getattr(sys, "_is_gil_enabled", lambda: True)():
        raise LayoutError("only 64-bit builds with a GIL are supported")
    layout = {"major": sys.version_info[0], "minor": sys.version_info[1]}
    return layout | _runtime() | _objects() | _coroutines() | _threads() | measured_buffers()


def _runtime() -> MemoryLayout:
    runtime = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
    ctypes.pythonapi.PyInterpreterState_Get.restype = ctypes.c_void_p
    interpreter = ctypes.pythonapi.PyInterpreterState_Get()
    return {
        "runtime": runtime - base_of(os.getpid(), library_of(os.getpid(), runtime)),
        "interpreter": _find(runtime, interpreter, 1 << 16),
        "modules": _find(interpreter, id(sys.modules), 1 << 20),
    }


def library_of(pid: int, address: int = 0) -> str:
    """The file that holds the interpreter: the one mapped at an address, else libpython, else the executable."""
    files: list[str] = []
    with open(f"/proc/{pid}/maps") as maps:
        for line in maps:
            words = line.split()
            begin, end = (int(part, 16) for part in words[0].split("-"))
            if len(words) > 5 and words[5].startswith("/"):
                files.append(words[5])
            if address and begin <= address < end:
                return files[-1]
    return next((file for file in files if "/libpython3." in file), str(Path(f"/proc/{pid}/exe").readlink()))


def base_of(pid: int, library: str) -> int:
    with open(f"/proc/{pid}/maps") as maps:
        for line in maps:
            if line.rstrip("\n").endswith(library):
                return int(line.split("-")[0], 16)
    raise LayoutError(f"{library} is not mapped")


class _Sample:
    def __init__(self) -> None:
        self.first_attribute = self

    def waits(self) -> None:
        """For its function and its bound method."""


def _objects() -> MemoryLayout:
    sample, text = _Sample(), "abcdefghijklmnop"
    function, method = _Sample.waits, sample.waits
    member = (sample,)
    in_c = member.index
    return {
        "text": _find_bytes(id(text), text.encode(), 96),
        "tuple": _find(id(member), id(sample), 64),
        "globals": _find(id(function), id(function.__globals__), 256),
        "code_of_function": _find(id(function), id(function.__code__), 256),
        "bound_function": _find(id(method), id(function), 64),
        "bound_self": _find(id(method), id(sample), 64),
        "bound_in_c": _find(id(in_c), id(member), 64),
        "cached_keys": _find_keys(id(_Sample), "first_attribute"),
        "lock_owner": _lock_owner(),
    } | _exceptions()


def _exceptions() -> MemoryLayout:
    try:
        raise ValueError("a sample")
    except ValueError as error:
        size = sys.getsizeof(error)
        return {
            "exception_arguments": _find(id(error), id(error.args), size),
            "traceback": _find(id(error), id(error.__traceback__), size),
        }


@functools.cache
def measured_buffers() -> MemoryLayout:
    """Where open files count what was written into them and not handed on yet."""
    in_bytes, in_text = 54_321, 4_321
    file = io.BufferedWriter(io.BytesIO(), in_bytes + 1)  # type: ignore[type-var]
    file.write(b"-" * in_bytes)
    text = io.TextIOWrapper(file)
    text.write("-" * in_text)
    # The position is the same number, and is kept before it.
    written = [at for at in _own_words(file) if _word(id(file) + at) == in_bytes]
    counted = [at for at in _own_words(text) if _word(id(text) + at) == in_text]
    if not written or not counted:
        raise LayoutError("what is in the buffer of a file was not found")
    return {"written_end": written[-1], "text_pending": counted[0]}


def _own_words(value: object) -> range:
    """Offsets within an object itself: `sys.getsizeof` counts its buffer, which lies elsewhere, and this process is the
    user's, where nothing else may be touched."""
    return range(0, type(value).__basicsize__, _WORD)


def _lock_owner() -> int:
    lock = threading.RLock()
    with lock:
        return _find(id(lock), threading.get_ident(), 64)


def _coroutines() -> MemoryLayout:
    places: MemoryLayout = {}
    program = "\n" * (_FIRST_LINE - 1) + "async def waits(first_local):\n    await first_local\n    return waits\n"
    scope: dict[str, Any] = {"__name__": "sample"}
    exec(compile(program, "/sample/file.py", "exec"), scope)
    code = scope["waits"].__code__
    raw = code.co_code

    async def main() -> None:
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        waiting = scope["waits"](future)
        task = loop.create_task(waiting, name="a sample")
        await asyncio.sleep(0)
        size = sys.getsizeof(task)
        places["task_coroutine"] = _find(id(task), id(waiting), size)
        places["task_name"] = _find(id(task), id(task.get_name()), size)
        places["task_waiter"] = _find(id(task), id(future), size)
        places["loop"] = _find(id(task), id(loop), size)
        size = sys.getsizeof(waiting) + 256
        places["frame_code"] = _find(id(waiting), id(code), size, last=True)
        places["frame_globals"] = _find(id(waiting), id(scope), size)
        places["frame_locals"] = _find(id(waiting), id(future), size)
        begin, end = id(code), id(code) + sys.getsizeof(code)
        words = range(places["frame_code"], places["frame_locals"], _WORD)
        # The code object itself lies at its own beginning; an instruction does not.
        inside = [at for at in words if begin < _word(id(waiting) + at) < end]
        if not inside:
            raise LayoutError("no instruction pointer in a suspended frame")
        places["instruction"] = inside[-1]
        future.set_result(None)
        await task
        failed, error = loop.create_future(), ValueError("a sample")
        failed.set_exception(error)
        places["task_exception"] = _find(id(failed), id(error), sys.getsizeof(failed))
        failed.exception()
        cancelled = loop.create_future()
        cancelled.cancel()
        states = {"PENDING": loop.create_future(), "CANCELLED": cancelled, "FINISHED": future}
        places["future_state"] = _find_states([id(states[name]) for name in FUTURE_STATES], sys.getsizeof(future))

    fresh = compile("def f():\n    return [].append(print)\n", "g", "exec").co_consts[0]
    asyncio.run(main())
    size = sys.getsizeof(code)
    places |= {
        "code_file": _find(id(code), id(code.co_filename), size),
        "code_name": _find(id(code), id(code.co_qualname), size, last=True),
        "code_lines": _find(id(code), id(code.co_linetable), size),
        "code_first_line": _find_int(id(code), _FIRST_LINE, size),
        "code_bytes": _find_bytes(id(fresh), fresh.co_code[:6], sys.getsizeof(fresh) + 64),
        "bytes": _find_bytes(id(raw), raw, 96),
    }
    return places


def _threads() -> MemoryLayout:
    """Thread states and their current frames. A frame starts at the address that its frame object holds."""
    ctypes.pythonapi.PyInterpreterState_Get.restype = ctypes.c_void_p
    ctypes.pythonapi.PyThreadState_Get.restype = ctypes.c_void_p
    interpreter, state = ctypes.pythonapi.PyInterpreterState_Get(), ctypes.pythonapi.PyThreadState_Get()
    this, caller = sys._getframe(), sys._getframe(1)
    frame, outer = _word(id(this) + 24), _word(id(caller) + 24)
    code_at = _find(frame, id(this.f_code), 128)
    holders = [
        at for at in range(24, 256, _WORD) if _word(state + at) % _WORD == 0 and _is_readable(_word(state + at), 16)
    ]
    places = {
        "threads": _find(interpreter, state, 1 << 20),
        "thread_ident": _find(state, threading.get_ident(), 512),
        "thread_native": _find(state, threading.get_native_id(), 512),
        "frame_start": code_at,
        "frame_previous": _find(frame, outer, 128),
        "names": _find_names(this.f_code),
        "handled": _handled(state),
    }
    # While these lines run, this frame is the current one: nothing may be called that is written in Python.
    word = ctypes.c_uint64
    for at in range(24, 256, _WORD):
        if word.from_address(state + at).value == frame:
            return places | {"current_frame": at, "frame_holder": -1}
    for at in holders:
        for inner in (0, 8):
            if word.from_address(word.from_address(state + at).value + inner).value == frame:
                return places | {"frame_holder": at, "current_frame": inner}
    raise LayoutError("the current frame of a thread was not found")


def _handled(state: int) -> int:
    """Where a thread state keeps the exception that is being handled; -1 where it does so in another way."""
    error = ValueError("a sample")
    try:
        raise error
    except ValueError:
        try:
            return _find(state, id(error), 512)
        except LayoutError:
            return -1


def _find_names(code: Any) -> int:
    """Where a code object keeps the names of all its variables."""
    first = id(code.co_varnames[0])
    for at in range(16, sys.getsizeof(code), _WORD):
        names = _word(id(code) + at)
        if names % _WORD or not _is_readable(names, 64) or _word(names + 8) != id(tuple):
            continue
        if _word(names + 16) >= len(code.co_varnames) and first in [_word(names + each) for each in (24, 32)]:
            return at
    raise LayoutError("the names of variables were not found")


def _is_readable(address: int, size: int) -> bool:
    with open("/proc/self/maps") as maps:
        for line in maps:
            words = line.split()
            begin, end = (int(part, 16) for part in words[0].split("-"))
            if begin <= address and address + size <= end:
                return "r" in words[1]
    return False


def _word(address: int) -> int:
    return int(ctypes.c_uint64.from_address(address).value)


def _find(begin: int, pointer: int, size: int, *, last: bool = False) -> int:
    found = [at for at in range(_WORD * 2, size, _WORD) if _word(begin + at) == pointer] if last else None
    if found is None:
        found = [next((at for at in _readable(begin, size) if _word(begin + at) == pointer), -1)]
    if not found or found[-1] < 0:
        raise LayoutError(f"a pointer was not found within {size} bytes")
    return found[-1]


def _readable(begin: int, size: int) -> range:
    """Offsets that can be read without leaving the mapping."""
    if size <= 4096:
        return range(0, size, _WORD)
    with open("/proc/self/maps") as maps:
        ranges = [tuple(int(part, 16) for part in line.split()[0].split("-")) for line in maps]
    end = begin
    for first, following in ranges:
        if first <= end < following:
            end = following
    return range(0, min(size, end - begin), _WORD)


def _find_int(begin: int, value: int, size: int) -> int:
    for at in range(0, size, 4):
        if ctypes.c_int32.from_address(begin + at).value == value:
            return at
    raise LayoutError("a number was not found")


def _find_states(futures: list[int], size: int) -> int:
    """Where futures in all states keep the number of their state."""
    for at in range(_WORD * 2, size - 3, 4):
        if [ctypes.c_int32.from_address(each + at).value for each in futures] == list(range(len(futures))):
            return at
    raise LayoutError("the state of a future was not found")


def _find_bytes(begin: int, data: bytes, size: int) -> int:
    at = ctypes.string_at(begin, size).find(data)
    if at < 0:
        raise LayoutError("bytes were not found")
    return at


def _find_keys(type_address: int, first: str) -> int:
    """Where a class keeps the attribute names that its instances share."""
    known = {id(name) for name in (first, *_Sample().__dict__)}
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        for at in range(400, sys.getsizeof(_Sample), _WORD):
            keys = _word(type_address + at)
            try:
                memory.seek(keys)
                head = memory.read(32)
                memory.seek(keys + 32 + (1 << head[9]))
                entry = memory.read(_WORD)
            except (OSError, ValueError, OverflowError, IndexError):
                continue
            if int.from_bytes(entry, "little") in known:
                return at
    raise LayoutError("the shared attribute names of a class were not found")
