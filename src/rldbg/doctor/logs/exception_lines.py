"""The line with which an exception is printed: its type, its message, and the lines below that belong to it."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rldbg.doctor.logs.cleaning import Line
from rldbg.doctor.logs.evidence import Failure
from rldbg.doctor.logs.standing import level_of
from rldbg.doctor.logs.window import RECORD_START

TRACEBACK = "Traceback (most recent call last)"
_EXCEPTION = re.compile(
    r"^(?P<type>(?:(?:[A-Za-z_]\w*\.)*(?:Exception|[A-Za-z_]\w*"
    r"(?:Error|Exception|Exit|Interrupt|Timeout|Failure|Refused|Expired|Died|Full|Quit|NotFound|Empty|Warning|Abort|Invalid)\w*"
    r"|Stop(?:Async)?Iteration)"
    r"|(?:[a-z_]\w*\.)+[A-Z]\w+)"
    r"(?:\([\w.]+\))?)(?:: ?(?P<message>.*))?$"
)
_TWICE = re.compile(r"(?P<type>[\w.]*(?:Error|Exception))(?P=type)+(?:: )+(?P<said>.+?)(?P=said)*$")
"""What processes write that raise the same at the same time, word by word."""
LEVELLED = re.compile(
    r"^(?:ERROR|CRITICAL|FATAL|\[?E(?:RROR)?\]?)\b"
    r"(?: \d{4}-\d\d-\d\dT[\d:.]+Z? +|[^A-Za-z\[]{0,40}(?:\[[^\]]{1,60}|[\w./-]{1,60}:\d+)\] *|[^A-Za-z]{0,40})"
    r"|^\[[^\]]{0,80}\] *|^\d{4}-\d\d-\d\d[ T][\d:.,]+Z? +"
)
CHAIN = re.compile(r"(?:During handling of the above|The above exception was the direct cause)")
_WARNING_TYPES = re.compile(r"Warning$")
LAST_ERROR_WORDS = "Last error:"
LINES_BELOW = 5
_LONGEST = 800
_ERRORS = ("ERROR", "CRITICAL", "FATAL")
_NO_ERRORS = ("INFO", "DEBUG", "TRACE", "NOTICE", "WARNING")
_TAIL = 120
_BAR = re.compile(r"[━█▏▎▍▌▋▊▉╸]{3,}|\d%\|")
"""How progress bars are drawn."""


def _next_words(lines: Sequence[Line]) -> Iterator[str]:
    """The lines under an exception whose message ends with a colon: those of one process that begin nothing else."""
    for line in lines:
        text = line.text.strip()
        if not text or TRACEBACK in text or CHAIN.search(text) or as_exception(text) or RECORD_START.match(text):
            return
        if line.speaker != lines[0].speaker or _BAR.search(text):
            return
        yield text[:300]


def lines_of_message(own: Line, below: Iterable[Line]) -> Iterator[str]:
    """The lines under an exception that belong to its message: of the same process, indented, or errors, up to where
    something else begins."""
    for line in below:
        text = line.text
        level = level_of(text)
        begins = TRACEBACK in text or CHAIN.search(text) or as_exception(text)
        if (line.speaker.known and not own.speaker.known) or not own.speaker.may_be(line.speaker):
            return
        if not text.strip() or begins or (RECORD_START.match(text) and level not in _ERRORS) or level in _NO_ERRORS:
            return
        if not (own.speaker.known or text[:1].isspace() or level in _ERRORS):
            return
        yield text.strip()[:300]


class Raised(NamedTuple):
    """An exception as its line tells it."""

    kind: str
    message: str
    goes_on: bool
    """Its line ends with a colon: the message begins below."""


def message_of(found: Raised, above: Iterable[Line], below: Sequence[Line]) -> str:
    """What an exception says; a bare AssertionError says what it asserted, from the code that is shown above it. What
    NCCL says itself stands below torch's words."""
    kind, said, goes_on = found
    if said.startswith("NCCL error") and (last := _last_error(below)):
        return f"{said[: 300 - len(last)]}; {LAST_ERROR_WORDS} {last}"
    code = (LEVELLED.sub("", line.text.strip(), count=1).strip() for line in above)
    asserted = next((text[:300] for text in code if text.startswith("assert ")), "") if kind == "AssertionError" else ""
    if goes_on:
        said = " ".join(filter(None, (said, *_next_words(below))))[:_LONGEST]
    return said or asserted


def last_error(failure: Failure) -> str:
    """What NCCL itself says, in the exception that torch makes of it."""
    return failure.message.partition(f"; {LAST_ERROR_WORDS} ")[2]


def _last_error(below: Sequence[Line]) -> str:
    texts = [line.text.strip() for line in below]
    heads = (number for number, text in enumerate(texts) if text.endswith(LAST_ERROR_WORDS))
    return next((texts[number + 1][:200] for number in heads if number + 1 < len(texts)), "")


def as_exception(text: str) -> Raised | None:
    stripped = text.strip()
    if twice := _TWICE.match(stripped):
        stripped = f"{twice['type']}: {twice['said']}"
    match = _EXCEPTION.match(stripped) or _EXCEPTION.match(LEVELLED.sub("", stripped, count=1))
    if match is None or _WARNING_TYPES.search(match["type"]):
        return None
    return Raised(match["type"], shortened((match["message"] or "").strip()), stripped.endswith(":"))


def shortened(text: str) -> str:
    """A long message with its beginning and its end: behind what a program was given it says what became of that."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - _TAIL]} … {text[-_TAIL:]}"
