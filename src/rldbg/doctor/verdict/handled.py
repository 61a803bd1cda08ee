"""Exceptions of other processes that a run went on after, until its program ended by an exception of its own.

The crash files of a run say what ended its program, and when. An exception that a process raised before, which the
program started or called, is the cause of that end only if the end says so, or can follow from it: it carries its
words, or speaks of something else that had failed. Otherwise it was handled.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from rldbg.core import Finding, Severity, redact_text
from rldbg.doctor.logs.evidence import Failure, LogEvidence, LogPlace
from rldbg.doctor.logs.exception_lines import as_exception
from rldbg.doctor.logs.failures import is_wrapper
from rldbg.doctor.logs.run_evidence import Crash, crash_speaker, crashes_in, is_crash_file
from rldbg.doctor.logs.survival import holds, is_closing
from rldbg.doctor.verdict.bystanders import can_follow
from rldbg.doctor.verdict.first_error import is_of_peer

_APART_S = 1.0
"""A program that ends this shortly after another process had failed may have ended because of it."""
_SHOWN = 5


def without_handled(evidence: LogEvidence, files: Sequence[Path]) -> tuple[LogEvidence, list[Finding]]:
    """The evidence without what was handled, and the finding that tells it."""
    crashes = crashes_in([file for file in files if is_crash_file(file)])
    handled = [crash for crash in crashes if any(_was_handled(crash, end) for end in crashes if end.is_end)]
    if not handled:
        return evidence, []
    kept = {headline for crash in crashes if crash not in handled for headline in crash.headlines}
    gone = {headline for crash in handled for headline in crash.headlines} - kept
    spoken = {crash.file for crash in handled}
    dropped = [each for each in evidence.failures if each.place.file in spoken or _headline(each) in gone]
    failures = [each for each in evidence.failures if each not in dropped]
    hits = [
        hit
        for hit in evidence.hits
        if hit.place.file not in spoken and not any(holds(failure, hit) for failure in dropped)
    ]
    return replace(evidence, failures=failures, hits=hits), [_told(handled)]


def _headline(failure: Failure) -> str:
    return f"{failure.kind.rpartition('.')[2]}: {failure.message.partition(chr(10))[0]}".rstrip(": ")


def _was_handled(crash: Crash, end: Crash) -> bool:
    """Whether a program that had started or called the process of a crash ended later by something else."""
    if end.time - crash.time < _APART_S or (end.host, end.pid) == (crash.host, crash.pid):
        return False
    is_child = end.host == crash.host and end.pid in crash.ancestors
    if not is_child and not (end.is_driver and crash.is_of_ray):
        return False
    words = "\n".join(f"{kind}: {message}" for kind, message in end.errors)
    return not any(headline in words for headline in crash.headlines) and _stands_by_itself(end)


def _stands_by_itself(end: Crash) -> bool:
    """Whether the first exception of an end says what was wrong, and that is nothing that another failure brings about;
    what Ray passes on to a caller is the last exception in its words."""
    kind, message = end.errors[-1]
    place = LogPlace(end.file, 1, 0, crash_speaker(Path(end.file)), None)
    frames = tuple(f"? in {function}" for function in end.functions)
    error = Failure(kind, message, place, frames)
    if is_wrapper(error):
        passed_on = [found for line in message.splitlines() if (found := as_exception(line)) is not None]
        if not passed_on:
            return False
        error = Failure(passed_on[-1].kind, passed_on[-1].message, place)
    return not (can_follow(error) or is_of_peer(error) or is_closing(error))


def _told(handled: Sequence[Crash]) -> Finding:
    lines = [
        f"{datetime.fromtimestamp(crash.time):%H:%M:%S} {crash.who} pid {crash.pid}: {crash.headlines[0][:200]}: "
        f"{crash.file}"
        for crash in handled
    ]
    more = [f"{len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    cause = "the program went on after them, and ended later by another exception"
    told = tuple(redact_text(line) for line in (*lines[:_SHOWN], *more))
    return Finding("raised-earlier", Severity.INFO, "raised earlier and handled", told, cause, ())
