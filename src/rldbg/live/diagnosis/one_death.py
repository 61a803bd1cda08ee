"""One finding for the death of one actor of Ray, whoever waits for what it would have done."""

import re
from collections.abc import Sequence
from dataclasses import replace

from rldbg.live.diagnosis.hang import HangDiagnosis

_DIED = re.compile(r"\bactor (\S+) (?:[^;]*, but )?has died: ")
# Who should have acted itself, not somebody else for whom it may have done so.
_ITSELF = ", but has died: "
_TOLD = re.compile(r"; actor \S+ has died: .*$", re.DOTALL)
_BECAUSE = "because of that "


def deaths_once(causes: Sequence[HangDiagnosis]) -> list[HangDiagnosis]:
    """The findings; of those that tell the death of the same actors, the first one, with who waits in the others."""
    groups: dict[object, list[HangDiagnosis]] = {}
    for number, cause in enumerate(causes):
        dead = frozenset(_DIED.findall(cause.verdict))
        groups.setdefault(dead or number, []).append(cause)
    return [_together(sorted(group, key=lambda cause: _ITSELF not in cause.verdict)) for group in groups.values()]


def _together(causes: Sequence[HangDiagnosis]) -> HangDiagnosis:
    first = causes[0]
    if len(causes) == 1:
        return first
    lines = [line for cause in causes[1:] for line in (f"{_BECAUSE}{_without_death(cause.verdict)}", *cause.evidence)]
    return replace(
        first,
        ranks=tuple(sorted({rank for cause in causes for rank in cause.ranks})),
        evidence=tuple(dict.fromkeys((*first.evidence, *lines))),
        actors=frozenset().union(*(cause.actors for cause in causes)),
        told=frozenset().union(*(cause.told for cause in causes)),
    )


def _without_death(verdict: str) -> str:
    kept = _TOLD.sub("", verdict)
    return kept + ")" * (kept.count("(") - kept.count(")"))
