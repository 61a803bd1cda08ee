"""Whether a program outlived a failure in its log: it counted on, its training was done after it, or before it.

An exception that nothing caught is the end of its process, whatever a script says afterwards. One that was caught, or a
line without a traceback, is outlived as soon as training goes on or is done. What comes after training was done is the
end of processes that are not needed any more, unless it is an exception that nothing caught.
"""

import re
from collections.abc import Iterable, Sequence

from rldbg.doctor.evidence import PROGRAM_ENDED, Failure, Hit, LogEvidence, LogPlace
from rldbg.doctor.progress import LogProgress

_CLOSING = re.compile(
    r" in \w*(?:clean_?up|shut_?down|at_?exit|tear_?down|kill_process|terminate|destroy|finali[sz]e|close|__del__)\w*$"
)
"""Functions that run when a process ends: what they raise comes after what ended it."""
_FIRST_FRAMES = (" in <module>", " in _run_module_as_main")
_GENERATED = re.compile(r"(?:<(?:string|stdin|exec|code|cell|ipython)|/tmp/tmp|(?:.*/)?(?:sandbox|code_exec)\w*/)")
"""Where the code of a model lies that a program runs."""
_ENDED_BY_REQUEST = ("SignalException", "KeyboardInterrupt", "SystemExit", "CancelledError")


def holds(failure: Failure, hit: Hit) -> bool:
    """Whether a line is one of a traceback; lines of other processes may stand between those."""
    return reaches(failure, hit, failure.lines)


def reaches(failure: Failure, hit: Hit, lines: int) -> bool:
    """Whether a line comes within some lines from the beginning of a failure on, of the same process."""
    pids = {failure.place.speaker.pid, hit.place.speaker.pid} - {""}
    below = hit.place.line - failure.place.line
    return failure.place.file == hit.place.file and 0 <= below < lines and len(pids) <= 1


def is_uncaught(failure: Failure) -> bool:
    """Whether a traceback begins with its program: what is caught is printed from the function that caught it on."""
    return _is_whole(failure) and not failure.quoted and not is_of_model(failure)


def _is_whole(failure: Failure) -> bool:
    return bool(failure.frames) and failure.frames[0].endswith(_FIRST_FRAMES)


def is_closing(failure: Failure) -> bool:
    """Whether an exception was raised while things were being closed."""
    return any(_CLOSING.search(frame) for frame in failure.frames)


def is_of_model(failure: Failure) -> bool:
    """Whether a traceback is of a whole program that a model wrote and another one ran, or quoted as its output."""
    return failure.quoted or (_is_whole(failure) and all(_GENERATED.match(frame) for frame in failure.frames))


def has_survived(evidence: LogEvidence, failure: Failure) -> bool:
    """Whether the program outlived an exception, also where it came for the last time."""
    places = [failure.place, *([failure.last] if failure.last else [])]
    return _outlived(evidence, places, failure)


def have_survived(evidence: LogEvidence, hits: Sequence[Hit]) -> bool:
    """Whether the program outlived a known failure at every place where it was seen."""
    holders = [next((f for f in evidence.failures if holds(f, hit)), None) for hit in hits]
    by_file: dict[str, list[LogPlace]] = {}
    for hit in hits:
        by_file.setdefault(hit.place.file, []).append(hit.place)
    worst = next((holder for holder in holders if holder is not None and is_uncaught(holder)), None)
    holder = worst or next(iter(holders), None)
    return all(_outlived(evidence, places, holder) for places in by_file.values())


def _outlived(evidence: LogEvidence, places: Sequence[LogPlace], failure: Failure | None) -> bool:
    """Whether each of the places in one log was outlived; once it was, a single step is enough the next time."""
    outlived = [_is_past(evidence, place, failure) for place in places]
    if all(outlived):
        return True
    progress = evidence.progress.get(places[-1].file, LogProgress())
    once = any(outlived) or (failure is not None and _was_caught(failure))
    last = max(place.offset for place in places)
    goes_on = progress.went_on_after(last) or (any(outlived) and failure is not None and _was_caught(failure))
    return once and goes_on and not _fails_after(evidence, places, last)


