"""The result of a scan: matches of entries, unknown failures, and how each log ends."""

import re
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import NamedTuple

from rldbg.core import Finding
from rldbg.doctor.logs.cleaning import Speaker
from rldbg.doctor.logs.clock import Stamp
from rldbg.doctor.logs.progress import LogProgress

_ASIDE = re.compile(
    r"(?:dashboard|monitor|log_monitor|autoscaler|ray_client_server|runtime_env_agent|event_)\w*\.(?:log|err|out)"
)

_OF_WORKER = re.compile(r"(?:python-core-)?worker-|(?:raylet|gcs_server|io_worker)\b")


def is_of_worker(file: str) -> bool:
    """Whether a log is of a process that Ray starts and ends, and not of a driver."""
    return bool(_OF_WORKER.match(PurePath(file).name)) or is_aside(file)


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


def shortened(text: str, length: int) -> str:
    """The beginning of a text, with a sign where it is cut, and not within a path if that can be helped."""
    return text if len(text) <= length else f"{text[: length - 2].rstrip()} …"


def excerpt(text: str, matched: str, length: int) -> str:
    """A long line cut to a length, so that the words that matter are in it."""
    at = text.find(matched)
    if at < 0 or at + len(matched) <= length:
        return text[:length]
    begin = max(0, at - length // 4)
    return "… " + text[begin : begin + length]


class RunStart(NamedTuple):
    """A place where a run may begin, and by which header; without one a supervisor says so."""

    offset: int
    line: int
    header: str
    after_silence: bool = False
    """Whether the first line of the log comes again there, after a silence that was longer than all that it ended."""
    program: str = ""
    """The script that says there, before it does anything, that it cannot run: its arguments are wrong, or its code."""
    refusal: str = ""


class EndlessWait(NamedTuple):
    """What a program says again and again among the last lines of a log that it waits for, and where."""

    file: str
    said: str
    since: int
    until: int


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
    cut: bool = False
    """The head of its traceback is not in the log: more frames may have stood above the first one."""
    ends_open: bool = False
    """Its last lines are not in the log: the last frame shown need not be the one that raised it."""
    chained: bool = False
    """It was raised while another one was handled: that one is nearer to the cause."""
    is_carried: bool = False
    """Another exception shows it in its message: the frames are of that one."""
    is_crash: bool = False
    """It is no exception, but the report that a process ended."""
    warned: bool = False
    """Its own logger calls it a warning: the program meant to go on."""
    quoted: bool = False
    """It stands in one line, behind words that do not report a failure: the output of another program."""
    known_as: tuple[str, ...] = ()
    """The entries whose signature its own lines match."""
    count: int = 1
    last: LogPlace | None = None
    """Where it was seen for the last time, if more than once."""
    end: int = -1
    """The offset of its last line, where others may have written between its lines."""
    last_end: int = -1
    quotes: int = -1
    """The offset of the traceback with which its message goes on: that one is what happened."""
    more: tuple[str, ...] = ()
    """The lines under it that belong to its message."""

    @property
    def ends(self) -> tuple[LogPlace, ...]:
        """Its last line, each time that it was seen, as far as that is kept."""
        first = replace(self.place, offset=max(self.place.offset, self.end))
        return (first, replace(self.last, offset=max(self.last.offset, self.last_end))) if self.last else (first,)

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
    """Those `needs`, `excluded_by` and `traces` expressions that occur."""
    ends: list[LogEnd] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    progress: dict[str, LogProgress] = field(default_factory=dict)
    """For each log where training continued."""
    dealt_with: set[tuple[str, int]] = field(default_factory=set)
    """Logs and offsets of lines under which the program says how it goes on."""
    resumed: set[tuple[str, int]] = field(default_factory=set)
    """Logs and offsets of exceptions after which the process does again what it did before."""
    starts: dict[str, list[RunStart]] = field(default_factory=dict)
    """For each log where runs of the program may begin."""
    waiting: list[EndlessWait] = field(default_factory=list)
    """What programs say again and again at the ends of their logs that they wait for."""
    unfinished: dict[str, str] = field(default_factory=dict)
    """For each log that ends in the middle of a progress bar what the bar says."""

    @property
    def read_only_aside(self) -> bool:
        """Whether nothing but logs of side processes was read: then they are what the user asks about."""
        return all(is_aside(file) for file in self.files)

    @property
    def done(self) -> frozenset[str]:
        """The logs in which trainers say that all steps are done."""
        return frozenset(file for file, progress in self.progress.items() if progress.done)
