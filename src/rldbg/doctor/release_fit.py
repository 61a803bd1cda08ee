"""Which of two packages is too old or too new for the other, as the releases that the log prints and the history of
their interfaces tell."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from rldbg.doctor.api_history import asked_package, told_by_history
from rldbg.doctor.evidence import Failure
from rldbg.doctor.releases import printed_releases
from rldbg.doctor.sources import LogSource

_OF_INTERFACE = re.compile(
    r"unexpected keyword argument|missing \d+ required (?:positional|keyword-only)|cannot import name|No module named|"
    r"has no attribute"
)
_COMPARED = re.compile(r"pip show ((?:[a-z][\w-]*(?: (?=[a-z]))?)+)")


class ReleaseFit(NamedTuple):
    """The detail of a cause with the releases in it, and what to install."""

    detail: str
    fix: tuple[str, ...]


def told_by_releases(failure: Failure, detail: str, sources: Sequence[LogSource]) -> ReleaseFit | None:
    """What the releases say of an exception about something that another package does not have."""
    said = failure.headline
    if not _OF_INTERFACE.search(said):
        return None
    compared = [name for found in _COMPARED.findall(detail) for name in found.split()]
    packages = dict.fromkeys((asked_package(said), *compared))
    printed = printed_releases(packages, sources)
    verdict = told_by_history(said, failure.frames, printed)
    if not (printed or verdict):
        return None
    head, semicolon, rest = (detail or said).rstrip(".").partition("; ")
    words = f"{head}: {verdict.words}" if verdict else head
    shown = ", ".join(f"{name} {release}" for name, release in printed.items())
    ends = f"; this log prints {shown}" if shown else ""
    return ReleaseFit(f"{words}{semicolon}{rest}{ends}.", (verdict.fix,) if verdict else ())
