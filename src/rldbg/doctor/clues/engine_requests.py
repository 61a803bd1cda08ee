"""The order of what an engine was asked for: whether it slept when weights or requests were sent to it.

An engine that sleeps has given its memory back. What reads or writes that memory before it is woken crashes in native
code, and the crash does not say why: only the requests above it do.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rldbg.doctor.clues.cause_words import CauseWords
from rldbg.doctor.clues.mentions import rows_of
from rldbg.doctor.knowledge.library import Library
from rldbg.doctor.logs.cleaning import clean
from rldbg.doctor.logs.evidence import Hit, LogEvidence, LogPlace
from rldbg.doctor.logs.frames import short
from rldbg.doctor.logs.sources import LogSource

ENTRY = "engine-used-while-asleep"
_OF_CONNECTIONS = "network"
"""The category of what is also printed while a server starts."""
_SLEEP = re.compile(r"POST /(?:sleep|release_memory_occupation)\b")
_WAKE = re.compile(r"POST /(?:wake_up|resume_memory_occupation)\b|seconds to wake up|[Ww]aking up")
_WEIGHTS = re.compile(r"POST /(?:start_weight_update|update_weights?\w*|load_weights|update_named_param)\b")
_GENERATE = re.compile(r"POST /(?:generate|v1/(?:chat/)?completions|v1/responses)\b")
_ANSWERED = re.compile(r"\b200\b")
_ROWS_ABOVE = 2000
MEMORY_SAVER = "tms-driver-error"
"""Memory that was released, or taken back, once too often."""
_CHANGES_STATE = re.compile(
    r" in (?:_?(?:offload|onload|sleep|wake_up|pause|resume|release_memory|resume_memory)\w*"
    r"|\w+_(?:offload|onload|sleep))$"
)
_SHOWN = 3


class _Engine:
    """What is known of one server while its requests are read in their order."""

    def __init__(self) -> None:
        self.is_asleep = False
        self.used_at: tuple[int, int, str] | None = None
        """The line, the offset and the words of the last use of it while it slept."""

    def take(self, text: str, line: int, offset: int) -> None:
        if _WAKE.search(text):
            self.is_asleep, self.used_at = False, None
        elif _SLEEP.search(text):
            self.is_asleep, self.used_at = True, None
        elif self.is_asleep and _is_use(text):
            self.used_at = line, offset, text.strip()


def _is_use(text: str) -> bool:
    """Whether a line is of a request that needs the memory of the engine; a generation that was answered had it."""
    return bool(_WEIGHTS.search(text)) or (bool(_GENERATE.search(text)) and not _ANSWERED.search(text))


def uses_while_asleep(evidence: LogEvidence, sources: Sequence[LogSource], library: Library) -> Iterator[Hit]:
    """The last request to an engine that slept, above the first line that can report its death."""
    effects = (library.entries[name] for name in library.direct_effects.get(ENTRY, ()))
    reports = {entry.id for entry in effects if entry.category != _OF_CONNECTIONS}
    for source in sources:
        deaths = [hit.place for hit in evidence.hits if hit.entry in reports and hit.place.file == source.name]
        if not deaths:
            continue
        death = min(deaths, key=lambda place: place.line)
        for line, offset, text in _used(source, death):
            place = replace(death, line=line, offset=offset)
            yield Hit(ENTRY, place, text, text)


def _used(source: LogSource, death: LogPlace) -> list[tuple[int, int, str]]:
    engines: dict[str, _Engine] = {}
    offset = 0
    for number, raw in enumerate(rows_of(source)[: death.line - 1], 1):
        if death.line - number <= _ROWS_ABOVE:
            line = clean(raw)
            end = offset + len(raw)  # that the server wrote the line down is no sign of life after it
            engines.setdefault(line.speaker.pid, _Engine()).take(line.text, number, end)
        offset += len(raw) + 1
    return [engine.used_at for engine in engines.values() if engine.used_at]


def told_of_memory(hits: Sequence[Hit], evidence: LogEvidence) -> CauseWords | None:
    """The functions of a stack in these logs that put something to sleep, or wake it, the outermost first."""
    said = hits[0].text[hits[0].text.find(hits[0].matched) :].strip()
    for failure in evidence.failures:
        calls = [short(frame) for frame in failure.frames if _CHANGES_STATE.search(frame)]
        if calls:
            return CauseWords(f"{said}; the call under way was {', then '.join(calls[:_SHOWN])}.")
    return None
