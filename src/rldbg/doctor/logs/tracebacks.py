"""Reading a traceback: its frames, the code that it shows and its exception, with lines of others in between."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice

from rldbg.doctor.logs.carried import carried_by, quoted_head
from rldbg.doctor.logs.cleaning import Line
from rldbg.doctor.logs.evidence import Failure, LogPlace
from rldbg.doctor.logs.exception_lines import (
    CHAIN,
    LEVELLED,
    LINES_BELOW,
    TRACEBACK,
    Raised,
    as_exception,
    lines_of_message,
    message_of,
)
from rldbg.doctor.logs.standing import is_warning, level_of
from rldbg.doctor.logs.window import CARETS, LogWindow

_LEFT = "SystemExit"
"""What ends a process on purpose, as a handler of signals does; without a code, or with 0, it ended well."""
_GROUP_HEAD = "Exception Group Traceback"
HEADLESS = "traceback without its last line"
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>\S+))?')
_OTHER_FRAMES = (
    re.compile(r"^│ (?P<file>[^\s│]+\.py):(?P<line>\d+) in (?P<function>[^\s│]+)"),  # rich draws a box
    re.compile(r"^(?:File )?(?P<file>\S+\.py)(?::(?P<line>\d+)[,:])? in (?P<function>[^\s(]+)"),  # notebooks, pytest
)
RAY_TASK = re.compile(r"ray::(?P<name>\S+?)\(\) ?\(pid=(?P<pid>\d+)(?:, ip=(?P<node>[\d.]+))?")
"""How Ray begins the traceback of a task or an actor's method."""
MAX_LINES = 160
LONGEST_LINES = 2000
"""Of a traceback that has not ended after the usual number of lines: those of deep models go on for hundreds."""
_RAY_SAYS = re.compile(r"RayTaskError\((?P<type>[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Timeout))\)")
"""Of which type the exception is that the traceback under this line ends with."""
_INNER_BREAK = re.compile(r"(?:\\{1,4}n|\n)(?:['\"], ['\"])?")
"""How a line break looks in a traceback that was quoted, or wrapped in JSON, on one line."""
_RAISED = re.compile(r"raise (?P<type>(?:\w+\.)*[A-Z]\w*(?:Error|Exception))\b(?P<arguments>.*)")
_STRINGS = re.compile(r"f?([\"'])((?:(?!\1|\{).){1,300})(?:\1|$|\{[^\"']{0,80}\1?)")
_SHOWN_LINES = 12
_GARBLED_LINES = 12
_MIXED_NAMES = re.compile(r"(?:\w*(?:Error|Exception)){2,}\W")
"""The names of the exceptions of two processes, one in the other."""
_TWICE_SHOWN = re.compile(r"(.{4,400}?)\s+\1$")
"""A line of code that two processes wrote into one."""
_FRAME_PART = re.compile(r"^\s+\S|^[\s^~]+$")


def traceback_at(window: LogWindow, place: LogPlace) -> Failure | None:
    """Frames and exception of a traceback; lines of other processes in between are left out. What is raised as an
    object is removed ends nothing. That of a group goes on with the one of the first exception in it."""
    if window.is_under_ignored:
        return None
    lines = _lines_of(window)
    frames: list[str] = []
    is_remote = bool(RAY_TASK.search(window.line.text))  # Ray leaves out frames that several processes share
    for number, line in enumerate(lines):
        if frame := frame_in(line.text):
            frames.append(as_frame(frame))
            continue
        found = as_exception(line.text)
        if found and (frames or is_remote) and not _is_shown_code(lines, number):
            below = lines[number + 1 : number + 1 + LINES_BELOW]
            code = failing_line(lines[:number])
            outer = line.text.strip()
            if carried := carried_by(found, line, below):
                found, number = carried.inner, number + carried.below
                below = lines[number + 1 : number + 1 + LINES_BELOW]
            message = message_of(found, lines[max(0, number - 3) : number], below)
            more = (outer,) if carried else () if found.goes_on else tuple(lines_of_message(line, below))
            count, end = _extent(window, number)
            if found.kind == _LEFT and message in ("", "0", "None"):
                return None
            failure = Failure(found.kind, message, place, tuple(frames), code, count, chained=_is_chained(window))
            text = window.line.text
            quotes = _quoted_at(window, found, number, below)
            quoted = _is_quoted(text)
            return replace(
                failure,
                more=more,
                is_carried=bool(carried),
                warned=is_warning(text),
                quoted=quoted,
                end=end,
                quotes=quotes,
            )
        if TRACEBACK in line.text and _GROUP_HEAD not in window.line.text:
            lines = lines[:number]
            break
    if frames:
        kind, message = _shown_last(lines)
        if kind == HEADLESS and (says := _RAY_SAYS.search(window.line.text)):
            kind = says["type"]
        own = [number for number, line in enumerate(lines) if frame_in(line.text) or is_frame_part(line.text)]
        end = _extent(window, own[-1])[1]
        chained = _is_chained(window)
        return Failure(kind, message, place, tuple(frames), lines=len(lines), chained=chained, end=end, ends_open=True)
    return _garbled(lines, place)


