"""Why nobody moves: who waits for whom in which collective, and who is to blame, in one sentence.

The views of all ranks are laid side by side. Rank a waits for rank b when a has entered a collective that b, a member
of the same group, has not. A rank that others wait for and that itself waits for nobody is the cause.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from rldbg.core import Finding, Severity


@dataclass(frozen=True, slots=True)
class Pending:
    """A collective that a rank has entered and not left. `peer` is the other rank of a send or receive."""

    group: str
    sequence: int
    op: str
    shape: str = ""
    peer: int | None = None

    def __str__(self) -> str:
        number = f" #{self.sequence}" if self.sequence and self.peer is None else ""
        return f"{self.op}{number}" + (f" with rank {self.peer}" if self.peer is not None else "")


@dataclass(frozen=True, slots=True)
class RankView:
    """What is known about one rank: what it waits in, how far it got in each group, and where its code is."""

    rank: int
    who: str
    place: str = ""
    state: str = "running"
    pending: tuple[Pending, ...] = ()
    entered: dict[str, int] = field(default_factory=dict)
    completed: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The verdict in one sentence, the ranks to blame, and the evidence."""

    verdict: str
    kind: str
    ranks: tuple[int, ...]
    evidence: tuple[str, ...] = ()
    fix: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "kind": self.kind,
            "ranks": list(self.ranks),
            "evidence": list(self.evidence),
            "fix": list(self.fix),
        }

    def to_finding(self) -> Finding:
        harmless = self.kind in ("moving", "unknown")
        return Finding(
            id=f"hang.{self.kind}",
            severity=Severity.INFO if harmless else Severity.ERROR,
            where=f"ranks {', '.join(map(str, self.ranks))}" if self.ranks else "all ranks",
            evidence=self.evidence,
            cause=self.verdict,
            fix=self.fix,
        )


def diagnose(views: Iterable[RankView], groups: dict[str, tuple[int, ...]]) -> Diagnosis:
    """`groups` names the members of each process group."""
    by_rank = {view.rank: view for view in views}
    waits = _waits(by_rank, groups)
    return (
        _disagreement(by_rank, groups)
        or _stuck_device(by_rank, groups)
        or _absent(by_rank, waits)
        or _cycle(by_rank, waits)
        or _together(by_rank)
    )


def _waits(views: dict[int, RankView], groups: dict[str, tuple[int, ...]]) -> dict[int, dict[int, Pending]]:
    """For each waiting rank: whom it waits for, and in what."""
    waits: dict[int, dict[int, Pending]] = {}
    for rank, view in views.items():
        for pending in view.pending:
            for other in _awaited(pending, rank, views, groups):
                waits.setdefault(rank, {}).setdefault(other, pending)
    return waits


def _awaited(
    pending: Pending, rank: int, views: dict[int, RankView], groups: dict[str, tuple[int, ...]]
) -> Iterable[int]:
    if pending.peer is not None:
        peer = views.get(pending.peer)
        answering = peer is not None and any(each.peer == rank and each.op != pending.op for each in peer.pending)
        return () if answering else (pending.peer,)
    return (
        other
        for other in groups.get(pending.group, ())
        if other != rank and (other not in views or views[other].entered.get(pending.group, 0) < pending.sequence)
    )


def _disagreement(views: dict[int, RankView], groups: dict[str, tuple[int, ...]]) -> Diagnosis | None:
    """The same place in the same group, but different operations or sizes."""
    met: dict[tuple[str, int], dict[str, list[int]]] = {}
    for rank, view in views.items():
        for pending in view.pending:
            if pending.peer is None and pending.sequence:
                what = f"{pending.op} {pending.shape}".strip()
                met.setdefault((pending.group, pending.sequence), {}).setdefault(what, []).append(rank)
    for (group, sequence), kinds in sorted(met.items()):
        names = {what.split(" ")[0] for what in kinds}
        # Sizes may differ by design in all_to_all and gathers; an all_reduce or broadcast must agree.
        if len(kinds) > 1 and (len(names) > 1 or names <= {"all_reduce", "broadcast", "reduce"}):
            parts = sorted((len(ranks), f"{_ranks(ranks)} called {what}", ranks) for what, ranks in kinds.items())
            odd = parts[0][2]
            sentence = "; ".join(part[1] for part in parts)
            return Diagnosis(
                f"the ranks disagree on collective #{sequence} of group {_name(group, groups)}: {sentence}",
                "disagreement",
                tuple(odd),
                tuple(f"rank {rank} is in {views[rank].place}" for rank in sorted(views) if rank in odd),
                ("make all ranks of a group call the same collectives in the same order, with equal shapes",),
            )
    return None


