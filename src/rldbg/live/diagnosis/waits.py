"""Which rank waits for which in which collective: the only place that judges hangs in collectives. Rank a waits for
rank b if b is a member of the group of a's oldest unfinished operation and has not entered it. Following these waits
leads to ranks that wait for no other: the culprits. A rank that still holds an operation which others have finished,
while no rank is missing from it, is stuck on its device.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

EQUAL_SHAPES = frozenset({"all_reduce", "broadcast", "reduce"})


def toward(op: str) -> str:
    """The word between a send or receive and its peer."""
    return {"send": "to", "isend": "to", "recv": "from", "irecv": "from"}.get(op, "with")


_ONE_SIDED = {
    "send": (
        "all of them send, none receives",
        "let every second rank receive first, or begin both at once: isend and irecv, or batch_isend_irecv",
    ),
    "recv": (
        "all of them receive, none sends",
        "let one of them send first; if one did, count the sends and receives of both sides: one may lack its send",
    ),
}


def one_sided(ops: Iterable[str]) -> tuple[str, str]:
    """What the ranks of a ring have in common where all of them send, or all receive, and what to do; else empty."""
    sides = {op.removeprefix("i") for op in ops}
    return _ONE_SIDED.get(next(iter(sides)) if len(sides) == 1 else "", ("", ""))


@dataclass(frozen=True, slots=True)
class Pending:
    """An operation that a rank has entered and not finished. `peer` is the other (global) rank of a send or receive."""

    group: str
    sequence: int
    op: str
    shape: str = ""
    peer: int | None = None

    @property
    def key(self) -> tuple[str, int]:
        return self.group, self.sequence

    def __str__(self) -> str:
        number = f" #{self.sequence}" if self.sequence and self.peer is None else ""
        return f"{self.op}{number}" + (f" {toward(self.op)} rank {self.peer}" if self.peer is not None else "")


@dataclass(frozen=True, slots=True)
class RankView:
    """What is known about one rank: its unfinished operations (oldest first), how far it got in each group, and where
    its code is. `raised` is the exception that ended it or holds it, with its `crash_file`; `handles` is what it
    handles while it waits."""

    rank: int
    who: str
    place: str = ""
    state: str = "running"
    pending: tuple[Pending, ...] = ()
    entered: Mapping[str, int] = field(default_factory=dict)
    completed: Mapping[str, int] = field(default_factory=dict)
    raised: str = ""
    crash_file: str = ""
    handles: str = ""

    @property
    def position(self) -> str:
        return self.place + self.handles

    @property
    def oldest(self) -> Pending | None:
        return self.pending[0] if self.pending else None

    def holds(self, operation: Pending) -> bool:
        return any(own.key == operation.key for own in self.pending if own.peer is None)

    def has_finished(self, operation: Pending) -> bool:
        return not self.holds(operation) and self.completed.get(operation.group, -1) >= operation.sequence

    def has_entered(self, operation: Pending) -> bool:
        return self.holds(operation) or self.entered.get(operation.group, 0) >= operation.sequence

    def is_at(self, operation: Pending) -> bool:
        return self.oldest is not None and self.oldest.peer is None and self.oldest.key == operation.key


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Ranks that called different operations at the same place of the same group; `calls` by what was called."""

    group: str
    sequence: int
    calls: Mapping[str, tuple[int, ...]]

    @property
    def odd(self) -> tuple[int, ...]:
        """The smallest group of ranks with the same call."""
        return min(self.calls.values(), key=lambda ranks: (len(ranks), ranks))


