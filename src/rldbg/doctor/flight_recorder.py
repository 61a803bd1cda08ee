"""torch's flight-recorder dumps of all ranks: who held the others up, who left no dump, who called something else.

A dump is a pickle of plain containers (version 2.x: pg_config, pg_status, entries); it is read without running code.
Every rank waits at its oldest unfinished operation for the peers that have not come to it. Following these waits leads
to ranks that wait for nobody: those are the culprits. A rank whose peers have all finished the operation it still
holds is stuck on its device; a rank that never entered it was held up on the CPU; a rank without a dump comes first.
"""

import pickle
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rldbg.core import Finding, Severity

_FILE = re.compile(r"^(?:.*[^\d])?(\d+)$")
_P2P = re.compile(r"nccl:(send|recv) (\d+)(?:->|<-)(\d+)")
_MAX_BYTES = 256 << 20
_DAMAGE = (pickle.UnpicklingError, KeyError, TypeError, ValueError, AttributeError, IndexError)
"""What reading a damaged or foreign pickle raises."""


class _PlainUnpickler(pickle.Unpickler):
    """Reads containers, numbers and strings only."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"a flight-recorder dump must not contain {module}.{name}")


@dataclass(frozen=True, slots=True)
class Operation:
    """A collective or a transfer that a rank has enqueued and not finished."""

    group: str
    description: str
    sequence: int
    name: str
    peer: int | None
    """The other rank of a transfer, as a global rank."""
    record: int
    sizes: str = ""

    @property
    def key(self) -> tuple[str, int]:
        return self.group, self.sequence

    def __str__(self) -> str:
        return f"{self.name} #{self.sequence} of {self.description or self.group} {self.sizes}".strip()


@dataclass(frozen=True)
class Dump:
    """What one rank knew: its unfinished operations, and how far it had come in each group."""

    rank: int
    groups: Mapping[str, tuple[int, ...]]
    pending: tuple[Operation, ...]
    enqueued: Mapping[str, int]
    completed: Mapping[str, int]

    @property
    def oldest(self) -> Operation | None:
        return self.pending[0] if self.pending else None

    def holds(self, operation: Operation) -> bool:
        return any(own.key == operation.key for own in self.pending if own.peer is None)

    def has_finished(self, operation: Operation) -> bool:
        if self.holds(operation):
            return False
        return self.completed.get(operation.group, -1) >= operation.sequence

    def has_entered(self, operation: Operation) -> bool:
        return self.holds(operation) or self.enqueued.get(operation.group, -1) >= operation.sequence


@dataclass(frozen=True)
class FlightReport:
    """The dumps of one job."""

    folder: Path
    dumps: Mapping[int, Dump]
    findings: tuple[Finding, ...]
    """What could not be read."""

    @cached_property
    def world(self) -> tuple[int, ...]:
        return tuple(sorted({rank for dump in self.dumps.values() for ranks in dump.groups.values() for rank in ranks}))

    @cached_property
    def without_dump(self) -> tuple[int, ...]:
        return tuple(rank for rank in self.world if rank not in self.dumps)

    @cached_property
    def waits(self) -> Mapping[int, tuple[int, ...]]:
        """For each rank the ranks it waits for."""
        return {rank: tuple(sorted(self._waited_for(dump))) for rank, dump in self.dumps.items()}

    @cached_property
    def stuck_on_device(self) -> tuple[int, ...]:
        """Ranks whose peers have all finished what they still hold."""
        return tuple(rank for rank, dump in self.dumps.items() if self._is_stuck(dump))

    @cached_property
    def culprits(self) -> tuple[int, ...]:
        """Ranks that others wait for and that wait for nobody; those without a dump among them."""
        blamed = {rank for waited in self.waits.values() for rank in waited}
        ends = {rank for rank in blamed if not self.waits.get(rank)}
        return tuple(sorted(ends | set(self.stuck_on_device)))

    @cached_property
    def mismatches(self) -> tuple[tuple[Operation, int, Operation, int], ...]:
        """Pairs of ranks that hold different collectives at the same place of the same group."""
        first: dict[tuple[str, int], tuple[Operation, int]] = {}
        found = []
        for rank, dump in sorted(self.dumps.items()):
            for operation in dump.pending:
                if operation.peer is not None:
                    continue
                known, holder = first.setdefault(operation.key, (operation, rank))
                if known.name != operation.name:
                    found.append((known, holder, operation, rank))
        return tuple(found)

    def _waited_for(self, dump: Dump) -> set[int]:
        operation = dump.oldest
        if operation is None or self._is_stuck(dump):
            return set()
        if operation.peer is not None:
            return {operation.peer} if self._is_elsewhere(operation.peer, dump.rank) else set()
        peers = [rank for rank in dump.groups.get(operation.group, ()) if rank != dump.rank]
        return {rank for rank in peers if self._holds_up(rank, operation)}

    def _holds_up(self, rank: int, operation: Operation) -> bool:
        other = self.dumps.get(rank)
        if other is None:
            return True
        if other.has_finished(operation):
            return False
        if not other.has_entered(operation):
            return True
        return other.oldest is not None and other.oldest.key != operation.key

    def _is_elsewhere(self, peer: int, rank: int) -> bool:
        """Whether the other side of a transfer stands at something else than this transfer."""
        other = self.dumps.get(peer)
        if other is None or other.oldest is None:
            return True
        return other.oldest.peer != rank

    def _is_stuck(self, dump: Dump) -> bool:
        operation = dump.oldest
        if operation is None or operation.peer is not None:
            return False
        peers = [self.dumps.get(rank) for rank in dump.groups.get(operation.group, ()) if rank != dump.rank]
        return bool(peers) and all(peer is not None and peer.has_finished(operation) for peer in peers)

    def to_dict(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder),
            "ranks": len(self.world),
            "culprit_ranks": list(self.culprits),
            "stuck_on_device": list(self.stuck_on_device),
            "without_dump": list(self.without_dump),
            "mismatches": [
                {"ranks": [rank, other], "collectives": [str(one), str(two)]}
                for one, rank, two, other in self.mismatches
            ],
        }


def read_dumps(folder: Path) -> FlightReport:
    """All dumps of a folder; a damaged or hostile one becomes a finding."""
    contents: dict[int, Mapping[str, Any]] = {}
    findings: list[Finding] = []
    for file in sorted(folder.iterdir()):
        name = _FILE.match(file.name)
        if name is None or not file.is_file() or file.stat().st_size > _MAX_BYTES:
            continue
        try:
            contents[int(name[1])] = _load(file)
        except (OSError, EOFError, *_DAMAGE) as error:
            findings.append(_unreadable(file, error))
    numbers = _group_numbers(contents.values())
    dumps = {rank: _dump(rank, content, numbers) for rank, content in contents.items()}
    return FlightReport(folder, dumps, tuple(findings))


def _unreadable(file: Path, error: Exception) -> Finding:
    return Finding(
        "flight-recorder-unreadable",
        Severity.WARNING,
        str(file),
        (f"{type(error).__name__}: {error}",),
        "this is no complete flight-recorder dump; the rank counts as one without a dump",
        ("copy the dump of that rank again",),
    )


def _load(file: Path) -> Mapping[str, Any]:
    """The content of a dump, checked so far that reading it later cannot fail."""
    with open(file, "rb") as stream:
        content: dict[str, Any] = _PlainUnpickler(stream).load()
    _dump(0, content, {})
    return content


def _group_numbers(contents: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The number by which pg_status calls each group; ranks without an entry of a group share it with their peers."""
    return {entry["process_group"][0]: str(entry["pg_id"]) for content in contents for entry in content["entries"]}