def _is_quoted(text: str) -> bool:
    """Whether a traceback in a single line is what another program has printed: the words before it are no exception
    and no line of an error."""
    before, _head, after = text.partition(TRACEBACK)
    if len(_INNER_BREAK.split(after)) <= 2 or not re.search(r"[A-Za-z]", before):
        return False
    return as_exception(before) is None and level_of(text) not in ("ERROR", "CRITICAL", "FATAL")


def _quoted_at(window: LogWindow, found: Raised, number: int, below: Sequence[Line]) -> int:
    """The offset of the traceback with which the message of an exception goes on, so many lines down; -1 without."""
    head = 1 if below and _is_quoted_head(below[0], window.line) else quoted_head(found, below)
    return _extent(window, number + head)[1] if head else -1


def _is_quoted_head(line: Line, own: Line) -> bool:
    """Whether the head of a traceback, right under an exception, belongs to its message: it says more than a head, or
    the process is known by name, and no process ends twice."""
    return TRACEBACK in line.text and (
        (line.speaker.known and own.speaker.known) or not line.text.endswith(f"{TRACEBACK}:")
    )


def failing_line(lines: Sequence[Line]) -> str:
    """The code that a traceback shows under its last frame."""
    last = next((at for at in reversed(range(len(lines))) if frame_in(lines[at].text)), len(lines))
    shown = _code_of(lines[last + 1]) if last + 1 < len(lines) else ""
    twice = _TWICE_SHOWN.match(shown)
    shown = twice[1] if twice else shown
    return "" if CARETS.match(shown) or _RAISED.match(shown) else shown[:200]


def _garbled(lines: Sequence[Line], place: LogPlace) -> Failure | None:
    """A traceback into which several processes wrote at once: no frame can be read, but an exception's name can."""
    said = next((line.text.strip() for line in lines[:_GARBLED_LINES] if _MIXED_NAMES.match(line.text.strip())), None)
    if said is None:
        return None
    same = as_exception(said)  # of two processes that raise the same, it is known what they raise
    code = next((found[1] for line in lines[:_GARBLED_LINES] if (found := _TWICE_SHOWN.match(line.text.strip()))), "")
    return Failure(same.kind, same.message, place, code=code[:200]) if same else Failure(HEADLESS, said[:300], place)


def _shown_last(lines: Sequence[Line]) -> tuple[str, str]:
    """What a traceback without its last line would have said, where the code that it shows last tells it."""
    shown = [text for line in lines[-_SHOWN_LINES:] if (text := _code_of(line)) and not CARETS.match(text)]
    start = next((at for at in reversed(range(len(shown))) if _RAISED.match(shown[at])), None)
    if start is not None and not any(map(frame_in, shown[start:])):
        raised = _RAISED.match(shown[start])
        assert raised is not None
        said = "".join(text for _quote, text in _STRINGS.findall("".join([raised["arguments"], *shown[start + 1 :]])))
        return raised["type"], said[:300]
    code = shown[-1] if shown else ""
    return ("AssertionError", code[:300]) if code.startswith("assert ") else (HEADLESS, "")


def _code_of(line: Line) -> str:
    """The words of a line of a traceback without indentation and without the prefix of its logger."""
    return LEVELLED.sub("", line.text.strip(), count=1).strip()


