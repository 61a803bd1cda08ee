"""Which releases of packages a log prints: lists of pip, lines that programs write as they start, folders of packages.

A package whose log has several releases has none here: nobody knows which one failed.
"""

import re
from collections.abc import Iterable, Sequence

from rldbg.doctor.clues.mentions import rows_of
from rldbg.doctor.logs.cleaning import clean
from rldbg.doctor.logs.sources import LogSource

_REQUIRES = re.compile(r"(?i)\brequire|\bpip install\b|incompatible|depends on|--upgrade|conflict|\bneeds?\b|\bbut\b")
"""Lines that say which release ought to be there."""
_NUMBER = r"v?(?P<number>\d+\.\d+(?:\.\d+)?)(?:[\w.+-]*\w)?"
_LONGEST = 2000


def printed_releases(packages: Iterable[str], sources: Sequence[LogSource]) -> dict[str, str]:
    """For each package of which the logs print one release, that release."""
    names = [name for name in dict.fromkeys(packages) if name]
    rows = [row for source in sources for row in rows_of(source)] if names else []
    found: dict[str, str] = {}
    for name in names:
        words = "[-_]".join(map(re.escape, re.split("[-_]", name)))
        has_name = re.compile(words.encode(), re.IGNORECASE)
        states = re.compile(
            rf"(?i)(?<![\w/-]){words}(?:[\]\"')]|\[[\w,]+\])?"
            rf"(?:(?:[ _.-](?:api server|llm engine|engine))?[ _.-]{{0,2}}_{{0,2}}version_{{0,2}})?"
            rf"(?: ?== ?|[\"']?[:=] ?[\"']?|\s{{1,40}}(?:version )?|-(?=\d)|\s?\()[\"']?{_NUMBER}"
            rf"(?=[\s,;)\"'\]|]|\.dist|$)"
        )
        told = {
            stated["number"]
            for row in rows
            if has_name.search(row[:_LONGEST])
            for stated in states.finditer(clean(row[:_LONGEST]).text)
            if not _REQUIRES.search(stated.string)
        }
        if len(told) == 1:
            found[name] = told.pop()
    return found


def as_numbers(release: str) -> tuple[int, ...]:
    """A release for comparing: `0.10` is `0.10.0`."""
    numbers = [int(part) for part in re.findall(r"\d+", release)[:3]]
    return (*numbers, *(0 for _ in range(3 - len(numbers))))
