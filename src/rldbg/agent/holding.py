"""Which exceptions may hold a process for inspection, judged before anybody knows whether a caller handles them.

Control flow and Ray's own library actors are not failures of the program. What is left is decided by the broker, which
knows the whole run: the first of each kind is held, all together for a limited time.
"""

import re
import traceback
from pathlib import Path

from .ray_process import is_rays_own
from .stacks import is_tool_file

_CONTROL_FLOW = {
    "Empty", "Full", "QueueEmpty", "QueueFull", "StopIteration", "StopAsyncIteration", "Timeout", "TimeoutError",
    "TimeoutException", "TimeoutExpired", "CancelledError", "TaskCancelledError", "AsyncioActorExit",
}  # fmt: skip
_STANDARD_LIBRARY = str(Path(traceback.__file__).parent) + "/"
_RAISED_IN = re.compile(r"\(pid=(\d+), ip=")


def is_control_flow(error: BaseException) -> bool:
    """Queues that are empty or full, ends of iterations, timeouts, cancellations; also as Ray hands them on."""
    return any(each.__name__ in _CONTROL_FLOW for each in type(error).__mro__)


def is_one_of(error: BaseException, names: tuple[str, ...]) -> bool:
    """Whether it is of a class that is named with or without its module, or of a subclass."""
    return any(each.__name__ in names or f"{each.__module__}.{each.__name__}" in names for each in type(error).__mro__)


def has_users_code(error: BaseException) -> bool:
    """Whether a frame outside of Ray and the standard library took part."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    return any(Path(file).is_absolute() and not is_library_file(file) for file in files)


def is_library_file(file: str) -> bool:
    """Of Ray, of the standard library or of a debugger; another program's folder may be called `ray` too."""
    return (
        is_rays_own(file) or is_tool_file(file) or (file.startswith(_STANDARD_LIBRARY) and "site-packages" not in file)
    )


def raising_line(error: BaseException) -> str:
    """Type and line: exceptions for which both are the same are of one kind."""
    where = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        where = f" at {frame.f_code.co_filename}:{line}"
    return type(error).__name__ + where


def origins(error: BaseException) -> list[int]:
    """Of an error that Ray handed on from other processes: the ids of these processes, else nothing."""
    if not any(each.__name__ == "RayTaskError" for each in type(error).__mro__):
        return []
    return [int(pid) for pid in _RAISED_IN.findall(str(error))]