def _lines_of(window: LogWindow) -> list[Line]:
    """The lines under the head of a traceback, without its logger's prefix; or those inside its own line."""
    inner = _INNER_BREAK.split(window.line.text.partition(TRACEBACK)[2])
    if len(inner) > 2:  # a frame and an exception
        return [Line(text.rstrip("'\"]}) "), window.line.speaker) for text in inner if text.strip(":'\" ")]
    lines = _own_below(window, MAX_LINES)
    goes_on = bool(lines) and (frame_in(lines[-1].text) is not None or is_frame_part(lines[-1].text))
    return _own_below(window, LONGEST_LINES) if goes_on else lines


def _own_below(window: LogWindow, count: int) -> list[Line]:
    lines: list[Line] = []
    for line in window.below(count):
        if same_voice(line, window.line):
            lines.append(line)
        elif TRACEBACK in line.text and lines and not lines[-1].speaker.known:
            break  # only the heads say who writes: what follows is of the other one
    prefix = prefix_of(lines)
    return [line._replace(text=without_prefix(prefix, line)) for line in lines] if prefix else lines


def _extent(window: LogWindow, number: int) -> tuple[int, int]:
    """Up to which line of the log, and which offset, a traceback goes whose exception is so many of its lines below."""
    own = (
        (count, offset)
        for count, (offset, line) in enumerate(window.placed_below(LONGEST_LINES), 2)
        if same_voice(line, window.line)
    )
    is_inside = len(_INNER_BREAK.split(window.line.text.partition(TRACEBACK)[2])) > 2
    return (number + 2, window.offset) if is_inside else next(islice(own, number, None))


def _is_shown_code(lines: Sequence[Line], number: int) -> bool:
    text = lines[number].text
    return number > 0 and bool(_FRAME.search(lines[number - 1].text)) and text[:1].isspace()


def _is_chained(window: LogWindow) -> bool:
    return any(CHAIN.search(line.text) for line in window.above(3))


def cut_traceback(window: LogWindow, place: LogPlace) -> Failure | None:
    """The frames with which an excerpt ends that has neither the head of its traceback nor its exception."""
    lines: list[Line] = []
    for line in (window.line, *window.above(MAX_LINES // 2)):
        if not same_voice(line, window.line):
            continue  # another process wrote between the lines
        if TRACEBACK in line.text:
            return None
        if not (frame_in(line.text) or is_frame_part(line.text)):
            break
        lines.insert(0, line)
    frames = tuple(as_frame(frame) for line in lines if (frame := frame_in(line.text)))
    return Failure(*_shown_last(lines), place, frames, lines=len(lines), ends_open=True) if frames else None


def is_frame_part(text: str) -> bool:
    """Whether a line is code or carets under a frame, behind a logger's prefix or not."""
    prefix = LEVELLED.match(text)
    return bool(prefix and prefix[0].endswith("  ")) or bool(_FRAME_PART.match(text[prefix.end() if prefix else 0 :]))


def frame_in(text: str) -> re.Match[str] | None:
    return _FRAME.search(text) or next((found for shape in _OTHER_FRAMES if (found := shape.match(text))), None)


def as_frame(found: re.Match[str]) -> str:
    return f"{found['file']}:{found['line'] or '?'} in {found['function'] or '?'}"


def prefix_of(lines: Iterable[Line]) -> re.Pattern[str] | None:
    """What a logger puts before each line of a traceback, as its first frame shows it; numbers in it may differ."""
    first = next((found for line in lines if (found := _FRAME.search(line.text))), None)
    before = first.string[: first.start()].removesuffix("  ") if first else ""
    return re.compile(re.sub(r"\d+", r"\\d+", re.escape(before))) if before.strip() else None


def without_prefix(prefix: re.Pattern[str] | None, line: Line) -> str:
    found = prefix.match(line.text) if prefix else None
    return line.text[found.end() :] if found else line.text


def same_voice(line: Line, other: Line) -> bool:
    """Whether two lines may be of one process; where only one of them has a pid, they are not."""
    one, two = line.speaker, other.speaker
    return not (one.known and two.known) or (bool(one.pid) == bool(two.pid) and one.may_be(two))
