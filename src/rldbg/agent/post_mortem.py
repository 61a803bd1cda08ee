"""What happens when an exception leaves a process, a thread or a Ray task: it is recorded, reported, and held if
requested.

Which exceptions are held is decided by the broker, which knows the whole run (`holding` says which never are).
"""

import contextlib
import re
import shlex
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from .crash import crash_record, is_launchers_report, is_second_hand, is_told_by_child, write_crash
from .framing import FAREWELL, Message, WireError
from .identity import is_read_by_its_starter, is_silenced_by_its_starter
from .link import REDIAL_S, Link, NoBroker
from .peer import Connection
from .post_mortem_adapter import PostMortemAdapter
from .ray_process import is_async_actor, is_rays_own
from .redaction import load_redact
from .settings import Settings, say
from .stacks import is_tool_file, mark_as_ours
from .terminal import blocked_loop_note

_CONTROL_FLOW = {
    "Empty", "Full", "QueueEmpty", "QueueFull", "StopIteration", "StopAsyncIteration", "Timeout", "TimeoutError",
    "TimeoutException", "TimeoutExpired", "CancelledError", "TaskCancelledError", "AsyncioActorExit",
}  # fmt: skip
_STANDARD_LIBRARY = str(Path(traceback.__file__).parent) + "/"
_RAISED_IN = re.compile(r"\(pid=(\d+), ip=([^,)\s]+)")


# Where exceptions leave the process, and where their caller may handle them (`child`: of multiprocessing).
ENDS_PROCESS = ("process", "child")
_HAS_CALLER = ("task", "child")
_CRASH_FILES = 50
_HEADLINE = 300
_CAUSES = 100
# The longest time that a dying process that is not held waits for a busy broker.
_CRASH_S = 10.0


