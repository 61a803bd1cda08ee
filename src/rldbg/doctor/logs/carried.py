"""Exceptions that only carry another one: its own line, or its traceback, begins below their words or inside them.

A compiler's `backend='inductor' raised:`, a launcher's `Original exception was`, Hydra's `Error in call to target`, a
data loader's `Caught KeyError in DataLoader worker process 0.` say where something failed; the inner one says why.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from rldbg.doctor.logs.cleaning import Line
from rldbg.doctor.logs.exception_lines import CHAIN, TRACEBACK, Raised, as_exception

_ANNOUNCES = re.compile(
    r"(?i)\b(?:original|root|inner|underlying) (?:exception|error|cause)(?: was| is)?$|\bcaused by$"
)
"""How a message ends that announces an exception, where no colon does."""
_OF_CALL = re.compile(r"Error in call to target ['\"]?(?P<target>[\w.]{1,200})['\"]?:(?= |$)\s*")
"""Hydra's words for a class or a function of the configuration that raised."""
_SHOWN = re.compile(
    r"(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*)\((?P<quote>['\"])(?P<message>.{1,600}?)(?P=quote)(?:, .{0,200})?\)$"
)
"""An exception as Python shows the object: `ValueError('wrong')`."""
_ORIGINAL = f"Original {TRACEBACK}"
_LINES_BETWEEN = 3


class Carried(NamedTuple):
    """The exception inside another one."""

    inner: Raised
    below: int
    """How many lines below the outer one it stands; 0 in the same line."""


def carried_by(outer: Raised, own: Line, below: Sequence[Line]) -> Carried | None:
    """The exception that the message of one, which begins in a line of its own, announces and shows."""
    call = _OF_CALL.search(outer.message)
    if call and (inner := _shown(outer.message[call.end() :])):
        return Carried(inner, 0)
    if not outer.message or not (outer.goes_on or _ANNOUNCES.search(outer.message)):
        return None
    for number, line in enumerate(below[:_LINES_BETWEEN], 1):
        if text := line.text.strip():
            inner = as_exception(text) or _shown(text)
            return Carried(inner, number) if inner and line.speaker == own.speaker else None
    return None


def call_in_configuration(line: Line, below: Sequence[Line]) -> Carried | None:
    """What a class or a function of the configuration raised, where Hydra prints its words without the exception that
    it makes of them."""
    call = _OF_CALL.match(line.text.strip())
    return carried_by(Raised("", line.text.strip(), goes_on=True), line, below) if call else None


def quoted_head(outer: Raised, below: Sequence[Line]) -> int | None:
    """How many lines below an exception the traceback begins with which its message goes on."""
    announced = outer.goes_on
    for number, line in enumerate(below[: _LINES_BETWEEN + 1], 1):
        text = line.text.strip()
        if TRACEBACK in text:
            return number if announced or _ORIGINAL in text else None
        if CHAIN.search(text) or (text and not text.endswith(":")):
            return None
        announced = announced or bool(text)
    return None


def _shown(text: str) -> Raised | None:
    found = _SHOWN.match(text.strip())
    return Raised(found["type"], found["message"], goes_on=False) if found else None
