"""Whether a program outlived a failure in its log: it counted on, its training was done after it, or before it.

An exception that nothing caught is the end of its process, whatever a script says afterwards. One that was caught, or a
line without a traceback, is outlived as soon as training goes on or is done. What comes after training was done is the
end of processes that are not needed any more, unless it is an exception that nothing caught.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from rldbg.doctor.logs.endings import ENDING_LINES, is_of_script
from rldbg.doctor.logs.evidence import PROGRAM_ENDED, Failure, Hit, LogEvidence, LogPlace
from rldbg.doctor.logs.progress import LogProgress
from rldbg.doctor.logs.standing import is_called_warning

_CLOSING = re.compile(
    r" in \w*(?:clean_?up|shut_?down|at_?exit|tear_?down|kill_process|terminate|destroy|finali[sz]e|close|__del__)\w*$"
)
"""Functions that run when a process ends: what they raise comes after what ended it."""
_FIRST_FRAMES = (" in <module>", " in _run_module_as_main")
_IMPORTED = re.compile(r"/(?:site|dist)-packages/(?:.*/)?__init__\.py:\d+ in <module>$")
"""A package that is imported; nobody starts a program with it."""
_GENERATED = re.compile(r"(?:<(?:string|stdin|exec|code|cell|ipython)|/tmp/tmp|(?:.*/)?(?:sandbox|code_exec)\w*/)")
"""Where the code of a model lies that a program runs."""
_EXCEPTION_NAME = re.compile(r"(?<![\w.])(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception)\b")
_REPORTER_WORDS = 3
_OF_CHILDREN = ("RayTaskError", "RayActorError", "ActorDiedError", "WorkerCrashedError", "ChildFailedError")
"""What those raise that wait for other processes."""
_ENDED_BY_REQUEST = ("SignalException", "KeyboardInterrupt", "SystemExit", "CancelledError")


def holds(failure: Failure, hit: Hit) -> bool:
    """Whether a line is one of a traceback; lines of other processes may stand between those."""
    return reaches(failure, hit, failure.lines)


def reaches(failure: Failure, hit: Hit, lines: int) -> bool:
    """Whether a line comes within some lines from the beginning of a failure on, of the same process."""
    below = hit.place.line - failure.place.line
    is_own = failure.place.speaker.may_be(hit.place.speaker)
    return failure.place.file == hit.place.file and 0 <= below < lines and is_own


def is_uncaught(failure: Failure) -> bool:
    """Whether a traceback begins with its program: what is caught is printed from the function that caught it on."""
    return _is_whole(failure) and not failure.quoted and not is_of_model(failure)


def _is_whole(failure: Failure) -> bool:
    first = next(iter(failure.frames), "")
    return first.endswith(_FIRST_FRAMES) and not _IMPORTED.search(first)


def is_of_import(failure: Failure | None) -> bool:
    """Whether something could not be imported: programs print that and do without it."""
    return failure is not None and failure.kind in ("ImportError", "ModuleNotFoundError")


def is_closing(failure: Failure) -> bool:
    """Whether an exception was raised while things were being closed."""
    return any(_CLOSING.search(frame) for frame in failure.frames)


def is_of_model(failure: Failure) -> bool:
    """Whether a traceback is of a whole program that a model wrote and another one ran, or quoted as its output."""
    if failure.quoted or failure.cut:
        return failure.quoted
    return _is_whole(failure) and all(_GENERATED.match(frame) for frame in failure.frames)


def has_survived(evidence: LogEvidence, failure: Failure) -> bool:
    """Whether the program outlived an exception, also where it came for the last time."""
    return _outlived(evidence, failure.ends, failure)


def have_survived(evidence: LogEvidence, hits: Sequence[Hit]) -> bool:
    """Whether the program outlived a known failure at every place where it was seen."""
    holders = [next((f for f in evidence.failures if holds(f, hit)), None) for hit in hits]
    by_file: dict[str, list[LogPlace]] = {}
    for hit, held in zip(hits, holders, strict=True):
        end = max(hit.place.offset, held.end if held else -1)
        by_file.setdefault(hit.place.file, []).append(replace(hit.place, offset=end))
    if len(told := [hit for hit in hits if not _is_one_of_many(evidence, hit)]) < len(hits):
        return not told or have_survived(evidence, told)
    if all(_script_went_on(evidence, hit) or _was_only_warned(evidence, hit) for hit in hits):
        return True
    worst = next((holder for holder in holders if holder is not None and is_uncaught(holder)), None)
    holder = worst or next(iter(holders), None)
    return all(_outlived(evidence, places, holder) for places in by_file.values())


def _script_went_on(evidence: LogEvidence, hit: Hit) -> bool:
    """Whether a script whose shell could not run one of its lines ran another: the log ends, with many lines below
    that one, in the middle of a progress bar."""
    below = (end.lines - hit.place.line for end in evidence.ends if end.file == hit.place.file)
    return is_of_script(hit.text) and hit.place.file in evidence.unfinished and max(below, default=0) > ENDING_LINES


def _was_only_warned(evidence: LogEvidence, hit: Hit) -> bool:
    """Whether a line is a warning, and any step was counted after it."""
    return is_called_warning(hit.text) and went_on_after(evidence, hit.place)


def _is_one_of_many(evidence: LogEvidence, hit: Hit) -> bool:
    """Whether a line is the report on one item of many: the words before the exception in it, but for numbers, come
    again in a later line about another item, which was outlived."""
    reporter = _reporter(hit)
    return bool(reporter) and any(
        _reporter(other) == reporter and (other.place.file, other.place.offset) in evidence.dealt_with
        for other in evidence.hits
        if other.place.file == hit.place.file and other.place.offset > hit.place.offset
    )


def _reporter(hit: Hit) -> str:
    before = _EXCEPTION_NAME.split(hit.text, maxsplit=1)[0]
    is_told = before != hit.text and len(re.findall(r"[A-Za-z]{3,}", before)) >= _REPORTER_WORDS
    return re.sub(r"\d+", "#", before).strip() if is_told else ""


def _outlived(evidence: LogEvidence, places: Sequence[LogPlace], failure: Failure | None) -> bool:
    """Whether each of the places in one log was outlived; once it was, a single step is enough the next time."""
    outlived = [_is_past(evidence, place, failure) for place in places]
    if all(outlived):
        return True
    progress = evidence.progress.get(places[-1].file, LogProgress())
    once = any(outlived) or (failure is not None and _was_caught(failure, evidence))
    last = max(place.offset for place in places)
    was_fatal = failure is not None and _was_fatal(failure, evidence)
    is_last_open = len(outlived) > 1 and all(outlived[:-1])
    if is_last_open and not was_fatal and _ends_otherwise(evidence, places[-1].file, last):
        return True
    ended = _end_of_program(evidence, places[-1].file)
    goes_on = progress.went_on_after(last, until=ended) or (
        any(outlived) and failure is not None and _was_caught(failure, evidence)
    )
    return once and goes_on and not _fails_after(evidence, places, last)


def _ends_otherwise(evidence: LogEvidence, file: str, offset: int) -> bool:
    """Whether an exception with a traceback came after a place: that is what could not be outlived."""
    return any(each.place.file == file and each.place.offset > offset and each.frames for each in evidence.failures)


def went_on_after(evidence: LogEvidence, place: LogPlace) -> bool:
    """Whether any step was counted after a place that none before it had reached."""
    return evidence.progress.get(place.file, LogProgress()).went_on_after(place.offset)


def _was_caught(failure: Failure, evidence: LogEvidence) -> bool:
    return bool(failure.frames) and not _was_fatal(failure, evidence)


def _was_fatal(failure: Failure, evidence: LogEvidence) -> bool:
    return is_uncaught(failure) or _was_passed_on(failure, evidence)


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
    if max(progress.last_done, served) > place.offset:
        return True
    if _went_on(evidence, place if failure is None else failure.place):
        return True
    was_fatal = failure is not None and _was_fatal(failure, evidence)
    ended = _end_of_program(evidence, place.file)
    if progress.counted_on_after(place.offset, times=2 if was_fatal else 1, ended=ended):
        return True
    said = [at for at in (*progress.said_done, *progress.said_final, *progress.said_zero) if at > place.offset]
    own = place if failure is None else failure.place
    is_dealt_with = bool({(each.file, each.offset) for each in (place, own)} & evidence.dealt_with)
    if is_dealt_with and (not was_fatal or (said and is_of_import(failure))):
        return True
    if is_of_import(failure) and any(place.offset < bar < at for bar in progress.full_bars for at in said):
        return True  # all steps were done without it, and then something said so
    if not was_fatal:
        if progress.tests_done > place.offset or progress.was_being_stopped(place.offset):
            return True
        if any(_is_trusted(evidence, place.file, at) for at in said):
            return True
    return came_after_end(evidence, place)


def _end_of_program(evidence: LogEvidence, file: str) -> float:
    """Where a launcher or a driver ended by the exception of a process that it had waited for; all that it had started
    ended with it."""
    ends = (f for f in evidence.failures if f.place.file == file and is_uncaught(f) and _is_of_child(f))
    return min((f.place.offset for f in ends), default=float("inf"))


def _is_of_child(failure: Failure) -> bool:
    return failure.kind.rpartition(".")[2].startswith(_OF_CHILDREN)


def _was_passed_on(failure: Failure, evidence: LogEvidence) -> bool:
    """Whether an exception of a task was raised again in the caller that waited for it, where nothing caught it: the
    line that ends the caller's traceback begins that of the task."""
    own = (failure.place.file, failure.place.offset)
    return any(is_uncaught(each) and (each.place.file, each.end) == own for each in evidence.failures)


