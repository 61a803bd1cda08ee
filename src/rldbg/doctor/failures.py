"""Failures without an entry: tracebacks and the last output of crashed processes."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from string import ascii_letters
from typing import NamedTuple

from rldbg.doctor.cleaning import Line, Speaker, without_environment
from rldbg.doctor.entries import ExceptionFamily, KnownFailure
from rldbg.doctor.evidence import PROGRAM_ENDED, Failure, LogPlace
from rldbg.doctor.expressions import Expression
from rldbg.doctor.standing import is_information, is_setting, is_warning, level_of
from rldbg.doctor.window import CARETS, IGNORED, RECORD_START, LogWindow

TRACEBACK = "Traceback (most recent call last)"
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
RAY_HEADER = ", actor_id="
ANCHORS = (TRACEBACK, RAY_HEADER, *CRASH_WORDS, *EXCEPTION_WORDS)

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

_EXCEPTION = re.compile(
    r"^(?P<type>(?:(?:[A-Za-z_]\w*\.)*(?:Exception|[A-Za-z_]\w*"
    r"(?:Error|Exception|Exit|Interrupt|Timeout|Failure|Refused|Expired|Died|Full|Quit|NotFound|Empty|Warning|Abort|Invalid)\w*"
    r"|Stop(?:Async)?Iteration)"
    r"|(?:[a-z_]\w*\.)+[A-Z]\w+)"
    r"(?:\([\w.]+\))?)(?:: ?(?P<message>.*))?$"
)
_LEVELLED = re.compile(
    r"^(?:ERROR|CRITICAL|FATAL|\[?E(?:RROR)?\]?)\b"
    r"(?: \d{4}-\d\d-\d\dT[\d:.]+Z? +|[^A-Za-z\[]{0,40}\[[^\]]{1,60}\] *|[^A-Za-z]{0,40})"
    r"|^\[[^\]]{0,80}\] *|^\d{4}-\d\d-\d\d[ T][\d:.,]+Z? +"
)
_ERROR_LEVEL = re.compile(
    r"\W{0,2}(?:[\d][\d:., T/-]{6,30}\W{1,3})?(?:(?:ERROR|CRITICAL|FATAL)\b|[EF]\d{4} \d\d:\d\d:\d\d)"
    r"|(?:[\w./-]{1,80}: )?(?:fatal error|fatal|error): \S|\*{3} .{0,60}(?:ERRORS_ARE_FATAL|[Aa]bort)"
    r"|[\w.-]{1,80}:\d+:\d+ \[\d+\] \S{3,60} NCCL WARN \S"
    r"|\S{0,200}?\w\.(?:cpp|cc|cuh?|c|hpp|h):(?:\w+:)?\d+: .{0,160}"
    r"(?i:\bfail|\berr(?:or)?\b|unable|cannot|NULL value|non-zero status)"
    r"|Error(?:: \S| (?:invalid|in|while|at|when|during|occurred)\b)"
)
_CHAIN = re.compile(r"(?:During handling of the above|The above exception was the direct cause)")
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>\S+))?')
_OTHER_FRAMES = (
    re.compile(r"^│ (?P<file>[^\s│]+\.py):(?P<line>\d+) in (?P<function>[^\s│]+)"),  # rich draws a box
    re.compile(r"^(?:File )?(?P<file>\S+\.py)(?::(?P<line>\d+),)? in (?P<function>[^\s(]+)"),  # notebooks
)
_WARNING_TYPES = re.compile(r"Warning$")
_RAY_TASK = re.compile(r"ray::(?P<name>\S+?)\(\) ?\(pid=(?P<pid>\d+)(?:, ip=(?P<node>[\d.]+))?")
"""How Ray begins the traceback of a task or an actor's method."""
_MAX_LINES = 160
_PREFIX_LINES = 8
_LAST_ERROR = "Last error:"
_LINES_BELOW = 5
HEADLESS = "traceback without its last line"
_INNER_BREAK = re.compile(r"(?:\\{1,4}n|\n)(?:['\"], ['\"])?")
"""How a line break looks in a traceback that was quoted, or wrapped in JSON, on one line."""
_RAISED = re.compile(r"raise (?P<type>(?:\w+\.)*[A-Z]\w*(?:Error|Exception))\b(?P<arguments>.*)")
_STRINGS = re.compile(r"f?([\"'])((?:(?!\1|\{).){1,300})(?:\1|$|\{[^\"']{0,80}\1?)")
_SHOWN_LINES = 12
_GARBLED_LINES = 12
_MIXED_NAMES = re.compile(r"(?:\w*(?:Error|Exception)){2,}\W")
"""The names of the exceptions of two processes, one in the other."""
_FRAME_PART = re.compile(r"^\s+\S|^[\s^~]+$")


