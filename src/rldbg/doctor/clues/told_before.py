"""What the lines above a failure say of the very thing that it is about, put into a sentence for its verdict.

A message names a thing and not its history: a key whose request was given up before, an adapter of which another
version is loaded by now, a size that is a limit in the settings. Each needs an exact name or number of the message.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from rldbg.doctor.clues.mentions import rows_of
from rldbg.doctor.logs.cleaning import clean
from rldbg.doctor.logs.evidence import LogPlace
from rldbg.doctor.logs.exception_lines import CHAIN, TRACEBACK, as_exception
from rldbg.doctor.logs.sources import LogSource
from rldbg.doctor.logs.tracebacks import frame_in

_QUOTED = re.compile(r"['\"`]([^'\"`\s]{6,120})['\"`]")
_ID = re.compile(r"(?=.*\d)[\w.:/-]{8,}$")
"""A name with digits, as ids of requests, rows and versions are; no word of a program."""
_GIVEN_UP = re.compile(
    r"(?i)\b(?:timed? ?-?out|re-?queu\w+|drop(?:ped|ping)|evict\w+|expired|cancel\w*|abort\w*|gave up|given up|"
    r"gave no answer|discard\w*|removed|deleted|skipp\w+|lost|stale|fail(?:ed|ure)|put back)\b"
)
_OF_MODELS = re.compile(
    r"(?i)\b(?:model|adapter|lora|checkpoint|version)\b.{0,160}(?:does not exist|not (?:found|loaded|served)|unknown)"
)
_IS_LIMIT = re.compile(r"(?i)max|limit|len|context")
_NUMBER = re.compile(r"\d+")
_TAKES_PLACE = re.compile(r"(?i)\b(?:load\w*|add\w*|updat\w*|regist\w*|swap\w*|switch\w*|serv\w*|creat\w*)\b")
_OF_SIZES = re.compile(r"(?i)\b(?:sizes?|shapes?|dimension|length|expected)\b")
_SIZE = re.compile(r"(?<![\w.])\d{2,9}(?![\w.])")
_NAMED_SIZE = re.compile(r"\w_\w+ ?[(=:] ?(?P<value>\d{2,9})(?![\w.])")
"""A number behind its own name: the message says what it is."""
_SETTING = re.compile(
    r"(?P<name>[A-Za-z_][\w.]*(?:len|size|tokens|width|seq|dim|limit|context)\w*)"
    r"[\"']? ?[=:] ?[\"']?(?P<value>\d{2,9})\b"
)
_SHOWN = 160


class _Row(NamedTuple):
    number: int
    text: str


def told_before(place: LogPlace, said: str, sources: Sequence[LogSource]) -> str:
    """A sentence on what the log says above a place of the thing that a line, or an exception, there names."""
    tellers: tuple[Callable[[str, Sequence[_Row], str], str], ...] = (_given_up, _other_version, _configured)
    source = next((each for each in sources if each.name == place.file), None)
    if source is None or not (_QUOTED.search(said) or _OF_SIZES.search(said)):
        return ""
    rows = [_Row(number, text) for number, text in _telling_rows(source, place)]
    return next((told for tell in tellers if (told := tell(said, rows, place.file))), "")


def _telling_rows(source: LogSource, place: LogPlace) -> Iterator[tuple[int, str]]:
    for number, raw in enumerate(rows_of(source)[: max(0, place.line - 1)], 1):
        text = clean(raw).text
        if TRACEBACK not in text and not (CHAIN.search(text) or frame_in(text) or as_exception(text)):
            yield number, text


def _given_up(said: str, rows: Sequence[_Row], file: str) -> str:
    """The last line that says that a request, a task or a row of this id was given up or tried again."""
    ids = [name for name in _QUOTED.findall(said) if _ID.match(name)]
    for name in ids:
        told = [row for row in rows if name in row.text and _GIVEN_UP.search(row.text)]
        if told:
            last, row = told[-1].number, told[-1].text.strip()[:_SHOWN]
            return f"above it the log says of the same id: {row} ({file}:{last}), so what was given up is asked for"
    return ""


def _other_version(said: str, rows: Sequence[_Row], file: str) -> str:
    """The last line in which a thing was loaded whose name differs from the one asked for only in a number."""
    names = _QUOTED.findall(said) if _OF_MODELS.search(said) else []
    for name in (name for name in names if _ID.match(name)):
        head, number, _rest = name.rpartition(_NUMBER.findall(name)[-1])
        alike = re.compile(re.escape(head) + r"(\d+)(?![\w-])")
        for row in reversed(rows):
            found = next((m for m in alike.finditer(row.text) if m[0] != name and _TAKES_PLACE.search(row.text)), None)
            if found and len(head) >= len(name) // 2:
                is_newer = int(found[1]) > int(number)
                how = "it was replaced while requests for it were in flight" if is_newer else "it is not there yet"
                return f"{name} is asked for, and {found[0]} was loaded above ({file}:{row.number}): {how}"
    return ""


def _configured(said: str, rows: Sequence[_Row], file: str) -> str:
    """The setting whose value is one of the sizes that do not fit, and the size beside it."""
    own = set(_NAMED_SIZE.findall(said))
    sizes = [int(size) for size in _SIZE.findall(said) if size not in own] if _OF_SIZES.search(said) else []
    for row in rows:
        for found in _SETTING.finditer(row.text):
            value = int(found["value"])
            other = next((size for size in sizes if size != value), None)
            if value in sizes and other is not None:
                is_over = _IS_LIMIT.search(found["name"]) and 0 < other - value < value
                more = f", and {other} is longer: something was not cut or filtered to it" if is_over else ""
                return f"{value} is {found['name']} ({file}:{row.number}){more}"
    return ""