def _went_on(evidence: LogEvidence, place: LogPlace) -> bool:
    """Whether a process did after an exception that it caught what it had done before, and nothing ended it later."""
    return (place.file, place.offset) in evidence.resumed and not any(
        each.place.file == place.file and each.place.offset > place.offset and (_is_fatal(each) or not each.frames)
        for each in (*evidence.failures, *evidence.endings)
    )


def came_after_end(evidence: LogEvidence, place: LogPlace) -> bool:
    """Whether a place comes after training was done, and no program ended by a failure before or after that."""
    progress = evidence.progress.get(place.file, LogProgress())
    closed = progress.closed_at
    if closed is None or closed >= place.offset or not _is_trusted(evidence, place.file, closed):
        return False
    is_said = bool(progress.said_done or progress.done)
    return not any(
        f.place.file == place.file
        and f.place.offset > closed
        and (_ends_in_vain(f) or (_reached_main(f) and (not is_said or f.place.speaker.rank)))
        for f in evidence.failures
    )


def _reached_main(failure: Failure) -> bool:
    """Whether an exception left all that the program's `main` called: where only a bar was full, that was no end; and
    what torch prints with the rank before it, nothing caught."""
    first = next(iter(failure.frames), "")
    return first.endswith(" in main") and "-packages/" not in first and not is_closing(failure)


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
