"""Several runs of a program in one log, one after another: each is judged by itself, and the last one decides.

A run begins where the first lines of the log, or the line that launches the program, come again, or where a supervisor
says that it restarts it; and only if the run before it had ended, by a failure or by being done. It also begins where
a counter stands lower after an exception that nothing caught.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from rldbg.doctor.entries import Role
from rldbg.doctor.evidence import Failure, LogEvidence, RunStart
from rldbg.doctor.failures import skeleton
from rldbg.doctor.library import Library
from rldbg.doctor.progress import LogProgress
from rldbg.doctor.survival import holds, is_uncaught

_DATE_WORDS = re.compile(r"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun|Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\b")
_LAUNCH = re.compile(
    r"(?:\+{1,3} |\S{0,60}[$#] )(?:exec |srun .{0,200}?|env .{0,200}?)?(?:\S*/)?"
    r"(?:python[\d.]*|torchrun|accelerate|deepspeed|ray job submit|bash|sh|uv run|rldbg run)\b"
    r"|[=#*-]{3,20} ?(?i:(?:\w+ ){0,3}?(?:job|run|attempt|launch)\b.{0,60}\d)|SLURM_JOB_?ID\W{1,3}\d"
)
"""A command that a shell shows, and headers with a number or a date; they count where the same one comes again."""
_RESTART = re.compile(
    r"(?i)(?:[\[(]?[\w.-]{1,40}[\])]?:? |[=#*-]{3,20} ?)?"
    r"(?:restart(?:ing|ed)?|re-?launch(?:ing|ed)?|requeu(?:ed|ing))\b"
    r"(?: (?:training|job|run)\b|\W{1,3}(?:attempt )?#?\d)"
    r"(?!.{0,80}\b(?:server|engine|worker|actor|router|rollout|sandbox|environment|replica))"
    r"|.{0,120}\bRestarting worker group"
)
"""What supervisors say when they start a whole program again."""
_WORDS = re.compile(
    rb"\b(?:[Jj]ob|JOB|[Rr]un|RUN|[Aa]ttempt|ATTEMPT|[Ll]aunch|[Rr]estart|RESTART|[Rr]e-?launch|[Rr]equeu|[Rr]etry|[Tt]ry|"
    rb"SLURM_JOB_ID|[Ss]tarting|python|torchrun|accelerate|deepspeed|ray job|bash|sh |uv run|rldbg)"
)
_HEADER_BYTES = 120
_PIECE = re.compile(rb"[^\d\r\n\x1b]{8,}")
OPENING_LINES = 2


def launch_places(data: bytes | bytearray, begin: int, end: int) -> Iterator[int]:
    """Where lines may launch or restart a program: their first words have one of the words for that."""
    last = -1
    for match in _WORDS.finditer(data, begin, end):
        start = max(data.rfind(b"\n", 0, match.start()), data.rfind(b"\r", 0, match.start())) + 1
        if start != last and match.start() - start <= _HEADER_BYTES:
            last = start
            yield start


def opening_places(first: bytes, data: bytes | bytearray, begin: int, end: int) -> Iterator[int]:
    """Where a line may be the first one of the log again: it has the longest words without a number of it."""
    piece = max(_PIECE.findall(first), key=len, default=b"")
    at = data.find(piece, begin, end) if piece else -1
    while at >= 0:
        yield max(data.rfind(b"\n", 0, at), data.rfind(b"\r", 0, at)) + 1
        at = data.find(piece, at + len(piece), end)


def header_of(text: str) -> str:
    """A line without what differs from run to run: numbers, paths, names of days and months."""
    return " ".join(_DATE_WORDS.sub("#", skeleton(text)).split())


def may_launch(text: str) -> bool:
    return bool(_LAUNCH.match(text))


def is_restart(text: str) -> bool:
    return bool(_RESTART.match(text))


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run in a log that has several."""

    file: str
    line: int
    """Where it begins."""
    evidence: LogEvidence


