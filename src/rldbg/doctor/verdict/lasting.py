"""Troubles that stay: a metric that is NaN from some step on, with every step after it.

Steps that are counted do not outlive such a trouble while its own lines go on to the end. It is a cause only of what
can follow from it: of failures that are known as its consequences, and of exceptions that speak of such numbers.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from rldbg.doctor.knowledge.library import Library
from rldbg.doctor.logs.evidence import LogEvidence
from rldbg.doctor.logs.survival import have_survived, is_uncaught
from rldbg.doctor.verdict.judgement import Sighting
from rldbg.doctor.verdict.order import precedes

_NOT_FINITE = re.compile(r"(?i)\b(?:nans?|is_?nan|infs?|infinite|infinity|is_?finite|non-?finite|not finite)\b")
_STEP = re.compile(
    r"(?i)(?P<name>(?:global[ _]?)?(?:step|iteration|iter|update|epoch))s?['\"]?[ :=/#]{1,4}"
    r"(?P<at>\d{1,9}(?:\.\d{1,6})?)"
)
_METRIC = re.compile(
    r"(?P<name>[A-Za-z_][\w./@-]{0,60}(?: [a-z]{2,12}){0,2})['\"]?[:=] ?(?:tensor\()?(?P<value>[+-]?(?:nan|inf)\w*)\b",
    re.IGNORECASE,
)
_NAMED = 3


def with_lasting(seen: Mapping[str, Sighting], evidence: LogEvidence, library: Library) -> Mapping[str, Sighting]:
    """What was seen; a trouble that stayed until what follows from it was not outlived."""
    return {
        name: replace(each, survived=False)
        if each.survived
        and _is_followed(each, seen, evidence, library)
        and (has_stayed(each, evidence) or _is_suspected(each, seen))
        else each
        for name, each in seen.items()
    }


def has_stayed(sighting: Sighting, evidence: LogEvidence) -> bool:
    """Whether a trouble of the kind that stays was there in the last step of its log."""
    last = max(sighting.hits, key=lambda hit: hit.place.order)
    return sighting.entry.stays and not have_survived(evidence, [last])


def _is_suspected(sighting: Sighting, seen: Mapping[str, Sighting]) -> bool:
    """Whether a trouble of the kind that stays is what a symptom usually comes from that was not outlived: it lasted
    until then, whatever was counted meanwhile."""
    name = sighting.entry.id
    return sighting.entry.stays and any(name in each.entry.suspects for each in seen.values() if not each.survived)


def _is_followed(sighting: Sighting, seen: Mapping[str, Sighting], evidence: LogEvidence, library: Library) -> bool:
    first = sighting.first
    effects = library.effects[sighting.entry.id]
    if any(name in effects and not other.survived and precedes(first, other.first) for name, other in seen.items()):
        return True
    return any(
        is_uncaught(failure)
        and (failure.place.file, failure.place.offset) > (first.place.file, first.place.offset)
        and _NOT_FINITE.search(f"{failure.headline} {failure.code}")
        for failure in evidence.failures
        if failure.place.file == first.place.file
    )


def first_time(sighting: Sighting, *, stayed: bool = True) -> str:
    """Which metrics are not finite from which step on, as the first line of a trouble says it; where it did not stay,
    in which step."""
    hit = sighting.first
    found = {match["name"].strip(): match["value"] for match in _METRIC.finditer(hit.text)}
    if not (sighting.entry.stays and found):
        return ""
    names = list(found)[:_NAMED]
    step = _STEP.search(hit.text)
    at = f"{step['name'].lower()} {step['at']}" if step else "this line"
    since = f"from {at} on" if stayed else f"in {at}"
    verb = ("is" if len(names) == 1 else "are") if stayed else ("was" if len(names) == 1 else "were")
    return f"{', '.join(names)} {verb} {found[names[0]]} {since} ({hit.place.file}:{hit.place.line})"
