"""Failures without an entry: tracebacks and the last output of crashed processes."""

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from string import ascii_letters

from rldbg.doctor.logs.carried import call_in_configuration, carried_by
from rldbg.doctor.logs.cleaning import Line, Speaker, clean
from rldbg.doctor.logs.evidence import PROGRAM_ENDED, Failure, LogPlace
from rldbg.doctor.logs.exception_lines import LINES_BELOW, TRACEBACK, as_exception, message_of
from rldbg.doctor.logs.sources import MARGIN_BYTES
from rldbg.doctor.logs.standing import is_fatal_letter, is_information, is_setting, is_warning
from rldbg.doctor.logs.tracebacks import (
    LONGEST_LINES,
    MAX_LINES,
    RAY_TASK,
    as_frame,
    failing_line,
    frame_in,
    is_frame_part,
    prefix_of,
    same_voice,
    traceback_at,
    without_prefix,
)
from rldbg.doctor.logs.window import IGNORED, LogWindow

NATIVE_STACK = "*** StackTrace Information ***"
"""Ray prints it under the line with which it ends a process."""
CRASH_WORDS = (
    "Segmentation fault",
    "Failed: Cuda error ",
    "Fatal Python error",
    "terminate called after throwing",
    "core dumped",
    "Floating point exception",
    "Illegal instruction",
    "SIGABRT received",
    "SIGSEGV received",
    "panicked at",
    "Check failed: ",
    NATIVE_STACK,
    "Aborted (core",
    "Assertion `",
    "__cxxabiv1::__terminate",
    "stack smashing detected",
    "double free or corruption",
    "free(): ",
    "malloc(): ",
    "corrupted size vs. prev_size",
    "Signal: Aborted (6)",
    "Signal: Bus error (7)",
    "ChildFailedError",
    "exited with code 1",
    "exits with return code = -",
    "CalledProcessError",
    "Unhandled error (suppress",
    PROGRAM_ENDED,
)
EXCEPTION_WORDS = (
    *(f"{letter}Error: " for letter in ascii_letters),
    "Exception: ",
    "AssertionError",
    "NotImplementedError",
    "ConnectionRefusedError",
    "ConnectionResetError",
    "TimeoutError",
    "Timeout: ",
    "EOFError",
    "MemoryError",
    "BrokenPipeError",
    "ArrowInvalid: ",
    "OutOfResources: ",
    "BadZipFile: ",
    "gaierror: ",
    "RayTaskError",
    "RayActorError",
    "ActorDiedError",
)
"""How exceptions are printed: any name that ends in Error and has a message, and those that often have none."""
CALL_FAILED = "Error in call to target "
RAY_HEADER = ", actor_id="
ANCHORS = (TRACEBACK, RAY_HEADER, CALL_FAILED, *CRASH_WORDS, *EXCEPTION_WORDS)

_WRAPPERS = (
    "RayTaskError",
    "RayActorError",
    "ActorDiedError",
    "ActorUnavailableError",
    "WorkerCrashedError",
    "ChildFailedError",
    "CalledProcessError",
    "BrokenProcessPool",
    "SystemExit",
    "KeyboardInterrupt",
    "exited with code",
    "exits with return code",
    "core dumped",
    "Unhandled error",
    "Error executing job",
)
"""Exceptions that only say that something else failed."""

_CHILD_ENDED = re.compile(
    r"(?i)\b(?:exit(?:ed|s)?|returned|ended|finished|died|failed|terminated)\b[^.;]{0,40}"
    r"\b(?:non-?zero|status|exit ?code)\b"
)
_STATUS_OF_HTTP = re.compile(r"\b(?:status|code)[ =:]{1,3}[2-5]\d\d\b(?<!255)")
_ERROR_LEVEL = re.compile(
    r"\W{0,2}(?:[\d][\d:., T/-]{6,30}\W{1,3})?(?:(?:ERROR|CRITICAL|FATAL)\b|[EF]\d{4} \d\d:\d\d:\d\d)"
    r"|(?:[\w./-]{1,80}: )?(?:fatal error|fatal|error): \S|\*{3} .{0,60}(?:ERRORS_ARE_FATAL|[Aa]bort)"
    r"|[\w.-]{1,80}:\d+:\d+ \[\d+\] \S{3,60} NCCL WARN \S"
    r"|\S{0,200}?\w\.(?:cpp|cc|cuh?|c|hpp|h):(?:\w+:)?\d+: .{0,160}"
    r"(?i:\bfail|\berr(?:or)?\b|unable|cannot|NULL value|non-zero status)"
    r"|Error(?:: \S| (?:invalid|in|while|at|when|during|occurred)\b)"
)
_PREFIX_LINES = 8
_FATAL_LINES = 4
_MIXED_LINES = 4
_REACH_BYTES = MARGIN_BYTES // 3


