"""Errors that the program logged or printed before it went on: who said them, when, and where they were raised and
caught.

Somebody may wait for ever for what the failed work should have given. Nothing is done at other times: records below a
warning cost one call. Nothing is printed, and nothing is raised into the program.
"""

import functools
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from types import FrameType, ModuleType, TracebackType
from typing import Any

from .post_mortem import headline, is_library_file

# Numbers of `logging`, which the program need not have imported.
_WARNING, _ERROR = 30, 40
# Kept per thread or task, and of how many of these.
_LAST, _SPEAKERS = 3, 64
_FRAMES, _TEXT = 40, 300
# How often the broker is told at most: what ends a process soon afterwards must not take it along.
_TOLD_EVERY_S = 1.0

_Place = tuple[str, int, str]
_Redact = Callable[[Any, str], Any]


class _Said:
    """`raised` are the places of the traceback, innermost first; `caught` is where its outermost function was then.

    Not a dataclass: making one takes a millisecond of each process that starts."""

    __slots__ = ("at", "caught", "error", "ident", "message", "raised", "task", "task_name", "thread")

    def __init__(
        self,
        message: str,
        error: int,
        raised: tuple[_Place, ...],
        caught: _Place | None,
        speaker: tuple[int, str, int, str],
    ) -> None:
        self.at = time.monotonic()
        self.message, self.error, self.raised, self.caught = message, error, raised, caught
        self.ident, self.thread, self.task, self.task_name = speaker


