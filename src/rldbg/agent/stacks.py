"""Where every thread of this process is, from the interpreter itself; costs nothing until asked."""

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from .values import describe

_DEPTH = 200
# Parts of paths that only debuggers have: a program may lie in a folder called `debugpy` or `ray`.
TOOL_FILES = (
    "/debugpy/_vendored/",
    "/debugpy/server/",
    "/debugpy/common/",
    "/debugpy/public_api.py",
    "/_pydev_bundle/",
    "/_pydevd_bundle/",
    "/_pydevd_frame_eval/",
    "/_pydevd_sys_monitoring/",
    "/pydevd.py",
    "/ray/util/rpdb.py",
    "/ray/util/debugpy.py",
)
_HERE = str(Path(__file__).parent)


def thread_stacks(
    *, with_locals: bool = False, collective_of: Callable[[FrameType], dict[str, Any] | None] | None = None
) -> list[dict[str, Any]]:
    """One entry per thread, the main thread first, innermost frame first. Threads of the debugger are left out."""
    # Not threading.enumerate(): pydevd patches it to hide the threads that we must recognise here.
    threads: dict[int, threading.Thread] = getattr(threading, "_active", {})
    found = []
    for ident, frame in sys._current_frames().items():
        thread = threads.get(ident)
        frames = chain(frame)
        if is_ours(thread) or "pydevd_daemon_thread" in " ".join(each.f_code.co_filename for each in frames[-4:]):
            continue
        found.append(
            {
                "thread": thread.name if thread else f"thread-{ident}",
                "ident": ident,
                "main": ident == threading.main_thread().ident,
                "collective": collective_of(frame) if collective_of is not None else None,
                "frames": [frame_facts(each, with_locals=with_locals) for each in without_tools(frames)],
            }
        )
    return sorted(found, key=lambda entry: not entry["main"])


def chain(frame: FrameType | None) -> list[FrameType]:
    """A frame and its callers, innermost first."""
    frames: list[FrameType] = []
    while frame is not None and len(frames) < _DEPTH:
        frames.append(frame)
        frame = frame.f_back
    return frames


def without_tools(frames: list[FrameType]) -> list[FrameType]:
    """Without the innermost frames of a debugger or of this agent: a stopped thread is where the user's code is."""
    files = [frame.f_code.co_filename for frame in frames]
    # Debuggers wait on a lock of the standard library.
    first = next((n for n, file in enumerate(files) if file != threading.__file__), 0)
    if not files or not is_tool_file(files[first]):
        return frames
    return frames[next((n for n in range(first, len(files)) if not is_tool_file(files[n])), 0) :]


def is_tool_file(file: str) -> bool:
    return any(part in file for part in TOOL_FILES) or file.startswith(_HERE)


def frame_facts(frame: FrameType, line: int | None = None, *, with_locals: bool = False) -> dict[str, Any]:
    code = frame.f_code
    facts: dict[str, Any] = {
        "file": code.co_filename,
        "line": line if line is not None else frame.f_lineno,
        "function": getattr(code, "co_qualname", code.co_name),
    }
    if with_locals:
        facts["locals"] = {name: describe(value) for name, value in list(frame.f_locals.items())}
    return facts


def is_ours(thread: threading.Thread | None) -> bool:
    """Threads of the agent carry the mark that also keeps pydevd from tracing and stopping them."""
    return bool(getattr(thread, "pydev_do_not_trace", False))


def mark_as_ours(thread: threading.Thread) -> threading.Thread:
    thread.pydev_do_not_trace = True  # type: ignore[attr-defined]
    thread.is_pydev_daemon_thread = True  # type: ignore[attr-defined]
    return thread