def attempts_in(evidence: LogEvidence, library: Library) -> tuple[list[Attempt], LogEvidence]:
    """The earlier runs in the logs, in order, and the evidence without them."""
    earlier: list[Attempt] = []
    for file, starts in evidence.starts.items():
        begun = sorted({*starts, *_counted_back(evidence, file)})
        bounds = list(_bounds(evidence, library, file, begun))
        for (begin, line), (end, _line) in pairwise(bounds):
            earlier.append(Attempt(file, line, _part(evidence, file, begin, end)))
        if len(bounds) > 1:
            evidence = _since(evidence, file, bounds[-1][0])
    return earlier, evidence


def _counted_back(evidence: LogEvidence, file: str) -> Iterator[RunStart]:
    """Where a counter stands lower, and counts on, after an exception that nothing caught: the program runs again."""
    progress = evidence.progress.get(file, LogProgress())
    for failure in evidence.failures:
        if failure.place.file == file and is_uncaught(failure) and progress.counts_again_after(failure.place.offset):
            held = [hit.place.offset for hit in evidence.hits if holds(failure, hit)]
            end = max((failure.place.offset, *held)) + 1
            yield RunStart(end, failure.place.line + failure.lines, "")


def _bounds(
    evidence: LogEvidence, library: Library, file: str, starts: Sequence[RunStart]
) -> Iterator[tuple[int, int]]:
    """Offset and line of each run that begins after another one has ended."""

    def ended_between(begin: int, end: int) -> bool:
        return _has_ended(_part(evidence, file, begin, end), library)

    by_header: dict[str, list[RunStart]] = {}
    for start in starts:
        by_header.setdefault(start.header, []).append(start)
    # Where nothing ended between two of a kind, every process prints it.
    common = {
        header
        for header, places in by_header.items()
        if header and not all(ended_between(one.offset, other.offset) for one, other in pairwise(places))
    }
    begin, line = 0, 1
    for start in starts:
        is_again = not start.header or start is not by_header[start.header][0]
        if is_again and start.header not in common and ended_between(begin, start.offset):
            yield begin, line
            begin, line = start.offset, start.line
    yield begin, line


def _has_ended(part: LogEvidence, library: Library) -> bool:
    """Whether a run ended in a stretch of a log: it was done, or something failed that was not visibly caught."""
    caught = [f for f in part.failures if f.frames and not is_uncaught(f)]
    told = [hit for hit in part.hits if not any(holds(failure, hit) for failure in caught)]
    entries = [library.entries[hit.entry] for hit in told]
    failed = any(entry.severity == "error" and entry.role is not Role.BENIGN for entry in entries)
    progress = next(iter(part.progress.values()))
    done = progress.done or progress.said_done or progress.said_zero
    return failed or len(caught) < len(part.failures) or bool(done)


def _part(evidence: LogEvidence, file: str, begin: int, end: int) -> LogEvidence:
    """What was found in one stretch of one log; how it ends is not known line by line."""
    return LogEvidence(
        files=[file],
        hits=[hit for hit in evidence.hits if hit.place.file == file and begin <= hit.place.offset < end],
        failures=[f for f in evidence.failures if f.place.file == file and begin <= f.place.offset < end],
        clues=evidence.clues,
        progress={file: evidence.progress.get(file, LogProgress()).within(begin, end)},
    )


def _since(evidence: LogEvidence, file: str, begin: int) -> LogEvidence:
    """All evidence without what a log said before a place."""
    return replace(
        evidence,
        hits=[hit for hit in evidence.hits if hit.place.file != file or hit.place.offset >= begin],
        failures=[later for f in evidence.failures if (later := _seen_since(f, file, begin))],
        endings=[f for f in evidence.endings if f.place.file != file or f.place.offset >= begin],
        progress=evidence.progress | {file: evidence.progress.get(file, LogProgress()).within(begin, 1 << 62)},
    )


def _seen_since(failure: Failure, file: str, begin: int) -> Failure | None:
    """A failure where it was seen since a place in a log, if it was."""
    if failure.place.file != file or failure.place.offset >= begin:
        return failure
    return replace(failure, place=failure.last) if failure.last and failure.last.offset >= begin else None