@dataclass(frozen=True)
class Waits:
    """All ranks side by side. `groups` names the members of each process group."""

    views: Mapping[int, RankView]
    groups: Mapping[str, tuple[int, ...]]

    @cached_property
    def world(self) -> tuple[int, ...]:
        return tuple(sorted({rank for ranks in self.groups.values() for rank in ranks} | set(self.views)))

    @cached_property
    def missing(self) -> tuple[int, ...]:
        """Ranks that nothing is known about."""
        return tuple(rank for rank in self.world if rank not in self.views)

    @cached_property
    def stuck(self) -> Mapping[int, Pending]:
        """Ranks whose device has not finished what the devices of others have, and the operation."""
        found = {}
        for rank, view in sorted(self.views.items()):
            if view.oldest is not None and self._is_stuck(rank, view.oldest):
                found[rank] = view.oldest
        return found

    @cached_property
    def edges(self) -> Mapping[int, Mapping[int, Pending]]:
        """For each rank that waits: whom it waits for, and in what."""
        found = {}
        for rank, view in sorted(self.views.items()):
            if rank in self.stuck:
                continue
            for operation in view.pending:
                if awaited := sorted(self._awaited(rank, operation)):
                    found[rank] = dict.fromkeys(awaited, operation)
                    break
        return found

    @cached_property
    def absent(self) -> tuple[int, ...]:
        """Ranks that others wait for, that wait for no other and are not stuck on the device."""
        awaited = {other for others in self.edges.values() for other in others}
        return tuple(sorted(awaited - set(self.edges) - set(self.stuck)))

    @cached_property
    def culprits(self) -> tuple[int, ...]:
        return tuple(sorted({*self.absent, *self.stuck}))

    @cached_property
    def mismatches(self) -> tuple[Mismatch, ...]:
        met: dict[tuple[str, int], dict[str, list[int]]] = {}
        for rank, view in sorted(self.views.items()):
            for pending in view.pending:
                if pending.peer is None and pending.sequence:
                    shape = f"of shape {pending.shape}" if pending.shape[:1].isdigit() else pending.shape
                    what = f"{pending.op} {shape}".strip()
                    met.setdefault(pending.key, {}).setdefault(what, []).append(rank)
        return tuple(
            Mismatch(group, sequence, {what: tuple(ranks) for what, ranks in calls.items()})
            for (group, sequence), calls in sorted(met.items())
            if _disagree(calls)
        )

    @cached_property
    def cycle(self) -> tuple[int, ...]:
        """Ranks that wait for each other, in the order of waiting; empty when there is no such ring."""
        for start in self.edges:
            path, seen = [start], {start}
            while onward := sorted(self.edges.get(path[-1], {})):
                following = next((rank for rank in onward if rank in seen), onward[0])
                if following in seen:
                    return tuple(path[path.index(following) :])
                seen.add(following)
                path.append(following)
        return ()

    def _is_stuck(self, rank: int, operation: Pending) -> bool:
        if operation.peer is not None:
            return False
        peers = [self.views.get(other) for other in self.groups.get(operation.group, ()) if other != rank]
        done = [peer is not None and peer.has_finished(operation) for peer in peers]
        return any(done) and all(
            finished or (peer is not None and peer.is_at(operation)) for peer, finished in zip(peers, done, strict=True)
        )

    def _awaited(self, rank: int, operation: Pending) -> set[int]:
        if operation.peer is not None:
            return set() if self._answers(operation.peer, rank, operation) else {operation.peer}
        peers = (other for other in self.groups.get(operation.group, ()) if other != rank)
        return {other for other in peers if self._holds_up(other, operation)}

    def _holds_up(self, rank: int, operation: Pending) -> bool:
        view = self.views.get(rank)
        if view is None:
            return True
        if view.has_finished(operation):
            return False
        # A rank that has enqueued the operation but still waits in an older one has not reached it.
        return not view.has_entered(operation) or (view.oldest is not None and not view.is_at(operation))

    def _answers(self, peer: int, rank: int, operation: Pending) -> bool:
        """Whether the other side is in the matching send or receive."""
        view = self.views.get(peer)
        return view is not None and any(own.peer == rank and own.op != operation.op for own in view.pending)


def _disagree(calls: Mapping[str, Iterable[int]]) -> bool:
    # Sizes may differ by design in all_to_all and gathers; an all_reduce or broadcast must agree.
    names = {what.split(" ")[0] for what in calls}
    rooted = any(" rank " in what for what in calls)
    return len(calls) > 1 and (len(names) > 1 or names <= EQUAL_SHAPES or rooted)