def failure_at(window: LogWindow, anchor: str, place: LogPlace) -> Failure | None:
    """The failure that begins at an anchor, or None when the words there are none."""
    text = window.line.text
    if window.is_model_text or is_setting(text, max(text.find(anchor), 0)):
        return None
    if anchor == TRACEBACK:
        return _traceback(window, place)
    if window.is_code or window.is_test_name or is_warning(text) or is_information(text):
        return None
    if remote := _RAY_TASK.search(window.line.text):
        speaker = Speaker(remote["name"], remote["pid"], remote["node"] or "", place.speaker.rank)
        return _traceback(window, replace(place, speaker=speaker))
    if anchor == RAY_HEADER:
        return None
    if anchor in CRASH_WORDS:
        return Failure(anchor.rstrip(": "), _after(window.line.text, anchor), place, is_crash=True)
    return _lone_exception(window, place)


def _after(text: str, word: str) -> str:
    return text.partition(word)[2].strip(" :")[:300]


def _lone_exception(window: LogWindow, place: LogPlace) -> Failure | None:
    """An exception line that stands by itself, as in excerpts and in logs of one-line messages."""
    if TRACEBACK in window.line.text:
        return None  # it quotes another one, which says more and is found by its own words
    prefix = _prefix(window.above(_PREFIX_LINES))
    found = _as_exception(window.line.text) or _as_exception(_without(prefix, window.line))
    if found is None:
        return None
    frames: list[str] = []
    for line in window.above(_MAX_LINES // 2):
        if frame := _frame_in(line.text):
            frames += [_as_frame(frame)] if _same_voice(line, window.line) else []
            continue
        if not _same_voice(line, window.line) or _is_frame_part(_without(prefix, line)):
            continue
        if TRACEBACK in line.text or _RAY_TASK.search(line.text):
            return None
        break
    message = _message(found, window.above(3), list(window.below(_LINES_BELOW)))
    return Failure(found.kind, message, place, tuple(reversed(frames)))


def _is_frame_part(text: str) -> bool:
    """Whether a line is code or carets under a frame, behind a logger's prefix or not."""
    prefix = _LEVELLED.match(text)
    return bool(prefix and prefix[0].endswith("  ")) or bool(_FRAME_PART.match(text[prefix.end() if prefix else 0 :]))


def _frame_in(text: str) -> re.Match[str] | None:
    return _FRAME.search(text) or next((found for shape in _OTHER_FRAMES if (found := shape.match(text))), None)


def _as_frame(found: re.Match[str]) -> str:
    return f"{found['file']}:{found['line'] or '?'} in {found['function'] or '?'}"


def _prefix(lines: Iterable[Line]) -> re.Pattern[str] | None:
    """What a logger puts before each line of a traceback, as its first frame shows it; numbers in it may differ."""
    first = next((found for line in lines if (found := _FRAME.search(line.text))), None)
    before = first.string[: first.start()].removesuffix("  ") if first else ""
    return re.compile(re.sub(r"\d+", r"\\d+", re.escape(before))) if before.strip() else None


def _without(prefix: re.Pattern[str] | None, line: Line) -> str:
    found = prefix.match(line.text) if prefix else None
    return line.text[found.end() :] if found else line.text


def _next_words(lines: Iterable[Line]) -> str:
    """The message of an exception that begins with a line break."""
    words = next((line.text.strip() for line in lines if line.text.strip()), "")
    is_other = TRACEBACK in words or _CHAIN.search(words) or _as_exception(words) or RECORD_START.match(words)
    return "" if is_other else words[:300]


class _Raised(NamedTuple):
    kind: str
    message: str
    goes_on: bool
    """Its line ends with a colon: the message begins below."""


def _message(found: _Raised, above: Iterable[Line], below: Sequence[Line]) -> str:
    """What an exception says; a bare AssertionError says what it asserted, from the code that is shown above it. What
    NCCL says itself stands below torch's words."""
    kind, said, goes_on = found
    if said.startswith("NCCL error") and (last := _last_error(below)):
        return f"{said[: 300 - len(last)]}; {_LAST_ERROR} {last}"
    code = (_LEVELLED.sub("", line.text.strip(), count=1).strip() for line in above)
    asserted = next((text[:300] for text in code if text.startswith("assert ")), "") if kind == "AssertionError" else ""
    return said or asserted or (_next_words(below[:2]) if goes_on else "")


def last_error(failure: Failure) -> str:
    """What NCCL itself says, in the exception that torch makes of it."""
    return failure.message.partition(f"; {_LAST_ERROR} ")[2]


def _last_error(below: Sequence[Line]) -> str:
    texts = [line.text.strip() for line in below]
    heads = (number for number, text in enumerate(texts) if text.endswith(_LAST_ERROR))
    return next((texts[number + 1][:200] for number in heads if number + 1 < len(texts)), "")


def _as_exception(text: str) -> _Raised | None:
    stripped = text.strip()
    match = _EXCEPTION.match(stripped) or _EXCEPTION.match(_LEVELLED.sub("", stripped, count=1))
    if match is None or _WARNING_TYPES.search(match["type"]):
        return None
    return _Raised(match["type"], (match["message"] or "").strip()[:300], stripped.endswith(":"))


def _traceback(window: LogWindow, place: LogPlace) -> Failure | None:
    """Frames and exception of a traceback; lines of other processes in between are left out. What is raised as an
    object is removed ends nothing."""
    if any(IGNORED.search(line.text) for line in window.above(1)):
        return None
    lines = _lines_of(window)
    frames: list[str] = []
    is_remote = bool(_RAY_TASK.search(window.line.text))  # Ray leaves out frames that several processes share
    for number, line in enumerate(lines):
        if frame := _frame_in(line.text):
            frames.append(_as_frame(frame))
            continue
        found = _as_exception(line.text)
        if found and (frames or is_remote) and not _is_shown_code(lines, number):
            message = _message(found, lines[max(0, number - 3) : number], lines[number + 1 : number + 1 + _LINES_BELOW])
            code = _failing_line(lines[:number])
            failure = Failure(found.kind, message, place, tuple(frames), code, number + 2, chained=_is_chained(window))
            return replace(failure, warned=is_warning(window.line.text), quoted=_is_quoted(window.line.text))
        if TRACEBACK in line.text:
            break
    if frames:
        kind, message = _shown_last(lines)
        return Failure(kind, message, place, tuple(frames), lines=len(lines), chained=_is_chained(window))
    return _garbled(lines, place)


def _is_quoted(text: str) -> bool:
    """Whether a traceback in a single line is what another program has printed: the words before it are no exception
    and no line of an error."""
    before, _head, after = text.partition(TRACEBACK)
    if len(_INNER_BREAK.split(after)) <= 2 or not re.search(r"[A-Za-z]", before):
        return False
    return _as_exception(before) is None and level_of(text) not in ("ERROR", "CRITICAL", "FATAL")


def _failing_line(lines: Sequence[Line]) -> str:
    """The code that a traceback shows under its last frame."""
    last = next((at for at in reversed(range(len(lines))) if _frame_in(lines[at].text)), len(lines))
    shown = _code_of(lines[last + 1]) if last + 1 < len(lines) else ""
    return "" if CARETS.match(shown) or _RAISED.match(shown) else shown[:200]


def _garbled(lines: Sequence[Line], place: LogPlace) -> Failure | None:
    """A traceback into which several processes wrote at once: no frame can be read, but an exception's name can."""
    said = next((line.text.strip() for line in lines[:_GARBLED_LINES] if _MIXED_NAMES.match(line.text.strip())), None)
    return Failure(HEADLESS, said[:300], place) if said else None


def _shown_last(lines: Sequence[Line]) -> tuple[str, str]:
    """What a traceback without its last line would have said, where the code that it shows last tells it."""
    shown = [text for line in lines[-_SHOWN_LINES:] if (text := _code_of(line)) and not CARETS.match(text)]
    start = next((at for at in reversed(range(len(shown))) if _RAISED.match(shown[at])), None)
    if start is not None and not any(map(_frame_in, shown[start:])):
        raised = _RAISED.match(shown[start])
        assert raised is not None
        said = "".join(text for _quote, text in _STRINGS.findall("".join([raised["arguments"], *shown[start + 1 :]])))
        return raised["type"], said[:300]
    code = shown[-1] if shown else ""
    return ("AssertionError", code[:300]) if code.startswith("assert ") else (HEADLESS, "")


def _code_of(line: Line) -> str:
    """The words of a line of a traceback without indentation and without the prefix of its logger."""
    return _LEVELLED.sub("", line.text.strip(), count=1).strip()


def _lines_of(window: LogWindow) -> list[Line]:
    """The lines under the head of a traceback, without its logger's prefix; or those inside its own line."""
    inner = _INNER_BREAK.split(window.line.text.partition(TRACEBACK)[2])
    if len(inner) > 2:  # a frame and an exception
        return [Line(text.rstrip("'\"]}) "), window.line.speaker) for text in inner if text.strip(":'\" ")]
    lines = [line for line in window.below(_MAX_LINES) if _same_voice(line, window.line)]
    prefix = _prefix(lines)
    return [line._replace(text=_without(prefix, line)) for line in lines] if prefix else lines


def _is_shown_code(lines: Sequence[Line], number: int) -> bool:
    text = lines[number].text
    return number > 0 and bool(_FRAME.search(lines[number - 1].text)) and text[:1].isspace()


def _is_chained(window: LogWindow) -> bool:
    return any(_CHAIN.search(line.text) for line in window.above(3))


def _same_voice(line: Line, other: Line) -> bool:
    return not line.speaker.known or not other.speaker.known or line.speaker.pid == other.speaker.pid


def family_of(failure: Failure, entries: Iterable[KnownFailure]) -> KnownFailure | None:
    """The first entry whose family an exception belongs to; where it was raised says more than its message.

    In a framework's code the kind of the exception is the name: what it says is proved, whose fault it is is not.
    """
    found = _families_of(failure, entries)
    if not any(family.yields for _entry, family in found):
        found = [(entry, family) for entry, family in found if not family.beside_only]
    return next((entry for entry, family in found if not family.yields), found[0][0] if found else None)


def kind_of(failure: Failure, entries: Iterable[KnownFailure]) -> KnownFailure | None:
    """The entry that an exception's words alone stand for, wherever it was raised."""
    return next((entry for entry, family in _families_of(failure, entries) if family.raised_in is None), None)


def passed_through(failure: Failure, entries: Iterable[KnownFailure]) -> KnownFailure | None:
    """The entry in whose place an exception was not raised, but which called what raised it: a candidate."""
    anywhere = [
        entry.model_copy(update={"family": entry.family.model_copy(update={"frames": len(failure.frames)})})
        for entry in entries
        if entry.family is not None and entry.family.raised_in is not None and failure.frames
    ]
    return next((entry for entry, family in _families_of(failure, anywhere) if not family.asked_last), None)


def _families_of(failure: Failure, entries: Iterable[KnownFailure]) -> list[tuple[KnownFailure, ExceptionFamily]]:
    """All families of an exception: those that only say whose code failed last, and the nearer a family's place is to
    where it was raised, the earlier."""
    frames = [without_environment(frame) for frame in reversed(failure.frames)]
    found: list[tuple[tuple[bool, bool, int], KnownFailure, ExceptionFamily]] = []
    for entry in entries:
        family = entry.family
        if family is None or not Expression(family.exception).search(failure.headline):
            continue
        if family.raised_in is None:
            found.append(((family.asked_last, True, 0), entry, family))
            continue
        place = Expression(family.raised_in)
        depth = next((depth for depth, frame in enumerate(frames[: family.frames]) if place.search(frame)), None)
        if depth is not None:
            found.append(((family.asked_last, False, depth), entry, family))
    return [(entry, family) for _order, entry, family in sorted(found, key=lambda each: each[0])]


def cut_traceback(window: LogWindow, place: LogPlace) -> Failure | None:
    """The frames with which an excerpt ends that has neither the head of its traceback nor its exception."""
    lines: list[Line] = []
    for line in (window.line, *window.above(_MAX_LINES // 2)):
        if TRACEBACK in line.text:
            return None
        if not (_frame_in(line.text) or _is_frame_part(line.text)):
            break
        lines.insert(0, line)
    frames = tuple(_as_frame(frame) for line in lines if (frame := _frame_in(line.text)))
    return Failure(*_shown_last(lines), place, frames, lines=len(lines)) if frames else None


def is_error_line(line: Line) -> bool:
    """Whether a line is one that its own logger or program calls an error."""
    text = line.text
    return bool(_ERROR_LEVEL.match(text)) and not (is_warning(text) or is_information(text))


def is_wrapper(failure: Failure) -> bool:
    return failure.kind.rpartition(".")[2].startswith(_WRAPPERS)


def skeleton(text: str) -> str:
    """A line without its numbers, addresses and paths: equal for repetitions of the same one."""
    return re.sub(r"0x[0-9a-f]+|\d+|/[^\s:]+", "#", text)
