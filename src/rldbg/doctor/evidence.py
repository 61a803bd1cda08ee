"""The result of a scan: matches of entries, unknown failures, and how each log ends."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from rldbg.core import Finding
from rldbg.doctor.cleaning import Speaker
from rldbg.doctor.clock import Stamp

_ASIDE = re.compile(
    r"(?:dashboard|monitor|log_monitor|autoscaler|ray_client_server|runtime_env_agent|event_)\w*\.(?:log|err|out)"
)


def is_aside(file: str) -> bool:
    """Whether a log belongs to one of Ray's side processes, whose troubles seldom harm a job."""
    return bool(_ASIDE.match(PurePath(file).name))


@dataclass(frozen=True, slots=True)
class LogPlace:
    """A place in the logs: file, line, process and time."""

    file: str
    line: int
    offset: int
    speaker: Speaker
    stamp: Stamp | None

    @property
    def order(self) -> tuple[str, int]:
        return self.file, self.offset

    @property
    def is_aside(self) -> bool:
        return is_aside(self.file)


@dataclass(frozen=True, slots=True)
class Hit:
    """A line that matches a signature of an entry."""

    entry: str
    place: LogPlace
    text: str
    matched: str
    """The part of the line that matched."""
    last_before: str = ""
    """The entry whose trouble must begin right after this line for it to count."""
    timeout_s: float | None = None
    """How long the process had waited: its culprit went silent that long before."""

    @property
    def since(self) -> Stamp | None:
        """When the trouble began, as far as the line tells."""
        if self.place.stamp is None or self.timeout_s is None:
            return self.place.stamp
        return self.place.stamp.minus(self.timeout_s)


def excerpt(text: str, matched: str, length: int) -> str:
    """A long line cut to a length, so that the words that matter are in it."""
    at = text.find(matched)
    if at < 0 or at + len(matched) <= length:
        return text[:length]
    begin = max(0, at - length // 4)
    return "… " + text[begin : begin + length]


PROGRAM_ENDED = "Error executing job with overrides"
"""With these words Hydra ends a program; the traceback follows."""
LAST_ERROR = "last error"
STILL_TRYING = "still trying"
"""The kinds of failures that only the end of a log tells."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A traceback or another sign of a crash, known or not."""

    kind: str
    """The exception's type, or the words of the crash."""
    message: str
    place: LogPlace
    frames: tuple[str, ...] = ()
    code: str = ""
    """The line of code that failed, where the traceback shows it."""
    lines: int = 1
    """How many lines of the log it takes up."""
    chained: bool = False
    """It was raised while another one was handled: that one is nearer to the cause."""
    warned: bool = False
    """Its own logger calls it a warning: the program meant to go on."""
    known_as: tuple[str, ...] = ()
    """The entries whose signature its own lines match."""
    count: int = 1
    last: LogPlace | None = None
    """Where it was seen for the last time, if more than once."""

    @property
    def headline(self) -> str:
        return ": ".join(filter(None, (self.kind, self.message)))


@dataclass(frozen=True, slots=True)
class LogEnd:
    """How one log ends, to tell which process fell silent first."""

    file: str
    speaker: Speaker
    last: Stamp | None
    lines: int
    bytes: int
    closing_line: int
    """The number of the last line that says something: the native stack under a message does not."""


@dataclass(slots=True)
class LogEvidence:
    """Everything found in all logs."""

    files: list[str] = field(default_factory=list)
    """The logs read so far."""
    hits: list[Hit] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    """How often each entry was seen, including lines beyond those kept."""
    failures: list[Failure] = field(default_factory=list)
    endings: list[Failure] = field(default_factory=list)
    """Lines at the ends of logs without exceptions with which programs end that failed."""
    clues: set[str] = field(default_factory=set)
    """Those `needs` and `excluded_by` expressions that occur."""
    ends: list[LogEnd] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    progress: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """For each log, places (offset, step) where training continued."""
    done: dict[str, int] = field(default_factory=dict)
    """For each log the last place where training says that it has done all its steps."""
    unfinished: dict[str, str] = field(default_factory=dict)
    """For each log that ends in the middle of a progress bar what the bar says."""
    served: dict[tuple[str, str], int] = field(default_factory=dict)
    """For each log and process the last place where a server says that it answered a request."""
    shut_down: dict[str, int] = field(default_factory=dict)
    """For each log the last place where an engine says that it ends: its server goes on answering, with nothing."""

    @property
    def read_only_aside(self) -> bool:
        """Whether nothing but logs of side processes was read: then they are what the user asks about."""
        return all(is_aside(file) for file in self.files)

    def survived(self, place: LogPlace) -> bool:
        """Whether training went on for at least two steps after a place in its log, began or was completed after it, or
        whether the server that wrote it has answered a request since."""
        ended = [f.place for f in self.failures if f.kind == PROGRAM_ENDED and f.place.file == place.file]
        if any(end.offset < place.offset for end in ended):
            return False  # what comes after it is late output of other processes
        served = self.served.get((place.file, place.speaker.pid), -1)
        if self.shut_down.get(place.file, -1) > place.offset:
            served = -1
        if max(self.done.get(place.file, -1), served) > place.offset:
            return True
        samples = self.progress.get(place.file, [])
        before = next((step for offset, step in reversed(samples) if offset < place.offset), None)
        after = [step for offset, step in samples if offset > place.offset]
        if before is None:
            return _counts_on(after)
        return max(after, default=before) >= before + 2

    def went_on_after(self, place: LogPlace) -> bool:
        """Whether any step was counted after a place that none before it had reached."""
        samples = self.progress.get(place.file, [])
        before = {step for offset, step in samples if offset < place.offset}
        after = {step for offset, step in samples if offset > place.offset}
        return len(after) > 1 and max(after) > max(before, default=min(after))


def _counts_on(steps: Sequence[int]) -> bool:
    """Whether three numbers in a row count on by one: settings that are printed have the word `steps` in them too."""
    each = [step for number, step in enumerate(steps) if number == 0 or steps[number - 1] != step]
    return any(each[at + 2] == each[at + 1] + 1 == each[at] + 2 for at in range(len(each) - 2))
