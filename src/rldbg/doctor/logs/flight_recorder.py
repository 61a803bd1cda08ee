"""Flight-recorder dumps as findings: who held the others up, who left no dump, who called something else.

The dumps are judged by `rldbg.live`, as those of a live job are; here is only what the doctor says about it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rldbg.core import Finding, Severity
from rldbg.live import Dumps, Pending, Waits
from rldbg.live import read_dumps as read


@dataclass(frozen=True)
class FlightReport:
    """The dumps of one job."""

    dumps: Dumps

    @property
    def waits(self) -> Waits:
        return self.dumps.waits

    @property
    def culprits(self) -> tuple[int, ...]:
        """Ranks that held the others up; those without a dump among them."""
        return self.waits.culprits

    @property
    def mismatches(self) -> list[dict[str, Any]]:
        """Ranks that called different collectives at the same place of the same group."""
        found = []
        for each in self.waits.mismatches:
            ranks = sorted(each.calls.values())
            names = {ranks: f"{what} #{each.sequence} of group {each.group}" for what, ranks in each.calls.items()}
            found.append({"ranks": [first[0] for first in ranks], "collectives": [names[first] for first in ranks]})
        return found

    def to_dict(self) -> dict[str, Any]:
        return {
            "folder": str(self.dumps.folder),
            "ranks": len(self.waits.world),
            "culprit_ranks": list(self.culprits),
            "stuck_on_device": list(self.waits.stuck),
            "without_dump": list(self.waits.missing),
            "mismatches": self.mismatches,
        }


def read_dumps(folder: Path) -> FlightReport:
    return FlightReport(read(folder))


def findings_of(report: FlightReport) -> list[Finding]:
    """The report as findings: unreadable dumps, culprits, missing dumps, mismatches."""
    found = [_unreadable(file, reason) for file, reason in report.dumps.unreadable.items()]
    found += [_culprit(report.waits, rank) for rank in report.culprits]
    found += [_without_dump(rank) for rank in report.waits.missing if rank not in report.culprits]
    found += [_mismatch(each) for each in report.mismatches[:5]]
    return found


def _unreadable(file: Path, reason: str) -> Finding:
    return Finding(
        "flight-recorder-unreadable",
        Severity.WARNING,
        str(file),
        (reason,),
        "this is not a complete flight-recorder dump; the rank counts as one without a dump",
        ("copy the dump of that rank again",),
    )


def _without_dump(rank: int) -> Finding:
    return Finding(
        "collective-no-dump",
        Severity.WARNING,
        f"rank {rank}",
        (),
        "this rank left no flight-recorder dump although the others did",
        (f"read the log of rank {rank} first: it may have ended before the timeout",),
    )


def _mismatch(each: dict[str, Any]) -> Finding:
    return Finding(
        "collective-mismatch",
        Severity.ERROR,
        f"ranks {' and '.join(map(str, each['ranks']))}",
        tuple(f"rank {rank}: {what}" for rank, what in zip(each["ranks"], each["collectives"], strict=True)),
        "these ranks called different collectives at the same place of the same group",
        ("compare the code paths of the two ranks: a branch depends on the rank's own data",),
    )


def _culprit(waits: Waits, rank: int) -> Finding:
    waiting: dict[int, Pending] = {other: held[rank] for other, held in waits.edges.items() if rank in held}
    evidence = [f"waiting for it: ranks {', '.join(map(str, waiting))}"] if waiting else []
    evidence += [f"they wait in {next(iter(waiting.values()))}"] if waiting else []
    if rank not in waits.views:
        cause = "it left no dump: the process ended, or could not even write one (Python's lock was held)"
        fix = f"read the last lines of rank {rank}; look for a kill in its node's kernel log"
    elif rank in waits.stuck:
        cause = "its peers have finished the operation that it still holds: its device or its queue is stuck"
        fix = f"on the node of rank {rank}: dmesg -T | grep -i xid; nvidia-smi -q -d ECC; take it out of the job"
        evidence.append(f"its oldest unfinished operation is {waits.stuck[rank]}")
    else:
        cause = "it never entered the operation that the others wait in: it was held up on the CPU"
        fix = f"look at what rank {rank} did then (data, checkpoint, tool call, a lock): rldbg stacks, py-spy dump"
    return Finding("collective-culprit", Severity.ERROR, f"rank {rank}", tuple(evidence), cause, (fix,))
