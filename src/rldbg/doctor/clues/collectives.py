"""Collectives that do not belong together: what NCCL's watchdogs on several ranks say of the same number."""

import re
from collections import defaultdict
from collections.abc import Iterator

from rldbg.doctor.logs.evidence import Hit, LogEvidence

MISMATCH = "collective-mismatch"
_TIMEOUT = "nccl-watchdog-timeout"
_WORK = re.compile(
    r"\[(?P<group>PG[^\]]{0,80}?)?Rank (?P<rank>\d+)\] Watchdog caught collective operation timeout: "
    r"WorkNCCL\(SeqNum=(?P<number>\d+), OpType=(?P<kind>\w+)"
)
_FEW = 100
"""Without the name of its group, a low number may be of several groups."""


def unlike_collectives(evidence: LogEvidence) -> Iterator[Hit]:
    """A line of each kind of collective, where ranks of one group were in different ones at the same number."""
    by_number: dict[tuple[str, int], dict[str, Hit]] = defaultdict(dict)
    for hit in evidence.hits:
        found = _WORK.search(hit.text) if hit.entry == _TIMEOUT else None
        if found is not None and (found["group"] or int(found["number"]) >= _FEW):
            by_number[found["group"] or "", int(found["number"])].setdefault(found["kind"], hit)
    for kinds in by_number.values():
        if len(kinds) > 1:
            yield from (Hit(MISMATCH, hit.place, hit.text, hit.matched) for hit in kinds.values())


def told_of_ranks(evidence: LogEvidence, hit: Hit) -> str:
    """Which ranks were in which collective at the number of a line."""
    own = _WORK.search(hit.text)
    if own is None:
        return ""
    ranks: dict[str, list[int]] = defaultdict(list)
    for other in evidence.hits:
        found = _WORK.search(other.text) if other.entry == _TIMEOUT else None
        if found is not None and (found["group"], found["number"]) == (own["group"], own["number"]):
            ranks[found["kind"]].append(int(found["rank"]))
    told = [
        f"rank{'s' * (len(each) > 1)} {', '.join(map(str, sorted(set(each))))} in {kind}"
        for kind, each in sorted(ranks.items(), key=lambda item: len(item[1]))
    ]
    return f"at number {own['number']} {' and '.join(told)}" if len(told) > 1 else ""
