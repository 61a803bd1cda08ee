"""The same exception told by several processes: where it was raised, who repeats it, and what came after it.

A caller that waits for another process prints that one's exception in words of its own, or once more under its own
traceback. What is known of an exception is decided where it was raised. What a process says after the exception that
its caller was told is no cause of it.
"""

import re
from collections.abc import Sequence

from rldbg.doctor.logs.evidence import Failure, Hit, LogPlace
from rldbg.doctor.logs.failures import is_wrapper
from rldbg.doctor.logs.survival import holds

_SAYS_ENOUGH = re.compile(r"\w+\W+\w+\W+\w+")
_REMOTE = re.compile(r"ray::\S+?\(\) ?\(pid=(?P<pid>\d+)")
"""How Ray names the task whose exception a caller was told."""


def original_of(echo: Failure, failures: Sequence[Failure]) -> Failure | None:
    """The exception with its own traceback whose words another one repeats; none where it is told with more frames."""
    return next(
        (
            failure
            for failure in failures
            if failure is not echo
            and failure.frames
            and not is_wrapper(failure)
            and _SAYS_ENOUGH.search(failure.message)
            and failure.message in echo.message
            and (not echo.frames or failure.message != echo.message)
        ),
        None,
    )


def is_only_repeated(hit: Hit, hits: Sequence[Hit], failures: Sequence[Failure]) -> bool:
    """Whether the words of a line are those of an exception that was raised elsewhere and, there, are not a sighting of
    the same entry."""
    echo = next((failure for failure in failures if holds(failure, hit)), None)
    original = original_of(echo, failures) if echo is not None else None
    if original is None or hit.matched not in original.message:
        return False
    return not any(other.entry == hit.entry and holds(original, other) for other in hits)


def reported(failures: Sequence[Failure]) -> list[Failure]:
    """The exceptions of tasks that a caller was told, where they were raised."""
    told = [
        (failure.place.file, failure.place.line + failure.lines - 1, remote["pid"])
        for failure in failures
        if is_wrapper(failure) and (remote := _REMOTE.search(failure.message))
    ]
    return [
        failure
        for failure in failures
        if failure.frames
        and failure.last is not None
        and (failure.last.file, failure.last.line, failure.place.speaker.pid) in told
    ]


def comes_after(place: LogPlace, failure: Failure) -> bool:
    """Whether the process that raised an exception wrote a line after its traceback."""
    return (
        place.file == failure.place.file
        and bool(place.speaker.pid)
        and place.speaker.pid == failure.place.speaker.pid
        and place.line >= failure.place.line + failure.lines
    )
