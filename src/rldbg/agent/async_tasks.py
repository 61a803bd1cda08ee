"""The asyncio tasks of a stopped process: which one runs, where the others wait, and what their variables are.

Called through evaluations of a debugger, also in workers that have no agent. A task that waits has frames that belong
to no thread; an adapter over them answers the requests that look.
"""

import gc
import inspect
import json
import re
import sys
from pathlib import PurePath
from types import CoroutineType, FrameType, GeneratorType
from typing import Any

from .post_mortem_adapter import FramesAdapter
from .values import JsonText


def current() -> JsonText:
    """The task in which the calling thread is, or none."""
    task = _current()
    return JsonText(_row(task, task) if task is not None else {})


def listing() -> JsonText:
    """All tasks that are not done, in a stable order: their numbers are valid while the process is stopped."""
    running = _current()
    return JsonText({"tasks": [_row(task, running) for task in _tasks()]})


def _row(task: Any, running: Any) -> dict[str, Any]:
    places = [
        {"file": frame.f_code.co_filename, "line": frame.f_lineno, "function": frame.f_code.co_qualname}
        for frame in (_running_frames() if task is running else _frames(task))
    ]
    coroutine = str(getattr(task.get_coro(), "__qualname__", task.get_coro()))
    about = {"name": task.get_name(), "coroutine": coroutine, "current": task is running, "frames": places}
    return about | {"awaits_tasks": _awaits_tasks(task)}


def _awaits_tasks(task: Any) -> bool:
    """Whether it waits for other tasks: one, or those of a `gather`."""
    waiter = getattr(task, "_fut_waiter", None)
    return any(hasattr(each, "get_coro") for each in (waiter, *(getattr(waiter, "_children", None) or ())))


def onward(number: int, depth: int) -> JsonText:
    """The lines at which a task that waits can go on in the user's code, from the frame at `depth` outwards: by file,
    and what is true of that task alone."""
    task = _tasks()[number]
    places: dict[str, set[int]] = {}
    for frame in _frames(task)[depth:]:
        code = frame.f_code
        lines = {line for _, _, line in code.co_lines() if line} - {frame.f_lineno, code.co_firstlineno}
        places.setdefault(code.co_filename, set()).update(lines)
    own = f"__import__('sys')._rldbg_async_tasks.is_current({id(task)})"
    return JsonText({"lines": {file: sorted(lines) for file, lines in places.items()}, "condition": own})


def is_current(identity: int) -> bool:
    """Whether the calling thread is in this task, which is alive: nobody else has its identity."""
    return id(_current()) == identity


def trace_waiting(file: str) -> None:
    """Python 3.12 and later: makes pydevd see the lines of this file in coroutines that wait. It looks for breakpoints
    when a function starts, and these have started."""
    monitoring: Any = getattr(sys, "monitoring")  # noqa: B009 - mypy checks for 3.11, which lacks it
    tool, line = monitoring.DEBUGGER_ID, monitoring.events.LINE
    if monitoring.get_tool(tool) is None:
        return
    for code in {frame.f_code for task in _tasks() for frame in _frames(task)}:
        if PurePath(code.co_filename).name == PurePath(file).name:
            monitoring.set_local_events(tool, code, monitoring.get_local_events(tool, code) | line)


def request(number: int, text: str) -> JsonText:
    """Answers a debug adapter request, given as JSON, about the frames of one task."""
    adapter = FramesAdapter([(frame, frame.f_lineno, "") for frame in _frames(_tasks()[number])])
    return JsonText(adapter.handle(json.loads(text))[0])


def _tasks() -> list[Any]:
    module = sys.modules.get("asyncio.tasks")
    # Of all event loops; Python 3.12 renamed the set and put tasks that started eagerly in one of their own.
    sets = [getattr(module, name, ()) for name in ("_all_tasks", "_scheduled_tasks", "_eager_tasks")]
    found = {id(task): task for each in sets if not callable(each) for task in list(each) if not task.done()}
    return sorted(found.values(), key=lambda task: [int(w) if w.isdigit() else w for w in _words(task.get_name())])


def _words(name: str) -> list[str]:
    """Task-2 comes before Task-10; words and numbers alternate, so that any two names can be compared."""
    return re.split(r"(\d+)", name)


def _current() -> Any:
    asyncio = sys.modules.get("asyncio")
    try:
        return asyncio.current_task() if asyncio is not None else None
    except RuntimeError:
        return None


def _running_frames() -> list[FrameType]:
    """The coroutines in which the calling thread is, innermost first: while one runs it does not say what it awaits."""
    kinds = inspect.CO_COROUTINE | inspect.CO_ITERABLE_COROUTINE | inspect.CO_ASYNC_GENERATOR
    frame: FrameType | None = sys._getframe()
    found = []
    while frame is not None:
        if frame.f_code.co_flags & kinds:
            found.append(frame)
        frame = frame.f_back
    return found


def _frames(task: Any) -> list[FrameType]:
    """The frames of a task, from the innermost coroutine that it waits in to its own."""
    frames: list[FrameType] = []
    waiting: Any = task.get_coro()
    while waiting is not None:
        found = [getattr(waiting, name, None) for name in ("cr_frame", "gi_frame", "ag_frame")]
        frames += [frame for frame in found if isinstance(frame, FrameType)]
        waiting = _awaited(waiting)
    return frames[::-1]


def _awaited(waiting: Any) -> Any:
    for name in ("cr_await", "gi_yieldfrom", "ag_await"):
        if (found := getattr(waiting, name, None)) is not None:
            return found
    # Coroutines that were compiled to C, as Ray's are, do not say it.
    held = gc.get_referents(waiting) if "coroutine" in type(waiting).__name__ else []
    return next((each for each in held if isinstance(each, (CoroutineType, GeneratorType))), None)
