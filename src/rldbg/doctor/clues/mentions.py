"""What a log says elsewhere about the things that an exception names: a key, an attribute, a setting, a number.

An exception of a general kind says what is missing, not why. The reason may stand hundreds of lines above it, in a
warning or a setting that has the same name in it. A name tells something where most lines do not have it. A part of a
name (`reference` of `reference_state_dict`) must be in no more lines than are shown, and in no more known failures than
a word of theirs is on average.
"""

import builtins
import contextlib
import keyword
import math
import re
import zlib
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from statistics import mean
from typing import NamedTuple

from rldbg.doctor.knowledge.library import Library
from rldbg.doctor.logs.cleaning import clean, without_environment
from rldbg.doctor.logs.evidence import Failure, Hit, LogEvidence
from rldbg.doctor.logs.exception_lines import LAST_ERROR_WORDS
from rldbg.doctor.logs.failures import skeleton
from rldbg.doctor.logs.frames import asks, short
from rldbg.doctor.logs.run_evidence import is_crash_file
from rldbg.doctor.logs.sources import LogSource
from rldbg.doctor.logs.standing import is_warning, level_of
from rldbg.doctor.logs.tracebacks import frame_in, is_frame_part
from rldbg.doctor.logs.window import FOLDED_UP_TO_BYTES

SHOWN = 3
_ERRORS = ("ERROR", "CRITICAL", "FATAL")
_READ_BYTES = 4 * FOLDED_UP_TO_BYTES
"""Of all logs together, that of the failure first."""
_QUOTED = re.compile(r"['\"`]([^'\"`\n]{3,100})['\"`]")
_NAME = re.compile(r"[A-Za-z0-9]+(?:[_.:/-]+[A-Za-z0-9]+)*")
_PART = re.compile(r"[A-Z]?[a-z]+\d*|[A-Z]+\d*(?![a-z])|\d{3,}")
_SHORTEST = 4
_IDENTIFIER = re.compile(r"[A-Za-z_]\w+")
_OF_PYTHON = frozenset({*dir(builtins), *keyword.kwlist, "NoneType", "self", "args", "kwargs", "init", "main"})
_ID = re.compile(r"[0-9a-f#-]*#[0-9a-f#-]*")
_SETTING = re.compile(r"([A-Za-z_][\w.]{2,})[\"']?(?: ?= ?|: )[\"'\w\[{(-]")
_DUMP = 8
"""A line with more settings shows all there are."""
_SHAPES = re.compile(r"(?i)shape|size|dimension|broadcast")
_SIZE = re.compile(r"(?<![\w.])\d{1,9}(?![\w.])")
_PARALLEL = re.compile(
    r"(\w*parallel\w*|(?:\w+_)?(?:tp|pp|cp|sp|ep|dp|ulysses|sequence)_size)[\"']?(?: ?= ?|: ?|\s)"
    r"(\d{1,4}|[Tt]rue|[Ff]alse)\b"
)
"""Settings that split tensors over ranks."""
_REFUSED = re.compile(
    r"(?:Error code: |Client error '|HTTP |status(?:_code)?[:= ]{1,3})(4\d\d)\b|\b(4\d\d)(?:, message=| Client Error)"
)
"""How clients write the status of an answer that refuses what was asked."""
_COUNTS = re.compile(r"\d+%\||\d+/\d+ \[|(?:it/s|s/it)\b|(?:[\w/]+[:=] ?-?[\d.e-]+[, |-]+){4}")
"""A bar, or the numbers of a step: what counts everything mentions everything."""


_NCCL_WARNS = re.compile(r"\bNCCL WARN (?!\S+:\d+ -> \d)(?P<said>\S.*)")


class Mention(NamedTuple):
    """A line that has a name of the exception."""

    file: str
    line: int
    text: str
    word: str


class _Line(NamedTuple):
    file: str
    number: int
    text: str


