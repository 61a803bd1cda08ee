"""When a line was written, in the dialects of the programs whose logs we read.

A time is seconds; only times of the same zone kind (with or without a stated offset) are compared. Stamps without a
year take it from other stamps of their log, else of the other logs, else from the file's own date. Kernel uptime and
bare clock times say nothing across files and are ignored.
"""

import calendar
import re
from datetime import UTC, datetime, timedelta, timezone
from typing import NamedTuple

_MONTHS = {name: number for number, name in enumerate(calendar.month_abbr) if name}

_CLOCK = r"(?P<h>[01]\d|2[0-3]):(?P<mi>[0-5]\d):(?P<s>[0-5]\d)(?:[.,](?P<f>\d{1,9}))?"
_ZONE = r"(?P<z>Z|\s?UTC|\s?[+-]\d\d:?\d\d(?!\d))?"
_DIALECTS = tuple(
    re.compile(pattern)
    for pattern in (
        # 2025-12-17 14:10:28,123   2025-12-17T14:10:28.123Z   2025/12/17 14:10:28   2025年12月17日 14:10:28
        rf"(?P<y>20\d\d)[-/年](?P<mo>\d\d?)[-/月](?P<d>\d\d?)日?[ T_]{_CLOCK}{_ZONE}",
        # E1023 02:44:30.941975491   E218 10:48:25.033625188   (glog: month and day; torch writes no leading zero)
        rf"(?<![0-9A-Za-z])[IWEF](?P<mo>1[0-2]|0?[1-9])(?P<d>[0-3]\d) {_CLOCK}",
        # 12/17/2025 14:10:28
        rf"(?P<mo>[01]\d)/(?P<d>[0-3]\d)/(?P<y>20\d\d),? {_CLOCK}",
        # INFO 06-30 13:53:19
        rf"(?<![\d-])(?P<mo>[01]\d)-(?P<d>[0-3]\d) {_CLOCK}",
        # [Tue Nov 15 10:00:00 2026]   (dmesg -T)
        rf"[A-Z][a-z]{{2}} (?P<mon>[A-Z][a-z]{{2}}) +(?P<d>\d\d?) {_CLOCK} (?P<y>20\d\d)",
        # Nov 15 10:00:00   (syslog)
        rf"(?<!\w)(?P<mon>[A-Z][a-z]{{2}}) +(?P<d>\d\d?) {_CLOCK}",
    )
)


_TIMEOUT = re.compile(
    r"Timeout\(ms\)\s?=\s?(?P<ms>\d+)|[Tt]imed out (?:waiting|after) (?P<ms2>\d+) ?(?:ms|milliseconds)"
    r"|ran for (?P<ms3>\d+) milliseconds before timing out|[Tt]imed out after (?P<s>\d+) ?s(?:econds)?\b"
    r"|(?:[Ff]ailed to|[Cc]annot|[Cc]ould not) .{0,400}within (?P<s2>\d+) seconds"
)
_YEAR = re.compile(rb"\b(20\d\d)[-/](?:0[1-9]|1[0-2])[-/][0-3]\d[ T_][0-2]\d:[0-5]\d:")
_HEAD_BYTES = 1 << 16


def stated_year(head: bytes | bytearray) -> int:
    """The year of the first full date at the beginning of a log, or 0."""
    found = _YEAR.search(head, 0, _HEAD_BYTES)
    return int(found[1]) if found else 0


class Stamp(NamedTuple):
    """A moment, and whether the log stated its offset from UTC and its year."""

    seconds: float
    zoned: bool
    dated: bool = True
    """Off where the year is only that of the file: it is not shown."""

    def comparable(self, other: "Stamp") -> bool:
        return self.zoned == other.zoned

    def minus(self, seconds: float) -> "Stamp":
        return self._replace(seconds=self.seconds - seconds)

    def __str__(self) -> str:
        day = "%Y-%m-%d" if self.dated else "%m-%d"
        return datetime.fromtimestamp(self.seconds, UTC).strftime(f"{day} %H:%M:%S") + (" UTC" if self.zoned else "")


def stamp_in(text: str, *, year: int, guessed: bool = False) -> Stamp | None:
    """The first time stated in a line, or None. `year` completes stamps that have none; it may be guessed."""
    head = text[:400]
    if ":" not in head:
        return None
    found = [(m.start(), m) for dialect in _DIALECTS if (m := dialect.search(head))]
    for _start, match in sorted(found, key=lambda item: item[0]):
        if stamp := _to_stamp(match.groupdict(), year):
            return stamp if match.groupdict().get("y") else stamp._replace(dated=not guessed)
    return None


def _to_stamp(parts: dict[str, str | None], year: int) -> Stamp | None:
    month = _MONTHS.get(parts["mon"] or "") if parts.get("mon") else int(parts["mo"] or 0)
    if not month:
        return None
    zone = _offset(parts.get("z"))
    try:
        moment = datetime(
            int(parts.get("y") or year),
            month,
            int(parts["d"] or 0),
            int(parts["h"] or 0),
            int(parts["mi"] or 0),
            int(parts["s"] or 0),
            tzinfo=zone or UTC,
        )
    except ValueError:
        return None
    fraction = float(f"0.{parts['f']}") if parts.get("f") else 0.0
    return Stamp(moment.timestamp() + fraction, zone is not None)


def _offset(text: str | None) -> timezone | None:
    if not text:
        return None
    text = text.strip()
    if text in ("Z", "UTC"):
        return UTC
    digits = text[1:].replace(":", "")
    offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return timezone(-offset if text[0] == "-" else offset)


def stated_wait_s(text: str) -> float | None:
    """How long a process had waited before the timeout, according to a line."""
    found = _TIMEOUT.search(text)
    if found is None:
        return None
    milliseconds = found["ms"] or found["ms2"] or found["ms3"]
    return int(milliseconds) / 1000 if milliseconds else float(found["s"] or found["s2"])
