"""How a log ends: in the middle of a traceback or a bar, with the end of a program, or while one still tries."""

import re
from collections.abc import Iterator, Sequence
from itertools import islice

from rldbg.doctor.logs.cleaning import clean
from rldbg.doctor.logs.clock import Stamp
from rldbg.doctor.logs.endings import ENDING_LINES, is_ending, is_gone, is_handled, is_of_a_tool, is_outlived
from rldbg.doctor.logs.evidence import LAST_ERROR, STILL_TRYING, EndlessWait, Failure
from rldbg.doctor.logs.failures import is_error_line, skeleton
from rldbg.doctor.logs.log_places import LogPlaces
from rldbg.doctor.logs.sources import Chunk
from rldbg.doctor.logs.standing import is_tried_again, level_of
from rldbg.doctor.logs.tracebacks import cut_traceback
from rldbg.doctor.logs.window import LogWindow

_CLOSING_LINES = 3
_BAR = re.compile(r"(?<![\d.])(?P<done>[\d.]{1,9}[kMGT]?)/(?P<total>[\d.]{1,9}[kMGT]?) \[\d\d:\d\d")
"""How progress bars count items, and bytes."""
_WAITS = re.compile(r"(?i)\b(?:wait(?:ing|s)?|polling|not (?:yet )?ready|ready ?[=:] ?false)\b")
_NOTHING_CAME = re.compile(
    r"(?i)\b(?:no|nothing|not|still (?:waiting|blocked|stuck|pending))\b.{0,80}\b(?:in|for|after|since) (?:the last )?"
    r"\d+(?:\.\d+)? ?(?:s|secs?|seconds|min|minutes)\b"
)
_IDLE = re.compile(r"(?i)\b(?:requests?|jobs?|prompts?|traffic|idle|clients?|new data|work items?)\b")
"""What a server lacks that has nothing to do."""
_FOR_DEBUGGER = re.compile(r"(?i)\bwaiting for (?:a |the )?(?:debugger|debugpy)\b")
_NATIVE_STACK = re.compile(r"frame #\d+: |Exception raised from \w+ at |\s*$")
_FATAL = ("CRITICAL", "FATAL")
_LISTED_LINES = 400
_STAMPED_BYTES = 65536
_STAMPED_LINES = 400


class LogTail:
    """The last part of one log."""

    def __init__(self, chunk: Chunk | None, places: LogPlaces) -> None:
        self._chunk = chunk
        self._places = places

    def _backwards(self) -> Iterator[LogWindow]:
        """The lines, the last one first."""
        rest = self._chunk.data.rstrip() if self._chunk is not None else b""
        while self._chunk is not None and rest:
            window = LogWindow(self._chunk, len(rest) - 1)
            yield window
            rest = rest[: window.bounds[0]].rstrip()

    def cut_off(self) -> Failure | None:
        """The traceback in the middle of which the log ends."""
        end = next(self._backwards(), None)
        return cut_traceback(end, self._places.at(end)) if end is not None else None

    def endings(self, since: int) -> Iterator[Failure]:
        """The lines from a line on with which a failed program ends, or one that still tries."""
        last = [each for each in islice(self._backwards(), ENDING_LINES) if each.line_number >= since]
        in_order = [window.line for window in reversed(last)]
        ends = [
            (LAST_ERROR, window)
            for number, window in enumerate(reversed(last))
            if is_ending(window.line)
            and window.is_report
            and not is_of_a_tool(in_order, number)
            and not is_outlived(in_order, number)
        ]
        closing = [window for window in last[:_CLOSING_LINES] if is_error_line(window.line)]
        ends += [(LAST_ERROR, window) for window in closing if not is_handled(window.line.text)]
        ends += [
            (LAST_ERROR, window)
            for number, window in enumerate(reversed(last))
            if number >= len(last) - _CLOSING_LINES and window.is_report and is_gone(in_order, number)
        ]
        ends += [(LAST_ERROR, window) for window in self._above_last_list() if window.line_number >= since]
        ends += [(STILL_TRYING, window) for window in _still_trying(last)]
        for kind, window in ends:
            said = window.line.text.strip()[:300]
            more = tuple(_fatal_above(last)) if kind == STILL_TRYING else ()
            yield Failure(kind, said, self._places.at(window), more=more, is_crash=is_ending(window.line))

    def _above_last_list(self) -> Iterator[LogWindow]:
        """The error whose list of items, indented under its colon, is all that the log ends with."""
        last = islice(self._backwards(), _LISTED_LINES)
        head = next((window for window in last if not window.line.text[:1].isspace()), None)
        if head is not None and head.line.text.endswith(":") and is_error_line(head.line):
            yield head

    def waiting(self, file: str) -> Iterator[EndlessWait]:
        """What the program says that it waits for, if that comes again and again among the last lines."""
        last = list(islice(self._backwards(), ENDING_LINES))
        by_shape: dict[str, list[LogWindow]] = {}
        for window in last:
            if _WAITS.search(window.line.text):
                by_shape.setdefault(skeleton(window.line.text), []).append(window)
        for same in by_shape.values():
            if len(same) > 1:
                yield EndlessWait(file, same[0].line.text.strip(), same[-1].offset, same[0].offset)

    def unfinished(self) -> str:
        """The progress bar in the middle of which the log ends."""
        bars = (_BAR.search(window.line.text) for window in islice(self._backwards(), _CLOSING_LINES))
        last = next((bar for bar in bars if bar), None)
        return f"{last['done']}/{last['total']}" if last and last["done"] != last["total"] else ""

    @property
    def closing_line(self) -> int:
        """The number of the last line that says something: the native stack under a message does not."""
        return next((each.line_number for each in self._backwards() if not _NATIVE_STACK.match(each.line.text)), 0)

    @property
    def lines(self) -> int:
        return self._chunk.first_line + self._chunk.data.count(b"\n") if self._chunk is not None else 0

    @property
    def last_stamp(self) -> Stamp | None:
        data = bytes(self._chunk.data[-_STAMPED_BYTES:]) if self._chunk is not None else b""
        stamps = (self._places.stamp_of(clean(raw[:600]).text) for raw in reversed(data.splitlines()[-_STAMPED_LINES:]))
        return next((stamp for stamp in stamps if stamp), None)


def _fatal_above(last: Sequence[LogWindow]) -> Iterator[str]:
    """The nearest line that its own logger calls fatal: a program may quote what another one tries again."""
    texts = (window.line.text.strip() for window in last)
    yield from islice((text[:300] for text in texts if level_of(text) in _FATAL), 1)


def _still_trying(last: Sequence[LogWindow]) -> list[LogWindow]:
    """The line with which a log ends, if it says that something is tried again and a line above says the same; or if
    the line right above says too that nothing came for so long; or if it waits for a debugger."""
    if not last or not last[0].is_report:
        return []
    text = last[0].line.text
    said = [skeleton(window.line.text) for window in last]
    is_stuck = _NOTHING_CAME.search(text) and not _IDLE.search(text) and said[:1] == said[1:2]
    return [last[0]] if _FOR_DEBUGGER.search(text) or is_stuck or (is_tried_again(text) and said[0] in said[1:]) else []