def _stuck_device(views: dict[int, RankView], groups: dict[str, tuple[int, ...]]) -> Diagnosis | None:
    """Ranks that have not finished what their peers have: not the order of calls, but the device is to blame."""
    stuck: dict[int, Pending] = {}
    for rank, view in views.items():
        for pending in view.pending:
            peers = [views[r] for r in groups.get(pending.group, ()) if r != rank and r in views]
            if pending.peer is None and any(p.completed.get(pending.group, -1) >= pending.sequence for p in peers):
                stuck.setdefault(rank, pending)
                break
    if not stuck:
        return None
    first = next(iter(stuck.items()))
    return Diagnosis(
        f"{_ranks(stuck)} never finished work that others of the same group have finished "
        f"(rank {first[0]}: {first[1]} of group {_name(first[1].group, groups)}): its device or link is stuck",
        "stuck_device",
        tuple(sorted(stuck)),
        tuple(f"rank {rank}: oldest unfinished {pending}" for rank, pending in sorted(stuck.items())),
        ("look at that node's GPU: nvidia-smi, dmesg (Xid errors), NCCL_DEBUG=INFO",),
    )


def _absent(views: dict[int, RankView], waits: dict[int, dict[int, Pending]]) -> Diagnosis | None:
    """Ranks that others wait for and that wait for nobody."""
    awaited = {other for others in waits.values() for other in others}
    absent = sorted(awaited - set(waits))
    if not absent:
        return None
    waiting = {rank: others[absent[0]] for rank, others in waits.items() if absent[0] in others}
    what = next(iter(waiting.values()))
    verb = f"never entered {what}" if what.peer is None else f"never answered {what.op} of rank {min(waiting)}"
    where = "; ".join(_whereabouts(rank, views) for rank in absent)
    evidence = [f"rank {rank} waits in {pending}" for rank, pending in sorted(waiting.items())]
    return Diagnosis(
        f"{_ranks(absent)} {verb}; {where}",
        "absent",
        tuple(absent),
        tuple(evidence),
        tuple(_absent_fix(views.get(rank)) for rank in absent[:1]),
    )


def _cycle(views: dict[int, RankView], waits: dict[int, dict[int, Pending]]) -> Diagnosis | None:
    """Ranks that wait for each other."""
    for start in sorted(waits):
        path, seen = [start], {start}
        while True:
            onward = sorted(waits.get(path[-1], {}))
            following = next((rank for rank in onward if rank in seen), onward[0] if onward else None)
            if following is None:
                break
            if following in seen:
                ring = path[path.index(following) :]
                steps = [f"rank {a} in {waits[a][b]}" for a, b in zip(ring, [*ring[1:], ring[0]], strict=True)]
                return Diagnosis(
                    f"{_ranks(ring)} wait for each other: {'; '.join(steps)}",
                    "cycle",
                    tuple(sorted(ring)),
                    tuple(f"rank {rank} is in {views[rank].place}" for rank in sorted(ring) if rank in views),
                    ("make all ranks enter their groups, sends and receives in one global order",),
                )
            seen.add(following)
            path.append(following)
    return None


def _together(views: dict[int, RankView]) -> Diagnosis:
    """Nobody waits for anybody that is missing."""
    pending = {str(each) for view in views.values() for each in view.pending}
    if views and all(view.pending for view in views.values()) and len(pending) == 1:
        what = next(iter(pending))
        return Diagnosis(
            f"all ranks are in {what}: it is under way, or its transport is stuck",
            "moving",
            tuple(sorted(views)),
            (),
            ("run it again: a different sequence number means progress; else check the network between the hosts",),
        )
    places: dict[str, list[int]] = {}
    for rank in views:
        places.setdefault(_whereabouts(rank, views), []).append(rank)
    if len(places) > 1 and not pending:
        few = min(places.values(), key=len)
        if len(few) * 2 < len(views):
            where = "; ".join(_whereabouts(rank, views) for rank in few[:3])
            return Diagnosis(f"no rank waits in a collective; the odd one out: {where}", "odd", tuple(sorted(few)))
    return Diagnosis("no rank is seen waiting for another", "unknown", ())


def _whereabouts(rank: int, views: dict[int, RankView]) -> str:
    view = views.get(rank)
    if view is None:
        return f"rank {rank} is not there"
    if view.state == "stopped":
        return f"rank {rank} is stopped by the debugger at {view.place}"
    if view.state in ("exited", "crashed", "lost"):
        return f"rank {rank} has {'crashed' if view.state == 'crashed' else 'ended'}" + (
            f" at {view.place}" if view.place else ""
        )
    return f"it is in {view.place}" if view.place else f"rank {rank} had nothing in flight"


def _absent_fix(view: RankView | None) -> str:
    if view is None or view.state in ("exited", "crashed", "lost"):
        return "find out why it ended: its crash file, or `rldbg doctor` on its log"
    if view.state == "stopped":
        return f"let it go on: rldbg continue {view.who}"
    return f"look at it: rldbg attach {view.who}"


def _ranks(ranks: Iterable[int]) -> str:
    numbers = sorted(ranks)
    return f"rank {numbers[0]}" if len(numbers) == 1 else "ranks " + ", ".join(map(str, numbers))


def _name(group: str, groups: dict[str, tuple[int, ...]]) -> str:
    members = groups.get(group, ())
    return f"{group or 'default'} (ranks {', '.join(map(str, members))})" if len(members) <= 16 else group
