"""Where a line of a log stands: file, line, process and time."""

import re
from itertools import chain, islice

from rldbg.doctor.logs.cleaning import clean
from rldbg.doctor.logs.clock import Stamp, stamp_in, stated_year
from rldbg.doctor.logs.evidence import LogPlace
from rldbg.doctor.logs.sources import LogSource
from rldbg.doctor.logs.window import LogWindow

_CLOCK_SHAPE = re.compile(rb"\d\d:\d\d:\d\d")
_LINES_ABOVE = 25
_LINES_BELOW = 8


class LogPlaces:
    """The places of one log; lines without a time have that of the nearest line of the same process."""

    def __init__(self, source: LogSource) -> None:
        self.source = source
        self._year, self._year_is_guessed = 1970, True

    def begin(self, data: bytes | bytearray, year: int) -> int:
        """Takes the year that the log states, or else the one given; gives it back where it is stated."""
        own = stated_year(data)
        stated = own or year
        self._year, self._year_is_guessed = stated or self.source.year, not stated
        return own

    def at(self, window: LogWindow) -> LogPlace:
        return LogPlace(
            self.source.name,
            window.line_number,
            window.offset,
            window.line.speaker.filled_from(self.source.speaker),
            self._stamp(window),
        )

    def _stamp(self, window: LogWindow) -> Stamp | None:
        if own := self.stamp_of(window.line.text):
            return own
        for raw in chain(islice(window.raw_above(), _LINES_ABOVE), islice(window.raw_below(), _LINES_BELOW)):
            if not _CLOCK_SHAPE.search(raw):
                continue
            line = clean(raw)
            if line.speaker.pid == window.line.speaker.pid and (stamp := self.stamp_of(line.text)):
                return stamp
        return None

    def stamp_of(self, text: str) -> Stamp | None:
        return stamp_in(text, year=self._year, guessed=self._year_is_guessed)
