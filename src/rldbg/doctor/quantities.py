"""What the sizes and lengths in a message are in the settings of the log: a setting, or a sum or product of two.

Two numbers must be told so, or one as a sum or product: a single number can be the same by chance.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from rldbg.doctor.logged_settings import LoggedSettings
from rldbg.doctor.setting_kinds import ANSWER, BATCH, COPIES, OF_MODEL, PART_OF_BATCH, PROMPT, TOKENS, VOCABULARY

_OF_SIZES = re.compile(r"(?i)\b\w*(?:sizes?|shapes?|dimension|len(?:gth)?s?|tokens)\b")
_NUMBER = re.compile(r"(?<![\w.])\d{2,9}(?![\w.]*\w)")
_SMALLEST = 32
_TOLD = 3


class _Quantity(NamedTuple):
    value: int
    words: str
    is_derived: bool = False


def is_of_sizes(said: str) -> bool:
    return bool(_OF_SIZES.search(said) and _NUMBER.search(said))


def quantities(said: str, settings: LoggedSettings) -> str:
    """The numbers of a message with what each is in the settings, where that is proved by two of them."""
    numbers = [number for number in dict.fromkeys(map(int, _NUMBER.findall(said))) if number >= _SMALLEST]
    known = list(_quantities(settings))
    told: list[tuple[int, _Quantity]] = []
    for number in numbers:
        fit = [each for each in known if each.value == number]
        plain = [each for each in fit if not each.is_derived] or fit
        if len(plain) == 1 and not any(name in said for name in re.findall(r"\w+_\w+", plain[0].words)):
            told.append((number, plain[0]))
    if len(told) < 2 and not any(each.is_derived for _number, each in told):
        return ""
    return ", ".join(f"{number} is {each.words}" for number, each in told[:_TOLD])


def _quantities(settings: LoggedSettings) -> Iterator[_Quantity]:
    for shape in (TOKENS, PROMPT, ANSWER, BATCH, VOCABULARY, OF_MODEL):
        yield from (_Quantity(int(each.value), each.shown) for each in settings.like(shape))
    for one in settings.like(PROMPT):
        for other in settings.like(ANSWER):
            yield _Quantity(int(one.value + other.value), f"{one.name} + {other.name}", is_derived=True)
    copies = [each for each in settings.like(COPIES) if each.value > 1]
    for batch in settings.like(BATCH) if len(copies) == 1 else ():
        if not PART_OF_BATCH.search(batch.name):
            words = f"{batch.name} {int(batch.value)} x {copies[0].name} {int(copies[0].value)}"
            yield _Quantity(int(batch.value * copies[0].value), words, is_derived=True)