def failure_at(window: LogWindow, anchor: str, place: LogPlace) -> Failure | None:
    """The failure that begins at an anchor, or None when the words there are none."""
    text = window.line.text
    if not text or window.is_model_text or is_setting(text, max(text.find(anchor), 0)):
        return None
    if anchor == TRACEBACK:
        return traceback_at(window, place)
    if window.is_code or window.is_test_name or window.is_ignored or is_warning(text) or is_information(text):
        return None
    if remote := RAY_TASK.search(window.line.text):
        speaker = Speaker(remote["name"], remote["pid"], remote["node"] or "", place.speaker.rank)
        return traceback_at(window, replace(place, speaker=speaker))
    if anchor == RAY_HEADER:
        return None
    if anchor == NATIVE_STACK:
        return _fatal_above(window, place)
    if anchor == CALL_FAILED:
        return _call_failed(window, place)
    if anchor in CRASH_WORDS:
        return Failure(anchor.rstrip(": "), _after(window.line.text, anchor), place, is_crash=True)
    return _lone_exception(window, place)


def _fatal_above(window: LogWindow, place: LogPlace) -> Failure | None:
    """The line of a native logger that ends its process, right above the stack that it prints."""
    own = (line for line in window.above(_FATAL_LINES) if same_voice(line, window.line))
    fatal = next((line for line in own if is_fatal_letter(line.text)), None)
    said = fatal.text.partition("] ")[2].strip()[:300] if fatal is not None else ""
    return Failure("fatal", said, place, is_crash=True) if said else None


def _call_failed(window: LogWindow, place: LogPlace) -> Failure | None:
    """What a class or a function of the configuration raised, where Hydra prints that without a traceback."""
    carried = call_in_configuration(window.line, list(window.below(LINES_BELOW)))
    if carried is None:
        return _lone_exception(window, place)
    said = window.line.text.strip()
    return Failure(carried.inner.kind, carried.inner.message, place, lines=carried.below + 1, more=(said,))


def _after(text: str, word: str) -> str:
    return text.partition(word)[2].strip(" :)")[:300]


def _lone_exception(window: LogWindow, place: LogPlace) -> Failure | None:
    """An exception line that stands by itself, as in excerpts and in logs of one-line messages."""
    if TRACEBACK in window.line.text:
        return None  # it quotes another one, which says more and is found by its own words
    prefix = prefix_of(window.above(_PREFIX_LINES))
    found = as_exception(window.line.text) or as_exception(without_prefix(prefix, window.line))
    if found is None:
        return None
    frames: list[str] = []
    shown: list[Line] = []
    others = 0
    above = _within_reach(window)
    for line in above:
        others = 0 if same_voice(line, window.line) else others + 1
        if not (others or frames):
            shown.insert(0, line._replace(text=without_prefix(prefix, line)))
        if frame := frame_in(line.text):
            frames += [] if others else [as_frame(frame)]
        elif TRACEBACK in line.text or RAY_TASK.search(line.text):
            if not others:
                return None
        elif (not others and not is_frame_part(without_prefix(prefix, line))) or others > MAX_LINES // 2:
            break
    if frames and any(IGNORED.search(line.text) for line in islice(above, _MIXED_LINES)):
        return None  # two processes wrote at once what Python ignores
    below = list(window.below(LINES_BELOW))
    carried = carried_by(found, window.line, below)
    found, below = (carried.inner, below[carried.below :]) if carried else (found, below)
    message = message_of(found, window.above(3), below)
    code = failing_line(shown) if frames and not carried else ""
    return Failure(
        found.kind, message, place, tuple(reversed(frames)), code, cut=bool(frames), is_carried=bool(carried)
    )


def _within_reach(window: LogWindow) -> Iterator[Line]:
    """The lines above, the nearest first: so far that a traceback that begins there is surely read down to here."""
    size = 0
    for raw in islice(window.raw_above(), LONGEST_LINES):
        size += len(raw) + 1
        if size > _REACH_BYTES:
            return
        yield clean(raw)


def is_error_line(line: Line) -> bool:
    """Whether a line is one that its own logger or program calls an error."""
    text = line.text
    return bool(_ERROR_LEVEL.match(text)) and not (is_warning(text) or is_information(text))


def is_wrapper(failure: Failure) -> bool:
    return failure.kind.rpartition(".")[2].startswith(_WRAPPERS)


def tells_of_child(failure: Failure) -> bool:
    """Whether an exception only says with which code a process ended that its own one had started."""
    return bool(_CHILD_ENDED.search(failure.message)) and not _STATUS_OF_HTTP.search(failure.message)


def skeleton(text: str) -> str:
    """A line without its numbers, addresses and paths: equal for repetitions of the same one."""
    return re.sub(r"0x[0-9a-f]+|\d+|/[^\s:]+", "#", text)
