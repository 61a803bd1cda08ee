"""Which steps of an entry fit the programs of a log: those for another engine than the one that runs there do not."""

import re
from collections.abc import Sequence

_FOR_ONE = re.compile(r"(?P<program>[A-Za-z][\w-]{2,20}(?: RL)?): ")
"""How a step begins that is for one program only."""


def fitting(steps: Sequence[str], seen: str, programs: Sequence[str]) -> tuple[str, ...]:
    """The steps without those for programs that the log, in lower case, never names, where others are for one that it
    does name."""
    owners = [_owner(step, programs) for step in steps]
    named = {owner for owner in owners if owner and owner in seen}
    return tuple(step for step, owner in zip(steps, owners, strict=True) if not named or not owner or owner in named)


def _owner(step: str, programs: Sequence[str]) -> str:
    found = _FOR_ONE.match(step)
    name = found["program"].lower() if found else ""
    return name if name in programs else ""