class PostMortem:
    """One per process. Waiting at an exception is a stop like any other, in a debug session of its own."""

    def __init__(
        self,
        settings: Settings,
        *,
        link: Callable[[], Link],
        identity: Callable[[], dict[str, Any]],
        new_stop: Callable[[], int],
        new_session: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._link = link
        self._identity = identity
        self._new_stop = new_stop
        self._new_session = new_session
        self._crashes = 0

    def report(self, error: BaseException, where: str) -> None:
        """Writes the crash file, tells the broker, and holds the process if the broker says so."""
        passes = is_one_of(error, self._settings.pass_exceptions)
        if where in _HAS_CALLER and (passes or is_control_flow(error) or not has_users_code(error)):
            # The caller will most likely handle it: a queue that is empty, a timeout, a cancellation.
            return
        if self._crashes >= _CRASH_FILES or (where == "process" and is_read_by_its_starter()):
            return
        self._crashes += 1
        record = self._record(error, where)
        is_repeated = is_second_hand(error) and is_told_by_child(self._settings.run / "crashes", record["who"])
        if is_repeated and is_launchers_report(error):
            return
        path = None if is_repeated else self._write(record)
        top = (record["exceptions"][0]["frames"] or [{}])[0]
        facts = {name: top.get(name) for name in ("file", "line", "function")}
        message = headline(error, record["exceptions"][0]["message"])
        # A program that fails in its first lines may be faster than its agent's connection.
        connected = self._link().wait_connected()
        may_hold = connected and not passes and _is_worth_a_wait(error, where)
        told = facts | {"message": message, "path": str(path or ""), "where": where}
        told |= {"exception": raising_line(error), "origins": origins(error), "node_address": _node_address()}
        told |= {"forwards": forwarded_headline(error, message), "identity": record["who"]}
        told |= {"wait_s": self._settings.post_mortem_wait_s if may_hold else 0.0}
        answer: Message = {}
        ask = self._link().insist if told["wait_s"] else self._link().request
        with contextlib.suppress(NoBroker):
            # A request, not an event: the broker answers once it has saved the stacks of every process.
            answer = ask("crash", told, max(_CRASH_S, told["wait_s"]))
        self._obey(answer, error, facts | {"notes": [message]}, told)

    def _record(self, error: BaseException, where: str) -> dict[str, Any]:
        redact = load_redact() if self._settings.redact else None
        keep_values = redact is not None or not self._settings.redact
        return crash_record(error, who=self._identity(), where=where, redact=redact, keep_values=keep_values)

    def _write(self, record: dict[str, Any]) -> Path | None:
        try:
            path = write_crash(self._settings.run / "crashes", record, self._crashes)
        except OSError as failure:
            say(f"the crash file could not be written: {failure}")
            return None
        say(f"crash file {path}: rldbg attach {shlex.quote(str(path))}")
        return path

    def _obey(self, answer: Message, error: BaseException, facts: dict[str, Any], told: Message) -> None:
        limit_s = float(answer.get("hold_s") or 0.0)
        if limit_s and told["where"] == "task" and is_async_actor():
            # All methods of the actor share this thread: hold the exception in another thread, so that they continue.
            facts["notes"].append("the actor's other methods continue; its caller already has the error")
            hold = threading.Thread(
                target=self._hold, args=(error, facts, told, limit_s), name="rldbg-hold", daemon=True
            )
            mark_as_ours(hold).start()
        elif limit_s:
            facts["notes"] += blocked_loop_note()
            self._hold(error, facts, told, limit_s)
        elif answer.get("held"):
            self._wait_for_others(answer["held"])
        elif answer.get("reason"):
            say(f"not held: {answer['reason']}")

    def _wait_for_others(self, held: list[str]) -> None:
        """The end of the driver would also end held workers."""
        say(f"waiting while {', '.join(held)} is held; {self._to_end(held[0] if len(held) == 1 else 'all')}")
        with contextlib.suppress(NoBroker):
            # Named explicitly: a broker that replaces a killed one learns of them later than of this process.
            self._link().insist("await_holds", {"held": held}, timeout_s=self._settings.post_mortem_wait_s)

    def _to_end(self, who: str) -> str:
        return f"to end the wait: rldbg continue {shlex.quote(who)} --run {shlex.quote(str(self._settings.run))}"

    def _hold(self, error: BaseException, facts: dict[str, Any], told: Message, limit_s: float) -> None:
        """Holds the exception until a client resumes it or the time is over; a killed broker is replaced by the
        next."""
        begin, adapter, lost_at = time.monotonic(), PostMortemAdapter(error), 0.0
        facts |= {"stop": self._new_stop(), "thread": threading.current_thread().name, "reason": "exception"}
        while not adapter.ended and (left_s := limit_s - (time.monotonic() - begin)) > 0:
            facts |= {"timeout_s": limit_s, "elapsed_s": limit_s - left_s, "identity": self._identity()}
            try:
                if lost_at:
                    self._link().insist("crash", told | {"held_again_s": left_s}, timeout_s=_CRASH_S)
                channel = self._announced(facts, left_s, is_first=not lost_at)
                if not lost_at and told["where"] in _HAS_CALLER:
                    # Its caller prints it, once it is no longer held.
                    traceback.print_exception(error)
            except NoBroker as problem:
                self._link().tell("stop_failed", {"stop": facts["stop"], "reason": str(problem)})
                reason = lost_at and self._link().why_none(lost_at)
                resumed = f"the broker was killed and {reason}: resumed from the exception"
                say(resumed if reason else f"post-mortem is not available for this exception: {problem}")
                return
            try:
                # Longer than the broker's limit: the broker does not end a hold while a client is attached.
                _answer_all(adapter, channel, left_s + self._settings.post_mortem_wait_s)
            except TimeoutError:
                return
            except WireError:
                lost_at = time.monotonic()
            finally:
                channel.close()

    def _announced(self, facts: dict[str, Any], left_s: float, *, is_first: bool) -> Connection:
        """A debug channel to the broker, which knows that this process is stopped at its exception."""
        link, lost_at = self._link(), 0.0
        while True:
            answer = link.insist("stopping", facts, timeout_s=left_s)
            session = self._new_session()
            try:
                channel = link.dial_debug_channel(session, left_s)
                break
            except NoBroker:
                lost_at = lost_at or time.monotonic()
                if link.why_none(lost_at):
                    raise
                time.sleep(REDIAL_S)
        link.tell("debug_ready", {"session": session, "stop": facts["stop"]})
        if is_first:
            say(f"waiting up to {left_s:.0f} s at the exception: Task paused, waiting for debugger to attach...")
            say(f"{left_s:.0f} s of {self._settings.post_mortem_wait_s:g} s are left for all exceptions of this run")
            say(self._to_end(str(answer.get("who"))))
        return channel


def _answer_all(adapter: PostMortemAdapter, channel: Connection, patience_s: float) -> None:
    """Answers requests until the adapter has ended or the broker sends a farewell. Raises WireError when the broker is
    lost."""
    while not adapter.ended:
        message = channel.receive(timeout_s=patience_s)
        if message == FAREWELL:
            adapter.ended = True
            return
        for answer in adapter.handle(message):
            channel.send(answer)


def _is_worth_a_wait(error: BaseException, where: str) -> bool:
    """False for a launcher's report about its ranks, or a program that cannot be loaded: there is nothing to
    inspect; and for one whose failure its starter expects."""
    in_vain = where == "process" and (is_start_failure(error) or is_silenced_by_its_starter())
    return not is_second_hand(error) and not in_vain


def is_start_failure(error: BaseException) -> bool:
    """Whether a program could not be loaded: a module, a shared library, a file that is not Python; also as the cause
    of what the program made of it."""
    cause: BaseException | None = error
    for _ in range(_CAUSES):
        if cause is None:
            break
        is_file = isinstance(cause, SyntaxError) and str(cause.filename).endswith(".py")
        is_library = isinstance(cause, OSError) and "cannot open shared object file" in str(cause)
        if isinstance(cause, ImportError) or is_file or is_library:
            return True
        cause = cause.__cause__
    return False


def is_control_flow(error: BaseException) -> bool:
    """Empty or full queues, ends of iterations, timeouts, cancellations; also as forwarded by Ray, and groups of them
    alone."""
    return is_one_of(error, _CONTROL_FLOW)


def is_one_of(error: BaseException, names: Collection[str]) -> bool:
    """Whether it is of a class that is named with or without its module, of a subclass, or a group of such alone."""
    if any(each.__name__ in names or f"{each.__module__}.{each.__name__}" in names for each in type(error).__mro__):
        return True
    return isinstance(error, BaseExceptionGroup) and all(is_one_of(part, names) for part in error.exceptions)


def has_users_code(error: BaseException) -> bool:
    """Whether a frame outside of Ray and the standard library is in the traceback."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    return any(Path(file).is_absolute() and not is_library_file(file) for file in files)


def is_library_file(file: str) -> bool:
    """Whether a file belongs to Ray, the standard library or a debugger; a user's folder may be called `ray` too."""
    return (
        is_rays_own(file) or is_tool_file(file) or (file.startswith(_STANDARD_LIBRARY) and "site-packages" not in file)
    )


def raising_line(error: BaseException) -> str:
    """Type and line: exceptions for which both are the same are of one kind. The line is the user's where a library
    raised it: all that a TaskGroup or `json.loads` raises comes from one line."""
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    of_user = [place for place in places if not is_library_file(place[0])]
    return type(error).__name__ + "".join(f" at {file}:{line}" for file, line in (of_user or places)[-1:])


def headline(error: BaseException, text: str) -> str:
    """Type and message; the text of an error that Ray forwarded is a traceback that ends in the message, or, of a
    group, in its parts."""
    cause = getattr(error, "cause", None) if _is_forwarded(error) else None
    _, name, message = text.rpartition(f"\n{type(cause).__name__}: ")
    if isinstance(cause, BaseExceptionGroup):
        _, name, message = text.partition(f"| {type(cause).__name__}: ")
        message = message.partition("\n")[0]
    said = message if cause is not None and name else text
    lines = said.split("\n")
    # The report of a launcher begins with an empty line and a ruler.
    first = next((number for number, line in enumerate(lines) if any(map(str.isalnum, line))), 0)
    said = "\n".join(lines[first:])
    return f"{type(error).__name__}: {said}"[:_HEADLINE]


def origins(error: BaseException) -> list[list[str]]:
    """For an error that Ray forwarded: process id and node address of each process it came from."""
    return [[pid, address] for pid, address in _RAISED_IN.findall(str(error))] if _is_forwarded(error) else []


def forwarded_headline(error: BaseException, message: str) -> str:
    """What an error that Ray forwarded was called where it was raised; empty for all others. Of groups, Ray does not
    say from which process they came."""
    kind = type(getattr(error, "cause", None)).__name__
    _, is_named, said = message.partition(f"({kind}): ")
    return f"{kind}: {said}" if is_named and _is_forwarded(error) else ""


def _is_forwarded(error: BaseException) -> bool:
    return any(each.__name__ == "RayTaskError" for each in type(error).__mro__)


def _node_address() -> str:
    """What Ray calls this host in the errors that it forwards."""
    ask = getattr(getattr(sys.modules.get("ray"), "util", None), "get_node_ip_address", None)
    return str(ask()) if ask is not None else ""