def mentions(
    failure: Failure, sources: Sequence[LogSource], evidence: LogEvidence, library: Library
) -> tuple[Mention, ...]:
    """The lines above a failure, or in another log, with its rarest names; at most as many as are worth reading."""
    named = _names(failure)
    names = frozenset(name for name in named if _is_name(name))
    parts = {part for name in named for part in _parts(name)}
    found: dict[tuple[str, frozenset[str]], _Line] = {}
    log = _LinesAbove(failure, evidence, parts)
    lines = [line for source in _own_first(sources, failure) for line in log.read(source)]
    for line in lines:
        if words := _words_in(line.text, names, parts):
            found[_shape(line.text), words] = line
    lines_with = Counter(word for _shape_of, words in found for word in words)
    entries = _entries_with(library)
    usual = mean(entries.values())
    rarity = {
        word: math.log((1 + len(library.entries)) / (1 + entries[word]))
        for word, count in lines_with.items()
        if count <= (log.count // 2 if word in names else SHOWN) and (word in names or entries[word] <= usual)
    }

    def weight(words: frozenset[str], line: _Line) -> tuple[bool, float, int]:
        return any(word in names for word in words), sum(rarity[word] for word in words), line.number

    own_words = _split_sizes(failure, lines) or _refusals(failure, lines)
    shown = {(mention.file, mention.line) for mention in own_words}
    told = [(words & rarity.keys(), line) for (_shape_of, words), line in found.items()]
    told = [(words, line) for words, line in told if words and (words & names or _is_telling(line.text, words))]
    best = sorted(told, key=lambda each: weight(*each), reverse=True)[:SHOWN]
    found_ones = [
        Mention(line.file, line.number, line.text.strip(), max(words, key=lambda word: (rarity[word], word)))
        for words, line in sorted(best, key=lambda each: each[1].number)
        if (line.file, line.number) not in shown
    ]
    told_errors = _errors_above(lines, {(mention.file, mention.line) for mention in (*own_words, *found_ones)})
    return (*own_words, *found_ones, *told_errors)[:SHOWN]


def words_of_nccl(symptom: Hit, sources: Sequence[LogSource]) -> Mention | None:
    """What NCCL itself says of an error that others only report: the warning, or the last error, of the same process
    that is nearest above the report, or the first one below it; where that process says nothing, of any other."""
    file = symptom.place.file
    rows = next((rows_of(source) for source in sources if source.name == file), [])
    told: list[tuple[bool, Mention]] = []
    for number, raw in enumerate(rows, 1):
        words = ""
        if b"NCCL WARN" in raw and (warns := _NCCL_WARNS.search(clean(raw).text)):
            words = warns["said"]
        elif LAST_ERROR_WORDS.encode() in raw:
            below = clean(rows[number]).text if number < len(rows) else ""
            words = clean(raw).text.partition(LAST_ERROR_WORDS)[2].strip() or below.strip()
        if words:
            is_own = clean(raw).speaker.may_be(symptom.place.speaker)
            told.append((is_own, Mention(file, number, words, "")))
    own = [mention for is_own, mention in told if is_own] or [mention for _is_own, mention in told]
    above = [mention for mention in own if mention.line <= symptom.place.line]
    return next(iter((*above[-1:], *own)), None)


def rows_of(source: LogSource) -> list[bytes]:
    """The lines of a log that is small and can be read a second time; else none."""
    with contextlib.suppress(OSError, EOFError, zlib.error):
        if _readable([source]) and source.size <= FOLDED_UP_TO_BYTES:
            with source.open() as stream:
                return stream.read(FOLDED_UP_TO_BYTES).split(b"\n")
    return []


def _errors_above(lines: Sequence[_Line], shown: Container[tuple[str, int]]) -> list[Mention]:
    """What was called an error before a failure, each wording once, that which came most often first."""
    told = [line for line in lines if level_of(line.text) in _ERRORS and (line.file, line.number) not in shown]
    counts = Counter(_shape(line.text) for line in told)
    last = {_shape(line.text): line for line in told}
    return [
        Mention(line.file, line.number, line.text.strip(), "") for line in (last[s] for s, _n in counts.most_common())
    ]


def _split_sizes(failure: Failure, lines: Sequence[_Line]) -> list[Mention]:
    """Where one size in the message is a multiple of the other: the settings that split something into so many."""
    sizes = [int(number) for number in _SIZE.findall(failure.message)] if _SHAPES.search(failure.message) else []
    pairs = [(max(pair), min(pair)) for pair in pairwise(sizes) if min(pair) > 0 and max(pair) > min(pair)]
    whole, part = next(((a, b) for a, b in pairs if a % b == 0), (0, 1))
    for line in lines:
        found = [(name, value) for name, value in _PARALLEL.findall(line.text) if value.lower() != "false"]
        if str(whole // part) in (value for _name, value in found):
            said = ", ".join(f"{name}={value}" for name, value in found if value != "1")
            text = f"{said}; {whole} is {whole // part} x {part}: as if one side were split so and the other not"
            return [Mention(line.file, line.number, text, said)]
    return []


def _refusals(failure: Failure, lines: Sequence[_Line]) -> list[Mention]:
    """Where the message has the status with which a server refused a request: what the server's own errors of that
    status say, each once."""
    refused = _REFUSED.search(failure.message)
    if refused is None:
        return []
    status = next(filter(None, refused.groups()))
    is_status = re.compile(rf"(?<![\w.:-]){status}(?![\w.:-])")
    told = {_shape(line.text): line for line in lines if is_status.search(line.text) and level_of(line.text) == "ERROR"}
    return [Mention(line.file, line.number, line.text.strip(), status) for line in told.values()]


def _is_telling(text: str, words: frozenset[str]) -> bool:
    """Whether a line with parts of names tells something about them: it warns, or sets something that is called so; in
    a dump of all settings one word is not enough."""
    settings = _SETTING.findall(text)
    least = 2 if len(settings) > _DUMP else 1
    is_set = any(len(_parts(name) & words) >= least for name in settings)
    return is_set or is_warning(text) or level_of(text) in _ERRORS or len(words) > 1


def _shape(text: str) -> str:
    """A line without what differs from one repetition to the next: numbers, paths and ids."""
    return _ID.sub("#", skeleton(text))


def _names(failure: Failure) -> frozenset[str]:
    """What an exception names: what it quotes, what is written like a name in its message, what the failing line uses,
    and the functions and modules that raised it."""
    quoted = _QUOTED.findall(failure.message)
    written = [name for name in _NAME.findall(failure.message) if _is_name(name)]
    used = _IDENTIFIER.findall(failure.code)
    asking = next((frame for frame in reversed(failure.frames) if asks(frame)), failure.frames[-1])
    raised = [piece for frame in {failure.frames[-1], asking} for piece in _pieces(short(without_environment(frame)))]
    found = (*quoted, *written, *used, *raised)
    return frozenset(name for name in found if len(name) >= _SHORTEST and name not in _OF_PYTHON)


def _is_name(word: str) -> bool:
    """Whether a word is no plain one: it has a capital inside, an underscore, a digit among letters, or is a number."""
    return bool(re.search(r"[_:/-]|[a-z][A-Z]|[A-Za-z]\d|\d[A-Za-z]|^\d{3,}$", word))


def _pieces(frame: str) -> Iterator[str]:
    """The function of a frame, its file and the folder of that."""
    place, _in, function = frame.rpartition(" in ")
    yield function
    yield from place.partition(".py")[0].split("/")[-2:]


def _parts(name: str) -> set[str]:
    """The words of a name, in lower case and without the sign of a plural; without those of Python itself."""
    if name in _OF_PYTHON:
        return set()
    words = (part.lower().removesuffix("s") for part in _PART.findall(name))
    return {word for word in words if len(word) >= _SHORTEST or re.search(r"[a-z]\d", word)}


def _words_in(text: str, names: frozenset[str], parts: set[str]) -> frozenset[str]:
    whole = {name for name in names if name in text and _stands_alone(name, text)}
    return (_parts_of_line(text) & parts) | whole


def _stands_alone(name: str, text: str) -> bool:
    return re.search(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", text) is not None


@lru_cache(maxsize=4096)
def _parts_of_line(text: str) -> frozenset[str]:
    return frozenset().union(*(_parts(name) for name in _NAME.findall(text)))


def _own_first(sources: Sequence[LogSource], failure: Failure) -> list[LogSource]:
    """The logs that can be read a second time, that of the failure first."""
    return sorted(_readable(sources), key=lambda source: source.name != failure.place.file)


def _readable(sources: Sequence[LogSource]) -> list[LogSource]:
    """The logs that can be read a second time, which a pipe cannot; a crash file has nothing but the failure."""
    return [source for source in sources if source.path is not None and not is_crash_file(source.path)]


class _LinesAbove:
    """The lines above a failure, and those of other logs, that have one of some words, are no part of a traceback and
    no bar, and do not repeat the failure."""

    def __init__(self, failure: Failure, evidence: LogEvidence, words: Iterable[str]) -> None:
        self.count = 0
        """How many lines were looked at."""
        self._failure = failure
        self._left = _READ_BYTES
        self._words = re.compile(
            b"|".join(re.escape(word.encode()) for word in (*words, "parallel", "_size", "error")), re.I
        )
        self._own = {
            (each.place.file, line)
            for each in evidence.failures
            for line in range(each.place.line, each.place.line + each.lines)
        }

    def read(self, source: LogSource) -> Iterator[_Line]:
        if source.size > min(FOLDED_UP_TO_BYTES, self._left):
            return
        with contextlib.suppress(OSError, EOFError, zlib.error), source.open() as stream:
            data = stream.read(FOLDED_UP_TO_BYTES)
            self._left -= len(data)
            rows = data.split(b"\n")
            is_own = source.name == self._failure.place.file
            rows = rows[: self._failure.place.line - 1] if is_own else rows
            self.count += len(rows)
            for number, raw in enumerate(rows, 1):
                if self._words.search(raw) and (source.name, number) not in self._own:
                    yield from self._told(_Line(source.name, number, clean(raw).text))

    def _told(self, line: _Line) -> Iterator[_Line]:
        said = self._failure.message
        is_repeated = (len(said) >= _SHORTEST and said in line.text) or not line.text
        if not (is_repeated or frame_in(line.text) or is_frame_part(line.text) or _COUNTS.search(line.text)):
            yield line


@lru_cache(maxsize=1)
def _entries_with(library: Library) -> Mapping[str, int]:
    """How many known failures have a word in what is written about them."""
    found: Counter[str] = Counter()
    for entry in library.entries.values():
        examples = (example for signature in entry.signatures for example in signature.examples)
        found.update(_parts_of_line("\n".join((entry.title, entry.cause, *entry.fix, *entry.look, *examples))))
    return found