def _dump(rank: int, content: Mapping[str, Any], numbers: Mapping[str, str]) -> Dump:
    groups = {name: _ranks(config["ranks"]) for name, config in content["pg_config"].items()}
    entries: Sequence[Mapping[str, Any]] = content["entries"]
    unfinished = [entry for entry in entries if entry["state"] != "completed" and not entry.get("retired")]
    pending = sorted((_operation(entry, groups) for entry in unfinished), key=lambda operation: operation.record)
    own = {name: number for name, number in numbers.items() if name in groups} | _group_numbers([content])
    status = content.get("pg_status", {})
    known = {name: status[number] for name, number in own.items() if number in status}
    return Dump(
        rank,
        groups,
        tuple(pending),
        {name: counts["last_enqueued_collective"] for name, counts in known.items()},
        {name: counts["last_completed_collective"] for name, counts in known.items()},
    )


def _ranks(text: str | Sequence[int]) -> tuple[int, ...]:
    return tuple(int(item) for item in re.findall(r"\d+", text)) if isinstance(text, str) else tuple(text)


def _operation(entry: Mapping[str, Any], groups: Mapping[str, tuple[int, ...]]) -> Operation:
    name, description = (*entry["process_group"], "")[:2]
    transfer = _P2P.match(entry["profiling_name"]) if entry.get("is_p2p") else None
    members = groups.get(name, ())
    peer = int(transfer[3]) if transfer else None
    if peer is not None and peer < len(members):
        peer = members[peer]
    sizes = "x".join(map(str, entry["input_sizes"][0])) if entry.get("input_sizes") else ""
    return Operation(
        name, description, entry["collective_seq_id"], entry["profiling_name"], peer, entry["record_id"], sizes
    )