def went_on_after(evidence: LogEvidence, place: LogPlace) -> bool:
    """Whether any step was counted after a place that none before it had reached."""
    return evidence.progress.get(place.file, LogProgress()).went_on_after(place.offset)


def _was_caught(failure: Failure) -> bool:
    return bool(failure.frames) and not is_uncaught(failure)


def _fails_after(evidence: LogEvidence, places: Iterable[LogPlace], offset: int) -> bool:
    own = {(place.file, place.offset) for place in places}
    files = {place.file for place in places}
    return any(
        each.place.file in files and each.place.offset > offset and (each.place.file, each.place.offset) not in own
        for each in (*evidence.failures, *evidence.endings)
    )


def _is_past(evidence: LogEvidence, place: LogPlace, failure: Failure | None) -> bool:
    progress = evidence.progress.get(place.file, LogProgress())
    if progress.all_passed > place.offset:
        return True
    if any(end.offset < place.offset for end in _program_ends(evidence, place.file)):
        return False  # what comes after it is late output of other processes
    served = progress.served.get(place.speaker.pid, -1) if progress.shut_down <= place.offset else -1
    if max(progress.last_done, served) > place.offset or progress.counted_on_after(place.offset):
        return True
    if failure is None or not is_uncaught(failure):
        own = place if failure is None else failure.place
        if {(each.file, each.offset) for each in (place, own)} & evidence.dealt_with:
            return True
        if progress.tests_done > place.offset or _went_on(evidence, own):
            return True
        said = [at for at in (*progress.said_done, *progress.said_final, *progress.said_zero) if at > place.offset]
        if any(_is_trusted(evidence, place.file, at) for at in said):
            return True
    return came_after_end(evidence, place)


def _went_on(evidence: LogEvidence, place: LogPlace) -> bool:
    """Whether a process did after an exception that it caught what it had done before, and nothing ended it later."""
    return (place.file, place.offset) in evidence.resumed and not any(
        each.place.file == place.file and each.place.offset > place.offset and (_is_fatal(each) or not each.frames)
        for each in (*evidence.failures, *evidence.endings)
    )


def came_after_end(evidence: LogEvidence, place: LogPlace) -> bool:
    """Whether a place comes after training was done, and no program ended by a failure before or after that."""
    closed = evidence.progress.get(place.file, LogProgress()).closed_at
    if closed is None or closed >= place.offset or not _is_trusted(evidence, place.file, closed):
        return False
    return not any(
        f.place.file == place.file and f.place.offset > closed and _ends_in_vain(f) for f in evidence.failures
    )


def _ends_in_vain(failure: Failure) -> bool:
    """Whether an exception after the end of training says that the program did not end well."""
    by_request = failure.kind.rpartition(".")[2].startswith(_ENDED_BY_REQUEST)
    is_end = is_uncaught(failure) or failure.kind == PROGRAM_ENDED or failure.kind.startswith("exit")
    return is_end and not by_request and not is_closing(failure)


def _is_trusted(evidence: LogEvidence, file: str, at: int) -> bool:
    """Whether no program ended by a failure right before it was said that all is done: scripts say that anyway."""
    progress = evidence.progress.get(file, LogProgress())
    if at in progress.done:
        return True
    fatal = [f.place for f in evidence.failures if f.place.file == file and _is_fatal(f)]
    if at in progress.said_zero and -1 < progress.last_count < at:
        return not any(progress.last_count < place.offset for place in fatal)
    fatal += [ending.place for ending in evidence.endings if ending.place.file == file and ending.is_crash]
    before = [place.offset for place in fatal if place.offset < at]
    if any(not progress.went_on_after(offset, until=at) for offset in before):
        return False
    return at not in progress.said_zero or len(before) == len(fatal)


def _is_fatal(failure: Failure) -> bool:
    """Whether a process ended there: nothing caught it, or it is no exception but the report of an end."""
    return is_uncaught(failure) or failure.is_crash


def _program_ends(evidence: LogEvidence, file: str) -> list[LogPlace]:
    return [f.place for f in evidence.failures if f.kind == PROGRAM_ENDED and f.place.file == file]
