"""The lines around a place in a chunk, cleaned, and joined again where a terminal or a logger had wrapped them."""

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import NamedTuple

from rldbg.doctor.logs.cleaning import Line, clean
from rldbg.doctor.logs.sources import MARGIN_BYTES, Chunk
from rldbg.doctor.logs.standing import MODEL_TEXT_LINES, begins_model_text, ends_model_text, is_line_of_model
from rldbg.doctor.search.engines import Engine

_LINE_BYTES = 4096
"""Longer physical lines are looked at around the place only."""
_WRAPPED_FROM = 48
"""A line shorter than this was not wrapped by anything."""
RECORD_START = re.compile(
    r"\[?[\d-]{4,10}[ T-]\d\d:"
    r"|\s*(?:(?:INFO|WARN|WARNING|ERROR|DEBUG|CRITICAL|FATAL)\b|\[[IWEF]\d{4} |Traceback \(most|"
    r"File \"|[\w.]+(?:Error|Exception): |[\w.-]+:\d+:\d+ \[)"
)
_CODE_ABOVE = re.compile(r'^\s*File "[^"]+", line \d+')
_FRAME_LINE = re.compile(r'^(?P<prefix>.{0,120}?) {0,2}File "[^"]+", line \d+')
_FLAT_FRAME = re.compile(r'^(?P<prefix>\S.{0,120}?\S ?)File "[^"]+", line \d+')
_AS_EXCEPTION = re.compile(r"[\w.]+(?:: |$)|Traceback |\W*File ")
_CODE = re.compile(r"^(?P<prefix>(?:.{0,120}?[\])|:])?) {4,}\S")
_SHOWN_LINES = 8
_RAISES = re.compile(r"(?:.{0,120}?[\])|:])?\s*raise [A-Za-z_][\w.]*\(")
_IMPORTS = re.compile(r"(?:.{0,120}?[\])|:])?\s*from [A-Za-z_.][\w.]* import \(?[\w, ]*\)?$")
_TEST_NAME = re.compile(r"\s*(?:[A-Z]+ |[\d.]+s (?:call|setup|teardown) +|\[gw\d+\] .{0,20})?[\w/.-]+\.py::\w+")
IGNORED = re.compile(
    r"Exception ignored (?:in|while|on)\b|Error in (?:atexit\._run_exitfuncs|sys\.(?:unraisable|excepthook))"
    r"|Failed to load plugin "
)
"""Above an exception after which the program goes on, or is at its end anyway: while an object is removed, in what runs
at exit, while an engine loads plug-ins."""
_IGNORED_WITHIN = 4
"""Lines of other processes may stand between."""
_TRACEBACK_LINES = 40
_HEAD = "Traceback (most recent call last)"
CARETS = re.compile(r"^[\s^~]+$")


class Joined(NamedTuple):
    """Lines put together again, and which part of the text is the place's own line."""

    text: str
    begin: int
    end: int


