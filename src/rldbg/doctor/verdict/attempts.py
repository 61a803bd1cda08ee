"""Several runs of a program in one log, one after another: each is judged by itself, and the last one decides.

A run begins where the first lines of the log, or the line that launches the program, come again, where a process takes
the place of the one that opened the log, where a supervisor says that it restarts it, or where a program that had run
before is refused; and only if the run before it had ended, by a failure or by being done. It also begins where a
counter counts again after an exception that nothing caught, and where the first line comes again after a long silence
and nothing fails any more.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import PurePath

from rldbg.doctor.knowledge.entries import Role
from rldbg.doctor.knowledge.library import Library
from rldbg.doctor.logs.evidence import Failure, LogEvidence, RunStart
from rldbg.doctor.logs.progress import LogProgress
from rldbg.doctor.logs.survival import holds, is_uncaught


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
    """Where a counter counts again after an exception that nothing caught: the program goes on from a checkpoint."""
    progress = evidence.progress.get(file, LogProgress())
    for failure in evidence.failures:
        if failure.place.file != file or not is_uncaught(failure):
            continue
        if (at := progress.counts_again_after(failure.place.offset)) is not None:
            yield RunStart(at, failure.place.line + failure.lines, "")


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

    def is_again(start: RunStart) -> bool:
        if start.program:
            return _is_refused_later(start, starts, evidence, library, file)
        if start.after_silence and not _fails_since(evidence, library, file, start.offset):
            return True
        if not start.header:
            return not start.after_silence
        return start is not by_header[start.header][0] and start.header not in common

    begin, line = 0, 1
    for start in starts:
        if is_again(start) and ended_between(begin, start.offset):
            yield begin, line
            begin, line = start.offset, start.line
    yield begin, line


def _is_refused_later(
    start: RunStart, starts: Sequence[RunStart], evidence: LogEvidence, library: Library, file: str
) -> bool:
    """Whether a program that ends before it does anything is of another run than what is above it: it had run before,
    or the last one that ended so was another one, or for another reason, or something else had failed since."""
    before = [other for other in starts if other.program and other.offset < start.offset]
    if not before:
        ran = (f.frames[0].partition(":")[0] for f in _part(evidence, file, 0, start.offset).failures if is_uncaught(f))
        return any(PurePath(script).name == start.program for script in ran)
    if (before[-1].program, before[-1].refusal) != (start.program, start.refusal):
        return True
    since = {hit.entry for hit in _part(evidence, file, start.offset, 1 << 62).hits}
    between = {hit.entry for hit in _part(evidence, file, before[-1].offset, start.offset).hits}
    return any(library.entries[entry].severity == "error" for entry in between - since)


def _has_ended(part: LogEvidence, library: Library) -> bool:
    """Whether a run ended in a stretch of a log: it was done, or something failed that was not visibly caught."""
    progress = next(iter(part.progress.values()))
    return _has_failed(part, library) or bool(progress.done or progress.said_done or progress.said_zero)


def _fails_since(evidence: LogEvidence, library: Library, file: str, begin: int) -> bool:
    """Whether anything fails after a place in a log, or the log then says that its program failed."""
    part = _part(evidence, file, begin, 1 << 62)
    ends = any(ending.place.file == file and ending.place.offset >= begin for ending in evidence.endings)
    return ends or _has_failed(part, library)


def _has_failed(part: LogEvidence, library: Library) -> bool:
    caught = [f for f in part.failures if f.frames and not is_uncaught(f)]
    told = [hit for hit in part.hits if not any(holds(failure, hit) for failure in caught)]
    entries = [library.entries[hit.entry] for hit in told]
    failed = any(entry.severity == "error" and entry.role is not Role.BENIGN for entry in entries)
    return failed or len(caught) < len(part.failures)


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
