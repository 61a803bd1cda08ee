"""What a process was doing when it crashed in native code: the innermost frames of its stack that tell an activity.

A stack does not say why a process crashed, but whether it was writing a checkpoint, multiplying matrices or compiling a
kernel, and so which library ran and what can be changed. Which frames tell what is in the variants of one entry.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import islice

from rldbg.doctor.clues.cause_words import CauseWords
from rldbg.doctor.clues.mentions import rows_of
from rldbg.doctor.clues.native_stacks import crashed_library
from rldbg.doctor.knowledge.entries import KnownFailure
from rldbg.doctor.knowledge.library import Library
from rldbg.doctor.logs.cleaning import clean
from rldbg.doctor.logs.evidence import Hit, LogEvidence, LogPlace
from rldbg.doctor.logs.sources import LogSource
from rldbg.doctor.search.expressions import Expression

ENTRY = "native-crash-at-work"
_CRASH = "process-segfault"
_TELLS_WHY = re.compile(r"(?i)SIGABRT|\bAbort(?:ed)?\b|terminate called|corrupt|invalid|double free")
"""What aborts itself says why in its own words."""
_FRAME = re.compile(r"\s*(?:File \"|#\d+ |frame #\d+|@ |\[?0x[0-9a-f]|(?:.{0,80}\]|logging\.cc:\d+:) +@ |/\S+\.so)")
_THREAD = re.compile(r"\s*(?P<current>Current thread|Thread) 0x[0-9a-f]+")
_OF_HANDLER = re.compile(
    r"sigaction|\(unknown\) +\(unknown\)|__restore_rt|SignalHandler|absl::|_call_impl|_wrapped_call"
)
_ENDS = re.compile(
    r"in (?:_exit_function|_run_exitfuncs|_?shutdown\w*|__del__|finali[sz]e\w*|destroy_\w+)\b|Py_Finalize"
)
_WAITS = re.compile(r"in (?:synchronize|item|tolist|cpu|wait\w*|poll|select|sleep|recv\w*|acquire|_?get|join)\b")
"""What ran before, and is waited for, a stack does not tell."""
_ROWS = 90
_INNERMOST = 8
_TRAP = re.compile(r"SIGFPE|Floating point exception")
_OF_TRAP = (
    "the signal (SIGFPE) is an integer division by zero, or a number out of range, in compiled code: it says nothing "
    "about the dtypes of the model"
)
_SHOWN = re.compile(r"File \"(?P<path>[^\"]+)\", line (?P<line>\d+),? in (?P<function>.{1,80})")


def crashes_at_work(evidence: LogEvidence, sources: Sequence[LogSource], library: Library) -> Iterator[Hit]:
    """The line of a crash, and the frame below it that tells an activity, where nothing else explains the crash."""
    entry = library.entries.get(ENTRY)
    if entry is None or _is_explained(evidence, library):
        return
    for hit in evidence.hits:
        if hit.entry == _CRASH and not _TELLS_WHY.search(hit.text):
            for telling in islice(_telling(hit, entry, sources), 1):
                yield Hit(ENTRY, hit.place, hit.text, hit.matched)
                yield telling
                return


def _is_explained(evidence: LogEvidence, library: Library) -> bool:
    explained = (library.direct_effects.get(name, ()) for name in {hit.entry for hit in evidence.hits})
    return any(_CRASH in effects for effects in explained)


def _telling(hit: Hit, entry: KnownFailure, sources: Sequence[LogSource]) -> Iterator[Hit]:
    """The innermost frame under a line that a variant of the entry knows."""
    shapes = [Expression(variant.says) for variant in entry.variants]
    stack = list(_stack(hit, sources))
    if any(_ENDS.search(text) for _place, text in stack):
        return
    own = [frame for frame in stack if not _OF_HANDLER.search(frame[1])]
    for place, text in own[:_INNERMOST]:
        if _WAITS.search(text):
            return
        if any(shape.search(text) for shape in shapes):
            yield Hit(ENTRY, place, text, text)


def _stack(hit: Hit, sources: Sequence[LogSource]) -> Iterator[tuple[LogPlace, str]]:
    """The frames of the thread that crashed, the innermost first."""
    source = next((each for each in sources if each.name == hit.place.file), None)
    rows = rows_of(source) if source is not None else []
    offset = sum(len(raw) + 1 for raw in rows[: hit.place.line])
    is_own = True
    for number, raw in enumerate(rows[hit.place.line : hit.place.line + _ROWS], hit.place.line + 1):
        line = clean(raw)
        if hit.place.speaker.may_be(line.speaker):
            if thread := _THREAD.match(line.text):
                is_own = thread["current"] == "Current thread"
            elif is_own and _FRAME.match(line.text):
                yield LogPlace(hit.place.file, number, offset, hit.place.speaker, None), line.text.strip()
        offset += len(raw) + 1


def told_of_crash(hits: Sequence[Hit], sources: Sequence[LogSource]) -> CauseWords:
    """The library that the stack names first, the frame that tells the activity, and what a signal is not."""
    frame = hits[-1].text
    shown = _SHOWN.search(frame)
    path = "/".join(shown["path"].rsplit("/", 3)[-2:]) if shown else ""
    function = re.split(r"[(<]", shown["function"])[0].strip() if shown else frame[:120]
    is_python = bool(shown) and path.endswith(".py")
    where = f"{function} ({path}:{shown['line']})" if shown and is_python else function
    detail = f"the innermost frame that tells what it did is {where}"
    if not is_python and (library := crashed_library(hits[:1], sources)):
        detail = f"its stack names {library} first"
    return CauseWords(f"{detail}; {_OF_TRAP}." if any(_TRAP.search(hit.text) for hit in hits) else f"{detail}.")
