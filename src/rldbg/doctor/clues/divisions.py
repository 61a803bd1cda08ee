"""Why one size does not divide another: from which settings of the log both numbers come, and what would fit."""

import math
import re
from collections.abc import Iterator, Sequence
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

from rldbg.doctor.clues.logged_settings import LoggedSetting, LoggedSettings
from rldbg.doctor.clues.setting_kinds import BATCH, COPIES, GPUS, NODES, PART_OF_BATCH, RANKS

_RULE = re.compile(r"(?i)\b(?:divisible|divides?|multiple of|equal chunk|evenly)\b")
_NUMBER = re.compile(
    r"(?<![\w.])(?P<one>\d{1,9})(?: ?[x*×] ?(?:[A-Za-z_][\w.]{0,60}[ =:(]{1,3})?(?P<other>\d{1,9}))?(?![\w.]*\w)"
)
_UNEQUAL = re.compile(r"(?<![\w.])(?P<left>\d{1,9}) ?!= ?(?P<right>\d{1,9}(?: ?\* ?\d{1,9}){1,4})(?!\w)")
_MICRO_STEPS_RANKS = re.compile(r"micro_batch\w* ?\* ?grad\w* ?\* ?world_size")
"""DeepSpeed's rule: of these three the steps of accumulation follow from the others."""
_NORMALISED = re.compile(r"(?i)\bnormali[sz](?:ed|ation)\b")
_MINI = re.compile(r"(?P<name>\w*mini_batch\w*)\D{1,4}(?P<value>\d{1,7})\b")
_OF_MODEL = re.compile(r"(?i)heads?\b|vocab|layers\b|hidden|intermediate|experts")
"""Sizes that nobody changes: the other number has to fit them."""
_LARGE, _SMALL = 4096, 64
"""A size so large that is split into so few parts is one of the model."""
_BREAKS = re.compile(r"[.;:,]\s")


class NumberRole(Enum):
    """What a number of a rule counts, and the words near it that say so."""

    RANKS = re.compile(r"(?i)\b(?:rank|gpu|world|chunk|worker|device|process)|(?:\b|_)[dt]p\b|parallel")
    COPIES = re.compile(r"(?i)generation|sample|group|\bn\b|repl")
    BATCH = re.compile(r"(?i)batch|mbs|DataProto")


class Source(NamedTuple):
    """A number of the settings, or a product of them, and its words."""

    value: int
    words: str
    is_product: bool
    role: NumberRole


class _Number(NamedTuple):
    value: int
    start: int
    end: int


def is_of_division(said: str) -> bool:
    """Whether a message states a rule on multiples."""
    return bool(_RULE.search(said) or _UNEQUAL.search(said) or (_NORMALISED.search(said) and _MINI.search(said)))


def division(said: str, settings: LoggedSettings) -> str:
    """What two sizes are of which one is no multiple of the other, and what would fit; nothing where the numbers of the
    message do not say that."""
    if found := _UNEQUAL.search(said):
        return _unequal(said, found)
    normalised = _normalised(said, settings)
    pair = _pair(said) if _RULE.search(said) else None
    if pair is None:
        return normalised
    whole, part = pair
    told = [f"{number} is {what}" for number, what in _explained(said, pair, settings) if what]
    known = normalised or ", ".join(told)
    return "; ".join(filter(None, (known, _fitting(said, whole, part))))


def _fitting(said: str, whole: _Number, part: _Number) -> str:
    is_large = whole.value >= _LARGE and part.value <= _SMALL
    if is_large or _OF_MODEL.search(_words_near(said, whole, part)):
        divisors = [size for size in range(2, part.value) if whole.value % size == 0]
        shown = ", ".join(map(str, divisors[-3:]))
        return f"below {part.value}, {shown} divide{'s' * (len(divisors) == 1)} {whole.value}" if divisors else ""
    below = whole.value // part.value * part.value
    if not below:
        return f"{whole.value} is less than {part.value}"
    return f"{below} and {below + part.value} are multiples of {part.value}"


def _pair(said: str) -> tuple[_Number, _Number] | None:
    """The two numbers of a rule on multiples: the first two that stand in it, if the one does not divide the other."""
    numbers = [
        _Number(int(found["one"]) * int(found["other"] or 1), found.start(), found.end())
        for found in _NUMBER.finditer(said)
    ]
    pairs = ((one, other) for one, other in pairwise(numbers) if one.value > 0 and other.value > 1)
    one, other = next(pairs, (None, None))
    return (one, other) if one is not None and other is not None and one.value % other.value else None


