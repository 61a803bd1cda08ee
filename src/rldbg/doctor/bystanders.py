"""Known failures that did not end the program: it went on after them, or they came after its end.

An exception that nothing caught, and that says itself what was wrong, is the end of its process. A known failure of the
same process that is no part of it was handled, or followed; it can still have led to it, so it is a candidate.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from rldbg.doctor.evidence import Failure, Hit, LogEvidence, LogPlace
from rldbg.doctor.failures import HEADLESS, is_wrapper
from rldbg.doctor.judgement import Sighting
from rldbg.doctor.library import Library
from rldbg.doctor.survival import has_survived, holds, is_closing, is_uncaught

FROM_OUTSIDE = frozenset({"driver", "slurm", "container"})
"""Topics whose failures strike a process from outside, whatever it is doing."""
_OF_OTHERS = re.compile(
    r"(?i)\b(?:fail(?:ed|ure|s)?|died|dead|exit(?:ed|s)?|terminated?|abort(?:ed)?|crash(?:ed)?|unexpectedly|above|cause|"
    r"closed|time[ds]? ?-?out|connect(?:ion|ed)?|refused|reset|pipe|unavailable|unreachable|respon[ds]\w*|peer|remote|"
    r"cuda|cublas\w*|cudnn\w*|nccl\w*|hccl\w*|rccl\w*|hip|npu|acl\w*|workers?|engine|servers?|subprocess|child|actors?|"
    r"process(?:es)?|killed|stopped|cancel\w*|shut ?down|lost|NoneType|None|memory|retries|empty|missing|errors?)\b"
    r"|^(?:EOFError|BrokenPipeError|ConnectionError|TimeoutError|\w*Empty)"
)
"""What exceptions say that can be the consequence of another failure."""
_SAYS_ENOUGH = re.compile(r": .{0,400}\w+\W+\w+\W+\w+")
_ANNOUNCED_LINES = 15
"""What is printed this shortly before a traceback may be the reason for it."""
_TAIL_LINES = 8


def bystanders_of(causes: Sequence[Sighting], evidence: LogEvidence, library: Library) -> list[Sighting]:
    """Those of the causes that the end of their process does not contain, where that end says what was wrong."""
    ends = [failure for failure in evidence.failures if _is_end(failure, evidence)]
    return [
        cause
        for cause in causes
        if cause.entry.category not in FROM_OUTSIDE
        and all(any(_is_beside(hit, end, evidence) for end in ends) for hit in cause.hits)
        and not any(_is_effect(name, cause, library) for end in ends for name in end.known_as)
    ]


def _is_end(failure: Failure, evidence: LogEvidence) -> bool:
    """Whether an exception ended its process and says itself what was wrong."""
    return (
        is_uncaught(failure)
        and not (failure.chained or failure.warned or is_wrapper(failure) or failure.kind == HEADLESS)
        and bool(_SAYS_ENOUGH.search(failure.headline))
        and not _OF_OTHERS.search(failure.headline)
        and not is_closing(failure)
        and not has_survived(evidence, replace(failure, last=None))
    )


def _is_beside(hit: Hit, end: Failure, evidence: LogEvidence) -> bool:
    """Whether a line of the process that an exception ended is no part of it."""
    if not _same_process(hit.place, end.place):
        return False
    holder = next((failure for failure in evidence.failures if failure.frames and holds(failure, hit)), None)
    if holder is not None and is_uncaught(holder):
        return False
    below = hit.place.line - end.place.line
    return below < -_ANNOUNCED_LINES or below >= end.lines + _TAIL_LINES or (holder is not None and holder is not end)


def _same_process(one: LogPlace, other: LogPlace) -> bool:
    pids = {one.speaker.pid, other.speaker.pid} - {""}
    return one.file == other.file and len(pids) <= 1 and one.speaker.rank == other.speaker.rank


def _is_effect(name: str, cause: Sighting, library: Library) -> bool:
    return name == cause.entry.id or name in library.effects[cause.entry.id]
