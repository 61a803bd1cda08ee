"""Which tensor a GPU had no memory for, and how much memory an engine may take: sums of numbers that the log states.

A size is told as a product only if it is that product to the last digit shown: rows x vocabulary x bytes of a number.
"""

import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rldbg.doctor.clues.logged_settings import LoggedSetting, LoggedSettings
from rldbg.doctor.clues.mentions import rows_of
from rldbg.doctor.clues.setting_kinds import ANSWER, MICRO_BATCH, PROMPT, TOKENS, VOCABULARY
from rldbg.doctor.logs.cleaning import clean
from rldbg.doctor.logs.evidence import LogPlace
from rldbg.doctor.logs.sources import LogSource

_TRIED = re.compile(r"Tried to allocate (?P<number>\d+\.\d+) ?(?P<unit>[MG]iB|GB|MB)")
_UNITS = {"M": 1 << 20, "G": 1 << 30}
_MODELS = (
    (re.compile(r"(?i)\bqwen2\.5-(?:coder-|math-|vl-)?(?:7b|14b|32b|72b)"), 152064),
    (
        re.compile(
            r"(?i)\bqwen(?:2\.5-(?:coder-|math-|vl-)?(?:0\.5b|1\.5b|3b)|3-(?:0\.6b|1\.7b|4b|8b|14b|32b|30b-a3b))"
        ),
        151936,
    ),
    (re.compile(r"(?i)\bllama-?3(?:\.[123])?-\d"), 128256),
    (re.compile(r"(?i)\bdeepseek-(?:v3|r1)(?!-distill)"), 129280),
)
"""Rows of the output layer, where the log has the model's name and not its configuration."""
_BYTES = ((4, "float32"), (2, "16 bit"))
_LONGEST = re.compile(
    r"(?P<name>[\w./-]{0,60}(?:_len|length|tokens)[\w-]{0,20}/max)[\"']?[:=] ?(?P<tokens>\d{3,8})(?![\w.]*\d)"
)
"""How trainers print the longest sample of a batch."""
_LOOKED_BACK, _LINE_BYTES = 2000, 1 << 14
_FREE = re.compile(
    r"Free memory on device (?:\S{1,20} )?\((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\).{0,80}?"
    r"utilization \((?P<share>[\d.]+), (?P<asked>[\d.]+) GiB\)"
)


class _Rows(NamedTuple):
    number: int
    words: str


def is_of_memory(said: str) -> bool:
    """Whether a message says how much memory was asked for."""
    return bool(_TRIED.search(said) or _FREE.search(said))


def allocation(said: str, settings: LoggedSettings) -> str:
    """What the memory was for that a GPU did not have, or what share of it was free."""
    return _free_share(said) or _tensor(said, settings)


def _free_share(said: str) -> str:
    found = _FREE.search(said)
    if found is None:
        return ""
    free, total = float(found["free"]), float(found["total"])
    share = math.floor(free / total * 100) / 100 if total else 0.0
    return (
        f"{total - free:.1f} GiB of {total:g} GiB are held already, and {found['share']} of all are asked for: only "
        f"up to {share:.2f} is free"
    )


def _tensor(said: str, settings: LoggedSettings) -> str:
    tried = _TRIED.search(said)
    if tried is None:
        return ""
    number, digits = float(tried["number"]), len(tried["number"].partition(".")[2])
    unit = _UNITS[tried["unit"][0]]
    known = list(vocabularies(settings))
    for rows in _rows(settings):
        for size, whose in known:
            for width, name in _BYTES:
                if _is_size(rows.number * size * width, number * unit, unit / 10**digits):
                    return (
                        f"{tried['number']} {tried['unit']} is one tensor: {rows.number} tokens ({rows.words}) x "
                        f"{size} words of the vocabulary{whose} x {width} bytes, the {name} logits of all tokens"
                    )
    return ""


def longest_sample(place: LogPlace, sources: Sequence[LogSource], settings: LoggedSettings) -> str:
    """The longest sample that was counted last before a place, where it is longer than a limit of the settings."""
    source = next((each for each in sources if each.name == place.file), None)
    limits = sorted(settings.like(TOKENS), key=lambda each: each.value)
    rows = rows_of(source)[: max(0, place.line - 1)] if source is not None and limits else []
    for number in range(len(rows), max(0, len(rows) - _LOOKED_BACK), -1):
        found = _LONGEST.search(clean(rows[number - 1][:_LINE_BYTES]).text)
        if found is None:
            continue
        longest = int(found["tokens"])
        limit = next((each for each in limits if each.value < longest), None)
        if limit is None:
            return ""
        return (
            f"the longest sample before it has {longest} tokens ({found['name']}, line {number}), and {limit.shown} "
            f"allows {int(limit.value)}: it was not cut to it"
        )
    return ""


def _is_size(product: int, said: float, step: float) -> bool:
    """Whether a message that shows sizes in such steps would show this product so; the allocator takes whole 2 MiB."""
    taken = math.ceil(product / (2 << 20)) * (2 << 20)
    return any(abs(size - said) <= step / 2 * 1.001 for size in (product, taken)) and product > 100 * step


def vocabularies(settings: LoggedSettings) -> Iterator[tuple[int, str]]:
    """The sizes of the vocabulary that a log shows, with what shows them."""
    sizes = {int(each.value): each for each in settings.like(VOCABULARY) if each.value > 1000}
    if sizes:
        yield from ((size, f" ({each.shown})") for size, each in sizes.items())
        return
    yield from ((size, f" of {found[0]}") for model, size in _MODELS if (found := model.search(settings.text)))


def _rows(settings: LoggedSettings) -> Iterator[_Rows]:
    """How many tokens a batch of the settings has: a limit of tokens, one sequence, a micro batch of them; also without
    the last token of each, which predicts nothing."""
    whole = [(int(each.value), each.shown) for each in settings.like(TOKENS)]
    pairs = [
        (int(one.value + other.value), f"{one.name} + {other.name}")
        for one in settings.like(PROMPT)
        for other in settings.like(ANSWER)
    ]
    lengths = [(number, words) for number, words in (*whole, *pairs) if number > 1]
    for number, words in lengths:
        yield _Rows(number, words)
        yield _Rows(number - 1, f"{words}, less one")
    for micro in _above_one(settings.like(MICRO_BATCH)):
        for number, words in lengths:
            yield _Rows(int(micro.value) * number, f"{micro.name} {int(micro.value)} x {words}")
            yield _Rows(int(micro.value) * (number - 1), f"{micro.name} {int(micro.value)} x ({words}, less one)")


def _above_one(settings: Sequence[LoggedSetting]) -> list[LoggedSetting]:
    return [each for each in settings if each.value > 1]