@dataclass(frozen=True)
class LogWindow:
    """A place in a chunk, and the text around it."""

    chunk: Chunk
    at: int

    @cached_property
    def bounds(self) -> tuple[int, int]:
        """The physical line of the place (a carriage return ends a line too), cut when it is very long."""
        data = self.chunk.data
        low, high = max(0, self.at - _LINE_BYTES), min(len(data), self.at + _LINE_BYTES)
        start = max(data.rfind(b"\n", low, self.at), data.rfind(b"\r", low, self.at)) + 1 or low
        ends = [end for end in (data.find(b"\n", self.at, high), data.find(b"\r", self.at, high)) if end >= 0]
        return start, min(ends, default=high)

    @cached_property
    def line(self) -> Line:
        start, end = self.bounds
        return clean(self.chunk.data[start:end])

    def raw_above(self) -> Iterator[bytes | bytearray]:
        """The lines above as they are, the nearest first; blank ones left out."""
        data, end = self.chunk.data, self.bounds[0] - 1
        low = max(0, end - MARGIN_BYTES)
        while end > low:
            start = max(data.rfind(b"\n", low, end), data.rfind(b"\r", max(low, end - _LINE_BYTES), end)) + 1
            if start <= low and low > 0:
                return
            raw = data[max(start, end - _LINE_BYTES) : end]
            if raw.strip():
                yield raw
            end = start - 1

    def raw_below(self) -> Iterator[bytes | bytearray]:
        """The lines below as they are, the nearest first; blank ones left out."""
        return (raw for _start, raw in self._starts_below())

    def placed_below(self, count: int) -> Iterator[tuple[int, Line]]:
        """Up to `count` lines below with their offsets in the log."""
        return ((self.chunk.offset + start, clean(raw)) for start, raw in islice(self._starts_below(), count))

    def _starts_below(self) -> Iterator[tuple[int, bytes | bytearray]]:
        data, start = self.chunk.data, self.bounds[1] + 1
        high = min(len(data), start + MARGIN_BYTES // 2)
        while start < high:
            ends = (data.find(b"\n", start, high), data.find(b"\r", start, start + _LINE_BYTES))
            end = min((at for at in ends if at >= 0), default=high)
            raw = data[start : min(end, start + _LINE_BYTES)]
            if raw.strip():
                yield start, raw
            start = end + 1

    def above(self, count: int) -> Iterator[Line]:
        """Up to `count` lines above, the nearest first, cleaned one by one as they are asked for."""
        return map(clean, islice(self.raw_above(), count))

    def below(self, count: int) -> Iterator[Line]:
        """Up to `count` lines below, the nearest first, cleaned one by one as they are asked for."""
        return map(clean, islice(self.raw_below(), count))

    @cached_property
    def joined(self) -> "Joined":
        """The place's line with the lines it was wrapped over, put together again without a separator.

        The expressions take a missing space for a space, so a blank lost at the fold does no harm.
        """
        before, current = "", self.line.text
        for previous in self.above(4):
            if not _folds(previous, current, self.line):
                break
            before, current = previous.text + before.lstrip(), previous.text
        after, current = "", self.line.text
        for following in self.below(6):
            if not _folds(Line(current, self.line.speaker), following.text, self.line, following):
                break
            after, current = after + following.text.lstrip(), following.text
        own = self.line.text.lstrip() if before else self.line.text
        return Joined(before + own + after, len(before), len(before) + len(own))

    @cached_property
    def is_code(self) -> bool:
        """Whether the line is source code that a traceback shows, not something that happened; also the second line of
        a call, and behind the prefix of a logger."""
        if _RAISES.match(self.line.text) or _IMPORTS.match(self.line.text):
            return True
        nearest = next((line for line in self.above(3) if not CARETS.match(line.text)), None)
        if nearest is not None and _CODE_ABOVE.match(nearest.text) and not RECORD_START.match(self.line.text):
            return not _indent(nearest.text) or _indent(self.line.text) > _indent(nearest.text)
        if nearest is not None and self._is_under_flat_frame(nearest.text):
            return True
        own = _CODE.match(self.line.text)
        if own is None:
            return False
        for line in self.above(_SHOWN_LINES):
            if frame := _FRAME_LINE.match(line.text):
                is_of_prefix = _numberless(frame["prefix"]) == _numberless(own["prefix"])
                return is_of_prefix and (bool(frame["prefix"].strip()) or _indent(line.text) < _indent(self.line.text))
            if not _CODE.match(line.text) and not CARETS.match(line.text):
                return False
        return False

    def _is_under_flat_frame(self, above: str) -> bool:
        """Whether the line is the code under a frame that lost its indentation behind the prefix of a logger: it has
        the same prefix, and no exception follows that."""
        frame = _FLAT_FRAME.match(above)
        if frame is None:
            return False
        prefix = re.match(re.sub(r"\d+", r"\\d+", re.escape(frame["prefix"])), self.line.text)
        return prefix is not None and not _AS_EXCEPTION.match(self.line.text, prefix.end())

    @cached_property
    def is_ignored(self) -> bool:
        """Whether the line ends a traceback that Python prints and goes on, as when an object is removed; or is such an
        exception alone."""
        own = (line for line in self.above(_TRACEBACK_LINES) if line.speaker.may_be(self.line.speaker))
        if not self._is_framed and self.is_under_ignored:
            return True
        for line in own:
            if _HEAD in line.text:
                above = next(own, None)
                return above is not None and bool(IGNORED.search(above.text))
            if not (_FRAME_LINE.match(line.text) or _CODE.match(line.text) or CARETS.match(line.text)):
                return False
        return False

    @cached_property
    def is_under_ignored(self) -> bool:
        """Whether the nearest line above, of the same process, says that the exception under it is ignored."""
        near = self.above(_IGNORED_WITHIN)
        own = next((line for line in near if line.speaker.may_be(self.line.speaker)), None)
        return own is not None and bool(IGNORED.search(own.text))

    @property
    def _is_framed(self) -> bool:
        return _HEAD in self.line.text or bool(_FRAME_LINE.match(self.line.text))

    @cached_property
    def is_test_name(self) -> bool:
        """Whether the line begins with the name of a test, whose parameters may quote any failure."""
        return bool(_TEST_NAME.match(self.line.text))

    @cached_property
    def is_model_text(self) -> bool:
        """Whether the line is part of a prompt or a response that a trainer prints."""
        if begins_model_text(self.line.text) or is_line_of_model(self.line.text):
            return True
        for line in self.above(MODEL_TEXT_LINES):
            if line.speaker.pid == self.line.speaker.pid and begins_model_text(line.text):
                return True
            if ends_model_text(line.text):
                return False
        return False

    @property
    def is_report(self) -> bool:
        """Whether the line says what happened: no code, no test's name, no text of a model, nothing ignored."""
        return not (self.is_code or self.is_test_name or self.is_model_text or self.is_ignored)

    @property
    def line_number(self) -> int:
        return self.chunk.first_line + self.chunk.data.count(b"\n", 0, self.bounds[0])

    @property
    def offset(self) -> int:
        return self.chunk.offset + self.bounds[0]


def _indent(text: str) -> int:
    """How many blanks a line begins with: of a traceback in a box, as pip draws it, also its exception has some, and
    fewer than the frame above it."""
    return len(text) - len(text.lstrip())


def _numberless(prefix: str) -> str:
    return re.sub(r"\d+", "0", prefix).strip()


def _folds(upper: Line, lower: str, place: Line, lower_line: Line | None = None) -> bool:
    """Whether a line break between two lines was made by wrapping."""
    if len(upper.text) < _WRAPPED_FROM or RECORD_START.match(lower) or _CODE_ABOVE.match(upper.text):
        return False
    other = lower_line.speaker if lower_line else upper.speaker
    return not other.known or not place.speaker.known or other == place.speaker


FOLDED_UP_TO_BYTES = 4 << 20
_EDGE = 40
_PREFIX_STARTS = b"([\x1b{"


def straddling(chunk: Chunk, engine: Engine) -> list[tuple[int, int]]:
    """(place, anchor) of anchors that a line break cuts in two, found by joining the ends of neighbouring lines.

    Pasted logs are small, so only logs of a few megabytes are searched this way; in larger ones an anchor has a second
    piece elsewhere in the line.
    """
    data = chunk.data
    places: list[int] = []
    starts: list[int] = []
    borders: list[int] = []
    pieces: list[bytes | bytearray] = []
    size = 0
    for start, end in _long_lines(data, chunk.begin, chunk.end):
        tail = data[max(start, end - _EDGE) : end].rstrip(b" \r")
        head = _head(data, end + 1)
        for glue in (b"", b" "):
            piece = tail + glue + head
            places.append(end - 1)
            starts.append(size)
            borders.append(size + len(tail))
            pieces.append(piece)
            size += len(piece) + 1
    found = []
    for at, anchor in engine.find(b"\n".join(pieces)) if pieces else ():
        number = bisect_right(starts, at) - 1
        if at < borders[number]:
            found.append((places[number], anchor))
    return found


def _long_lines(data: bytes | bytearray, begin: int, end: int) -> list[tuple[int, int]]:
    """The lines that are long enough to have been wrapped and have another one after them."""
    lines = []
    start = data.rfind(b"\n", 0, begin) + 1
    while (stop := data.find(b"\n", start)) != -1 and start < end:
        if stop - start >= _WRAPPED_FROM and stop + 1 < len(data):
            lines.append((start, stop))
        start = stop + 1
    return lines


def _head(data: bytes | bytearray, start: int) -> bytes | bytearray:
    """The first words of a line, without indentation and without the prefix that a launcher repeats."""
    raw = data[start : start + 200].split(b"\n", 1)[0].lstrip()
    if raw[:1] and raw[:1] in _PREFIX_STARTS:
        raw = clean(raw).text.lstrip().encode()
    return raw[:_EDGE]