class SaidErrors:
    """One per process. Without locks: the program may log in a signal handler."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._by_speaker: dict[tuple[int, int], deque[_Said]] = {}
        self._busy: set[int] = set()
        self._woken_at = 0.0
        self.is_untold = False

    def watch_logging(self, module: ModuleType) -> None:
        """`makeRecord` has returned when handlers run, which print who called them."""
        original = module.Logger.makeRecord

        @functools.wraps(original)
        def makeRecord(logger: Any, name: str, level: Any, *args: Any, **named: Any) -> Any:  # noqa: N802
            record = original(logger, name, level, *args, **named)
            try:
                if level >= _WARNING or record.exc_info:
                    self._guarded(lambda: self._logged(record))
            except (TypeError, AttributeError):
                # A level or a record of the program's own making.
                pass
            return record

        module.Logger.makeRecord = makeRecord

    def watch_traceback(self, module: ModuleType) -> None:
        """All others of its functions that show an exception call one of these."""
        for name in ("print_exception", "format_exception"):
            setattr(module, name, self._shown_by(getattr(module, name), str(module.__file__)))

    @property
    def is_any(self) -> bool:
        return bool(self._by_speaker)

    def forget(self) -> None:
        """In a forked child: what its parent said is not its own."""
        self._by_speaker = {}
        self._busy, self._woken_at, self.is_untold = set(), 0.0, False

    def facts(self, redact: _Redact | None) -> list[dict[str, Any]]:
        """The last errors of each thread and task, newest first."""
        now = time.monotonic()
        every = [said for own in list(self._by_speaker.values()) for said in list(own)]
        return [_facts(each, now, redact) for each in sorted(every, key=lambda each: -each.at)]

    def keep(self, error: BaseException) -> None:
        """What ends the process by itself: nobody logs it."""
        self._guarded(lambda: self._keep(error))

    def _shown_by(self, original: Callable[..., Any], own_file: str) -> Callable[..., Any]:
        @functools.wraps(original)
        def show(*args: Any, **named: Any) -> Any:
            self._guarded(lambda: self._shown([*args, *named.values()], own_file))
            return original(*args, **named)

        return show

    def _guarded(self, keep: Callable[[], None]) -> None:
        ident = threading.get_ident()
        if ident in self._busy:
            # The text of an exception logs.
            return
        self._busy.add(ident)
        try:
            keep()
        except Exception:  # noqa: BLE001 - texts of exceptions are the user's code; an error is then not kept
            pass
        finally:
            self._busy.discard(ident)

    def _logged(self, record: Any) -> None:
        given = record.exc_info
        error = (given[1] if isinstance(given, tuple) else None) or sys.exc_info()[1]
        if error is not None:
            self._keep(error)
        elif record.levelno >= _ERROR:
            place = (str(record.pathname), int(record.lineno), str(record.funcName))
            self._add(f"{record.levelname}: {record.getMessage()}"[:_TEXT], 0, (), place)

    def _shown(self, arguments: list[Any], own_file: str) -> None:
        """What the standard library and Ray format, they pass on to who gave the work."""
        asking: FrameType | None = sys._getframe(1)
        while asking is not None and asking.f_code.co_filename in (own_file, __file__):
            asking = asking.f_back
        error = next((each for each in arguments if isinstance(each, BaseException)), None)
        if error is not None and asking is not None and not is_library_file(asking.f_code.co_filename):
            self._keep(error)

    def _keep(self, error: BaseException) -> None:
        trace = error.__traceback__
        outermost = trace.tb_frame if trace is not None else None
        here: FrameType | None = sys._getframe(1)
        while here is not None and here is not outermost:
            here = here.f_back
        caught = _place(here, here.f_lineno) if here is not None else None
        self._add(headline(error, str(error))[:_TEXT], id(error), _places(trace), caught)

    def _add(self, message: str, error: int, raised: tuple[_Place, ...], caught: _Place | None) -> None:
        ident, (task, name) = threading.get_ident(), _current_task()
        thread = getattr(threading, "_active", {}).get(ident)
        said = _Said(message, error, raised, caught, (ident, thread.name if thread else "", task, name))
        own = self._by_speaker.pop((ident, task), None) or deque(maxlen=_LAST)
        if own and own[-1].error == error and own[-1].message == message:
            own.pop()
        own.append(said)
        # The one who spoke last is kept longest.
        self._by_speaker[ident, task] = own
        while len(self._by_speaker) > _SPEAKERS:
            self._by_speaker.pop(next(iter(self._by_speaker)), None)
        self.is_untold = True
        if said.at - self._woken_at > _TOLD_EVERY_S:
            self._woken_at = said.at
            self._wake()


def _place(frame: FrameType, line: int) -> _Place:
    return frame.f_code.co_filename, line, getattr(frame.f_code, "co_qualname", frame.f_code.co_name)


def _places(trace: TracebackType | None) -> tuple[_Place, ...]:
    """Innermost first; the outermost of a very deep one are left out."""
    found: deque[_Place] = deque(maxlen=_FRAMES)
    while trace is not None:
        found.append(_place(trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    return tuple(reversed(found))


def _current_task() -> tuple[int, str]:
    """Address and name of the task of asyncio that runs in this thread."""
    asyncio = sys.modules.get("asyncio")
    loop = asyncio._get_running_loop() if asyncio is not None else None
    task = asyncio.current_task(loop) if asyncio is not None and loop is not None else None
    return (id(task), task.get_name()) if task is not None else (0, "")


def _facts(said: _Said, now: float, redact: _Redact | None) -> dict[str, Any]:
    own = [place for place in said.raised if not is_library_file(place[0])]
    users = [place for place in own if "-packages/" not in place[0]]
    raised = next(iter(users or own or said.raised), None)
    return {
        "message": redact(said.message, "") if redact else said.message,
        "logged": not said.error,
        "place": _plain(raised),
        "caught": _plain(said.caught),
        "ago_s": round(now - said.at, 1),
        "thread": said.thread,
        "ident": said.ident,
        "task": said.task_name,
        "task_key": f"{said.task:#x}" if said.task else "",
    }


def _plain(place: _Place | None) -> dict[str, Any] | None:
    return dict(zip(("file", "line", "function"), place, strict=True)) if place is not None else None
