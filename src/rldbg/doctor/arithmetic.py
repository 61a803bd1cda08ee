"""What the numbers of a failure prove together with the settings that its log shows, as one sentence.

The log is read a second time only for an exception that states a rule on numbers: a division, an assertion, a size.
"""

import re
from collections.abc import Iterator, Sequence

from rldbg.doctor.allocations import allocation, is_of_memory
from rldbg.doctor.conditions import Condition, condition_of, parsed_condition
from rldbg.doctor.divisions import division, is_of_division
from rldbg.doctor.evidence import Failure, Hit, LogEvidence
from rldbg.doctor.families import family_of
from rldbg.doctor.library import Library
from rldbg.doctor.logged_settings import LoggedSettings
from rldbg.doctor.quantities import is_of_sizes, quantities
from rldbg.doctor.sources import LogSource

RULE = "rule-of-settings-broken"
"""The entry that stands for a rule on settings which an assertion states."""
_OF_SETTING = re.compile(r"[a-z0-9]_[a-z]|\.")
"""How settings are called: a plain word may be any variable."""
_ASKED = 8
"""Of so many assertions the settings are looked up; ranks fail by the same one."""


def told_by_numbers(failure: Failure, sources: Sequence[LogSource]) -> str:
    """The sentence on what the numbers of a failure are, or nothing where they prove nothing."""
    said = failure.headline
    is_of_numbers = is_of_division(said) or is_of_memory(said) or is_of_sizes(said)
    if not is_of_numbers and parsed_condition(failure) is None:
        return ""
    settings = LoggedSettings.above(failure.place, sources)
    if told := division(said, settings) or allocation(said, settings) or quantities(said, settings):
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
