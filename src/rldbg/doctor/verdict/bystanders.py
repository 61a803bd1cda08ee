"""Known failures that did not end the program: it went on after them, or they came after its end.

An exception that nothing caught, and that says itself what was wrong, is the end of its process. A known failure of the
same process that is no part of it was handled, or followed; it can still have led to it, so it is a candidate.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from rldbg.doctor.clues.conditions import asks_result_of_call
from rldbg.doctor.knowledge.entries import Role
from rldbg.doctor.knowledge.library import Library
from rldbg.doctor.logs.evidence import Failure, Hit, LogEvidence, LogPlace
from rldbg.doctor.logs.failures import is_wrapper
from rldbg.doctor.logs.survival import has_survived, holds, is_closing, is_uncaught
from rldbg.doctor.logs.tracebacks import HEADLESS
from rldbg.doctor.verdict.echoes import comes_after, reported
from rldbg.doctor.verdict.judgement import Sighting

FROM_OUTSIDE = frozenset({"driver", "slurm", "container"})
"""Topics whose failures strike a process from outside, whatever it is doing."""
_OF_OTHERS = re.compile(
    r"(?i)\b(?:fail(?:ed|ure|s)?|died|dead|exit(?:ed|s)?|terminated?|abort(?:ed)?|crash(?:ed)?|unexpectedly|above|cause|"
    r"closed|time[ds]? ?-?out|connect(?:ion|ed)?|refused|reset|pipe|unavailable|unreachable|respon[ds]\w*|peer|remote|"
    r"cuda|cublas\w*|cudnn\w*|nccl\w*|hccl\w*|rccl\w*|hip|npu|acl\w*|workers?|engine|servers?|subprocess|child|actors?|"
    r"process(?:es)?|killed|stopped|cancel\w*|shut ?down|lost|NoneType|None|memory|retries|empty|missing|client error|"
    r"errors)\b"
    r"|^(?:EOFError|BrokenPipeError|ConnectionError|TimeoutError|\w*Empty)"
)
"""What exceptions say that can be the consequence of another failure."""
_OF_DEVICE = re.compile(r"(?i)\b(?:out of (?:host |device )?memory|cuda|cublas\w*|cudnn\w*|hip|npu)\b")
"""What a process says of its own device or memory, which no exception of another one brings about."""
_SAYS_ENOUGH = re.compile(r": .{0,400}\w+\W+\w+\W+\w+")
_ANNOUNCED_LINES = 15
"""What is printed this shortly before a traceback may be the reason for it."""
_TAIL_LINES = 8
_HEADER_LINES = 2


def bystanders_of(causes: Sequence[Sighting], evidence: LogEvidence, library: Library) -> list[Sighting]:
    """Those of the causes that the end of their process does not contain, where that end says what was wrong."""
    told = [*reported(evidence.failures), *_announced(evidence, library)]
    ends = [failure for failure in evidence.failures if _is_end(failure, told, evidence)]
    return [
        cause
        for cause in causes
        if (cause.entry.category not in FROM_OUTSIDE or _was_raised(cause, evidence))
        and all(any(_is_beside(hit, end, told, evidence) for end in ends) for hit in cause.hits)
        and not any(_is_effect(name, cause, library) for end in ends for name in end.known_as)
    ]


def stands_alone(cause: Sighting, evidence: LogEvidence) -> bool:
    """Whether all lines of a cause are exceptions without a traceback: nothing shows that a process ended by them."""
    raised = [failure for failure in evidence.failures if not failure.is_crash]
    holders = [[failure for failure in raised if holds(failure, hit)] for hit in cause.hits]
    return all(found and not any(failure.frames for failure in found) for found in holders)


def _was_raised(cause: Sighting, evidence: LogEvidence) -> bool:
    """Whether all lines of a cause are exceptions: those come from inside a process, whatever the topic."""
    raised = [failure for failure in evidence.failures if not failure.is_crash]
    return all(any(holds(failure, hit) for failure in raised) for hit in cause.hits)


def _announced(evidence: LogEvidence, library: Library) -> list[Failure]:
    """The exceptions under the line of a symptom: an engine or a server that ends writes above it that it does."""
    headers = {
        (hit.place.file, hit.place.line) for hit in evidence.hits if library.entries[hit.entry].role is Role.SYMPTOM
    }
    return [
        failure
        for failure in evidence.failures
        if any((failure.place.file, failure.place.line - above) in headers for above in range(_HEADER_LINES + 1))
    ]


def late_ones(errors: Sequence[Sighting], evidence: LogEvidence) -> list[Sighting]:
    """Possible consequences that were seen only after their process had raised what its caller was told."""
    told = reported(evidence.failures)
    return [
        each
        for each in errors
        if each.entry.role is Role.EITHER
        and all(any(comes_after(hit.place, failure) for failure in told) for hit in each.hits)
    ]


def says_itself(failure: Failure) -> bool:
    """Whether an exception says what was wrong, and that is nothing that another failure brings about."""
    is_telling = _SAYS_ENOUGH.search(failure.headline) and not _OF_OTHERS.search(failure.headline)
    is_report = is_wrapper(failure) or failure.kind == HEADLESS or asks_result_of_call(failure)
    return bool(failure.frames and is_telling) and not is_report


def tells_of_others(failure: Failure) -> bool:
    """Whether an exception that ended a program speaks of something else that had failed."""
    return is_uncaught(failure) and bool(_OF_OTHERS.search(failure.headline))


def can_follow(failure: Failure) -> bool:
    """Whether an exception can be what a process raises because another one, which it waits for, has failed: also one
    that says nothing."""
    words = f"{failure.kind.rpartition('.')[2]}: {failure.message}"
    return not failure.message or is_wrapper(failure) or bool(_OF_OTHERS.search(_OF_DEVICE.sub("", words)))


def _is_end(failure: Failure, told: Sequence[Failure], evidence: LogEvidence) -> bool:
    """Whether an exception ended its process, or the task that its caller waited for, and says itself what was
    wrong."""
    return (
        (is_uncaught(failure) or failure in told)
        and not (failure.chained or failure.warned or failure.quotes >= 0)
        and says_itself(failure)
        and not is_closing(failure)
        and not has_survived(evidence, replace(failure, last=None))
    )


def _is_beside(hit: Hit, end: Failure, told: Sequence[Failure], evidence: LogEvidence) -> bool:
    """Whether a line is no part of the exception that ended its process, or the whole program; nor of another one that
    ended a process."""
    if not (_same_process(hit.place, end.place) or end in told):
        return False
    holder = next((failure for failure in evidence.failures if failure.frames and holds(failure, hit)), None)
    if holder is not None and (is_uncaught(holder) or holder in told or _led_to(holder, end, evidence)):
        return False
    below = hit.place.line - end.place.line
    apart = below < -_ANNOUNCED_LINES or below >= end.lines + _TAIL_LINES or not _same_process(hit.place, end.place)
    progress = evidence.progress.get(hit.place.file)
    counted = progress is not None and progress.went_on_after(hit.place.offset, until=end.place.offset)
    return apart or counted or (holder is not None and holder is not end)


def _led_to(holder: Failure, end: Failure, evidence: LogEvidence) -> bool:
    """Whether the log prints one exception as the reason of the other, which is all that a wrapper between them has."""
    below = [each for each in evidence.failures if each.place.file == holder.place.file]
    below = sorted((f for f in below if f.place.offset > holder.place.offset), key=lambda each: each.place.offset)
    if not below or not below[0].chained:
        return False
    return next((each for each in below if not is_wrapper(each)), None) is end


def _same_process(one: LogPlace, other: LogPlace) -> bool:
    pids = {one.speaker.pid, other.speaker.pid} - {""}
    return one.file == other.file and len(pids) <= 1 and one.speaker.rank == other.speaker.rank


def _is_effect(name: str, cause: Sighting, library: Library) -> bool:
    return name == cause.entry.id or name in library.effects[cause.entry.id]
