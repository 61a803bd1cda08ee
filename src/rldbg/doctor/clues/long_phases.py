"""Phases that took longer than the others waited: the likely reason of a collective that was not finished in time.

Programs print how long they took to save, to compile or to move weights. Where one such number is greater than the time
after which a collective gave up, the other ranks had stopped waiting before that phase was over.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from rldbg.doctor.clues.mentions import rows_of
from rldbg.doctor.logs.cleaning import Speaker, clean
from rldbg.doctor.logs.clock import stated_wait_s
from rldbg.doctor.logs.evidence import Hit, LogEvidence
from rldbg.doctor.logs.sources import LogSource

ENTRY = "phase-longer-than-timeout"
_COLLECTIVE = ("nccl-watchdog-timeout", "gloo-recv-timeout", "hccl-peer-late")
_LINES_BELOW = 4
_TOOK = re.compile(
    r"(?P<phase>[A-Za-z_][\w/.: \[\]=-]{2,120}?)\W{0,3}"
    r"\b(?:after|took|takes|in|elapsed|duration|time|cost|for|spent)\W{1,4}"
    r"(?P<number>\d{1,9}(?:\.\d{1,9})?) ?(?P<unit>ms|milliseconds|s|secs?|seconds|min|mins|minutes|h|hours)\b"
)
_MAY_SAY = re.compile(rb"(?:after|took|takes|in|elapsed|duration|time|cost|for|spent)\W{1,4}\d")
_OF_PHASE = re.compile(
    r"(?i)off-?load|on-?load|to_cpu|to_gpu|to_device|checkpoint|ckpt|\bsav(?:e|ed|ing)|load|compil|data ?set|"
    r"data ?load|refit|sync|capture|prepar|tokeni[sz]|download|upload|convert|warm-?up|gather"
)
_OF_A_LIMIT = re.compile(
    r"(?i)time-?d? ?-?out|\blimit|\bwait|interval|every|retry|\beta\b|remaining|will be|up to|at most"
)
"""Numbers that say how long something may take, or whoever waits for another."""
_LONGEST = 600
_SECONDS = {
    "ms": 0.001,
    "milliseconds": 0.001,
    "min": 60.0,
    "mins": 60.0,
    "minutes": 60.0,
    "h": 3600.0,
    "hours": 3600.0,
}


class _Row(NamedTuple):
    line: int
    offset: int
    text: str
    speaker: Speaker


def long_phases(evidence: LogEvidence, sources: Sequence[LogSource]) -> Iterator[Hit]:
    """The phase of each log that took longest, if that is longer than a collective of these logs waited; in the log of
    the collective only above it."""
    waits = [hit for hit in evidence.hits if hit.entry in _COLLECTIVE]
    if not waits:
        return
    raw = {source.name: rows_of(source) for source in sources}
    limits = [(hit, limit) for hit in waits if (limit := _limit_of(hit, raw.get(hit.place.file, [])))]
    for hit, limit in limits[:1]:
        for file, own in ((file, list(_rows(lines))) for file, lines in raw.items()):
            before = [row for row in own if file != hit.place.file or row.line < hit.place.line]
            told = [(seconds, row, said) for row in before for seconds, said in [_took(row.text)] if seconds > limit]
            if told:
                _seconds, row, said = max(told, key=lambda each: each[0])
                place = replace(hit.place, file=file, line=row.line, offset=row.offset, speaker=row.speaker, stamp=None)
                yield Hit(ENTRY, place, f"{said}; the collective gave up after {limit:g} s", said)


def _limit_of(hit: Hit, rows: Sequence[bytes]) -> float | None:
    """After how many seconds a collective gave up: its own line says it, or one right below."""
    below = rows[hit.place.line - 1 : hit.place.line + _LINES_BELOW]
    stated = (stated_wait_s(clean(row).text) for row in below)
    return hit.timeout_s or next((seconds for seconds in stated if seconds), None)


def _took(text: str) -> tuple[float, str]:
    """How many seconds a phase took, according to a line, and the words that say so; 0 where no phase is meant."""
    for found in _TOOK.finditer(text[:_LONGEST]) if _OF_PHASE.search(text[:_LONGEST]) else ():
        if _OF_PHASE.search(found["phase"]) and not _OF_A_LIMIT.search(found["phase"]):
            return float(found["number"]) * _SECONDS.get(found["unit"], 1.0), found[0].strip()
    return 0.0, ""


def _rows(lines: Sequence[bytes]) -> Iterator[_Row]:
    """Those lines that may say how long something took: only they are cleaned."""
    offset = 0
    for number, raw in enumerate(lines, 1):
        if _MAY_SAY.search(raw[:_LONGEST]):
            line = clean(raw)
            yield _Row(number, offset, line.text, line.speaker)
        offset += len(raw) + 1
