"""What the numbers of a failure prove together with the settings that its log shows, as one sentence.

The log is read a second time only for an exception that states a rule on numbers: a division, an assertion, a size.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rldbg.doctor.clues.allocations import allocation, is_of_memory, longest_sample
from rldbg.doctor.clues.conditions import Condition, condition_of, parsed_condition
from rldbg.doctor.clues.divisions import division, is_of_division
from rldbg.doctor.clues.logged_settings import LoggedSettings
from rldbg.doctor.clues.setting_kinds import ANSWER, BATCH, COPIES, OF_MODEL, PART_OF_BATCH, PROMPT, TOKENS, VOCABULARY
from rldbg.doctor.knowledge.families import family_of
from rldbg.doctor.knowledge.library import Library
from rldbg.doctor.logs.evidence import Failure, Hit, LogEvidence
from rldbg.doctor.logs.sources import LogSource

RULE = "rule-of-settings-broken"
"""The entry that stands for a rule on settings which an assertion states."""
_OF_SETTING = re.compile(r"[a-z0-9]_[a-z]|\.")
"""How settings are called: a plain word may be any variable."""
_ASKED = 8
"""Of so many assertions the settings are looked up; ranks fail by the same one."""
_OF_SIZES = re.compile(r"(?i)\b\w*(?:sizes?|shapes?|dimension|len(?:gth)?s?|tokens)\b")
_NUMBER = re.compile(r"(?<![\w.])\d{2,9}(?![\w.]*\w)")
_SMALLEST = 32
_TOLD = 3


class _Quantity(NamedTuple):
    value: int
    words: str
    is_derived: bool = False


def told_by_numbers(failure: Failure, sources: Sequence[LogSource]) -> str:
    """The sentence on what the numbers of a failure are, or nothing where they prove nothing."""
    said = failure.headline
    is_of_numbers = is_of_division(said) or is_of_memory(said) or _is_of_sizes(said)
    if not is_of_numbers and parsed_condition(failure) is None:
        return ""
    settings = LoggedSettings.above(failure.place, sources)
    told = division(said, settings) or allocation(said, settings) or _sizes_told(said, settings)
    if not told and is_of_memory(said):
        told = longest_sample(failure.place, sources, settings)
    if told:
        return told
    condition = condition_of(failure, settings)
    is_told = condition is not None and condition.known and condition.holds is not True
    return condition.sentence(said) if condition is not None and is_told else ""


def broken_rules(evidence: LogEvidence, sources: Sequence[LogSource], library: Library) -> Iterator[Hit]:
    """Assertions without an entry whose condition is on settings: by the names in it, or by the values in the log with
    which it does not hold."""
    open_ones = [
        failure
        for failure in evidence.failures
        if failure.frames
        and not (failure.known_as or failure.warned or failure.chained)
        and parsed_condition(failure) is not None
    ]
    for failure in open_ones[:_ASKED]:
        family = family_of(failure, library.entries.values())
        if family is not None and not (family.family and family.family.yields):
            continue
        condition = condition_of(failure, LoggedSettings.above(failure.place, sources))
        if condition is not None and _is_of_settings(condition):
            yield Hit(RULE, failure.place, failure.headline, failure.headline)


def _is_of_settings(condition: Condition) -> bool:
    if condition.holds is True:
        return False
    is_proved = condition.holds is False and all(_OF_SETTING.search(setting.name) for _name, setting in condition.known)
    return is_proved or condition.is_of_settings


def _is_of_sizes(said: str) -> bool:
    return bool(_OF_SIZES.search(said) and _NUMBER.search(said))


def _sizes_told(said: str, settings: LoggedSettings) -> str:
    """The numbers of a message with what each is in the settings, where that is proved: by two of them, or by one that
    is a sum or product. A single number can be the same by chance."""
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