def _unequal(said: str, found: re.Match[str]) -> str:
    """`256 != 2 * 18 * 7`: what the product is, and which numbers beside it would do."""
    whole = int(found["left"])
    factors = [int(number) for number in re.findall(r"\d+", found["right"])]
    product = math.prod(factors)
    if product == whole:
        return ""
    shown = f"{' x '.join(map(str, factors))} is {product}, not {whole}"
    fixed = factors[0] * factors[-1]
    if not (_MICRO_STEPS_RANKS.search(said) and len(factors) == 3 and fixed):
        return shown
    below = whole // fixed * fixed
    if below == whole:
        return f"{shown}; {whole // fixed} steps of accumulation would fit"
    fit = f"{below} or {below + fixed}" if below else f"{fixed}"
    return f"{shown}; it has to be a multiple of {factors[0]} x {factors[-1]} ranks, as {fit} is"


def _normalised(said: str, settings: LoggedSettings) -> str:
    """A mini batch as trainers divide it over ranks, where the settings of the log give the number of the message."""
    mini = _MINI.search(said) if _NORMALISED.search(said) else None
    own = settings.named(mini["name"]) if mini else None
    copies = next(iter(settings.like(COPIES)), None)
    ranks = next(iter(_rank_counts(settings)), None)
    if mini is None or own is None or ranks is None:
        return ""
    for factor, words in ((_int(copies), f" x {copies.name} {_int(copies)}") if copies else (1, ""), (1, "")):
        if _int(own) * factor // ranks.value == int(mini["value"]):
            return f"{mini['value']} is {own.name} {_int(own)}{words} over {ranks.value} ranks ({ranks.words})"
    return ""


def _explained(said: str, pair: tuple[_Number, _Number], settings: LoggedSettings) -> Iterator[tuple[int, str]]:
    """For each of two numbers what it is in the settings, where the words around it leave one answer."""
    whole, part = pair
    sources = list(_sources(settings))
    for number, other in (whole, part), (part, whole):
        near = _words_near(said, number, other)
        fit = [each for each in sources if each.value == number.value and _may_be(each, near)]
        plain = [each for each in fit if not each.is_product] or fit
        told = list(dict.fromkeys(each.words for each in plain))
        is_named = any(name in said for each in told for name in re.findall(r"\w+_\w+", each))
        yield number.value, " and ".join(told) if 1 <= len(told) <= 2 and not is_named else ""


def _may_be(source: Source, near: str) -> bool:
    roles = [role for role in NumberRole if role.value.search(near)]
    return source.role in roles if roles else source.role is NumberRole.BATCH


def _words_near(said: str, number: _Number, other: _Number) -> str:
    """The words that a number belongs to: those of its sentence before it, up to the other number; else behind it."""
    begin = other.end if other.end <= number.start else 0
    before = _BREAKS.split(said[max(begin, number.start - 60) : number.start].rstrip(" :=(,"))[-1]
    return before if re.search(r"[A-Za-z]{2}", before) else said[number.end : number.end + 40]


def _sources(settings: LoggedSettings) -> Iterator[Source]:
    batches, copies = settings.like(BATCH), settings.like(COPIES)
    gpus, ranks = settings.like(GPUS), settings.like(RANKS)
    for role, atoms in ((NumberRole.BATCH, batches), (NumberRole.COPIES, copies), (NumberRole.RANKS, (*ranks, *gpus))):
        yield from (Source(_int(each), each.shown, False, role) for each in atoms)
    yield from (each for each in _rank_counts(settings) if each.is_product)
    if len(copies) == 1:
        yield from _products([each for each in batches if not PART_OF_BATCH.search(each.name)], copies)
    if len(gpus) == 1:
        yield from _products([each for each in batches if PART_OF_BATCH.search(each.name)], gpus)


def _rank_counts(settings: LoggedSettings) -> Iterator[Source]:
    """How many ranks a run has, as far as its launcher's settings say."""
    gpus, nodes = settings.like(GPUS), settings.like(NODES)
    if len(gpus) == 1 and len(nodes) == 1:
        words = f"{gpus[0].name} {_int(gpus[0])} x {nodes[0].name} {_int(nodes[0])}"
        yield Source(_int(gpus[0]) * _int(nodes[0]), words, _int(nodes[0]) > 1, NumberRole.RANKS)
    elif len(gpus) == 1:
        yield Source(_int(gpus[0]), gpus[0].shown, False, NumberRole.RANKS)


def _products(ones: Sequence[LoggedSetting], others: Sequence[LoggedSetting]) -> Iterator[Source]:
    for one in ones:
        for other in (each for each in others if _int(each) > 1):
            words = f"{one.name} {_int(one)} x {other.name} {_int(other)}"
            yield Source(_int(one) * _int(other), words, True, NumberRole.BATCH)


def _int(setting: LoggedSetting) -> int:
    return int(setting.value)