def findings_of(report: FlightReport) -> list[Finding]:
    """The report as findings: culprits first, then missing dumps and mismatches."""
    found = list(report.findings)
    found += [_culprit(report, rank) for rank in report.culprits]
    for rank in report.without_dump:
        if rank not in report.culprits:
            found.append(
                Finding(
                    "collective-no-dump",
                    Severity.WARNING,
                    f"rank {rank}",
                    (),
                    "this rank left no flight-recorder dump although the others did",
                    (f"read the log of rank {rank} first: it may have ended before the timeout",),
                )
            )
    for one, rank, two, other in report.mismatches[:5]:
        found.append(
            Finding(
                "collective-mismatch",
                Severity.ERROR,
                f"ranks {rank} and {other}",
                (f"rank {rank}: {one}", f"rank {other}: {two}"),
                "these ranks called different collectives at the same place of the same group",
                ("compare the code paths of the two ranks: a branch depends on the rank's own data",),
            )
        )
    return found


def _culprit(report: FlightReport, rank: int) -> Finding:
    waiting = sorted(other for other, waited in report.waits.items() if rank in waited)
    dump = report.dumps.get(rank)
    held = next((op for other in waiting if (op := report.dumps[other].oldest) is not None), None)
    evidence = [f"waiting for it: ranks {', '.join(map(str, waiting))}"] if waiting else []
    evidence += [f"they stand in {held}"] if held else []
    if dump is None:
        cause = "it left no dump: the process ended, or could not even write one (Python's lock was held)"
        fix = f"read the last lines of rank {rank}; look for a kill in its node's kernel log"
    elif rank in report.stuck_on_device:
        cause = "its peers have finished the operation that it still holds: its device or its queue is stuck"
        fix = f"on the node of rank {rank}: dmesg -T | grep -i xid; nvidia-smi -q -d ECC; take it out of the job"
        evidence.append(f"it stands in {dump.oldest}")
    else:
        cause = "it never entered the operation that the others wait in: it was held up on the CPU"
        fix = f"look at what rank {rank} did then (data, checkpoint, tool call, a lock): rldbg stacks, py-spy dump"
    return Finding("collective-culprit", Severity.ERROR, f"rank {rank}", tuple(evidence), cause, (fix,))
