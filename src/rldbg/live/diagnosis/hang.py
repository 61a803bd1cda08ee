"""Why a job hangs, in one sentence, from the waits of all ranks."""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rldbg.core import Finding, Severity
from rldbg.live.diagnosis.waits import EQUAL_SHAPES, Mismatch, Pending, RankView, Waits, one_sided

ENDED = frozenset({"exited", "crashed", "lost"})
CORRECT_WHAT_WAS_RAISED = "correct what was raised; what `except` and `finally` call, the other ranks do not"
_SAME_GROUP = "pass the same group= to the same call on all ranks that are in it"
_SAME_CALLS = "make all ranks of a group call the same collectives in the same order, with equal shapes"


@dataclass(frozen=True, slots=True)
class HangDiagnosis:
    """The verdict in one sentence, the ranks to blame, and the evidence. `left` are ranks that have been in the call in
    which others still are; `actors` are the nodes of the wait graph that should have acted, `told` all it names.
    `unsettled`: all that went on between two looks wait now, and another look tells whether they still do."""

    verdict: str
    kind: str
    ranks: tuple[int, ...]
    evidence: tuple[str, ...] = ()
    fix: tuple[str, ...] = ()
    where: str = ""
    left: tuple[int, ...] = ()
    actors: frozenset[tuple[Any, ...]] = frozenset()
    told: frozenset[tuple[Any, ...]] = frozenset()
    unsettled: bool = False

    @property
    def is_harmless(self) -> bool:
        # Healthy jobs wait for their GPU most of the time.
        return self.kind in ("none", "moving", "unknown", "not_listed", "possible", "computing", "busy", "cuda")

    def to_dict(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "kind": self.kind,
            "ranks": list(self.ranks),
            "evidence": list(self.evidence),
            "fix": list(self.fix),
        }

    def to_finding(self) -> Finding:
        return Finding(
            id="no_hang" if self.kind == "none" else f"hang.{self.kind}",
            severity=Severity.INFO if self.is_harmless else Severity.ERROR,
            where=self.where or (ranks_text(self.ranks) if self.ranks else "all ranks"),
            evidence=self.evidence,
            cause=self.verdict,
            fix=self.fix,
        )


def diagnose(waits: Waits) -> HangDiagnosis:
    """The first of these that the waits show."""
    return _mismatch(waits) or _stuck(waits) or _absent(waits) or _cycle(waits) or _together(waits.views)


def _mismatch(waits: Waits) -> HangDiagnosis | None:
    if not waits.mismatches:
        return None
    first = waits.mismatches[0]
    raised = tuple(rank for ranks in first.calls.values() for rank in ranks if waits.views[rank].handles)
    calls = sorted((len(ranks), _called(what, ranks, waits.views)) for what, ranks in first.calls.items())
    awaited = dict(_awaited_elsewhere(first, waits))
    odd = tuple(sorted({rank for ranks in awaited.values() for rank in ranks}))
    return HangDiagnosis(
        f"the ranks disagree on collective #{first.sequence} of group {_name(first.group, waits.groups)}: "
        + "; ".join([*(text for _, text in calls), *awaited]),
        "disagreement",
        raised or odd or first.odd,
        fix=(CORRECT_WHAT_WAS_RAISED if raised else _SAME_GROUP if odd else _SAME_CALLS,),
    )


def _awaited_elsewhere(found: Mismatch, waits: Waits) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Ranks that disagree in one group, while those of another one wait for them there: they may have been given the
    wrong group."""
    there = {rank for ranks in found.calls.values() for rank in ranks}
    for rank, others in waits.edges.items():
        operation, missing = next(iter(others.values())), tuple(sorted(there & set(others)))
        if rank in there or not missing or operation.group == found.group or operation.peer is not None:
            continue
        words = f"{ranks_text([rank])} waits in {operation} of group {_name(operation.group, waits.groups)}, which "
        words += f"{ranks_text(missing)} never entered"
        called = {each.oldest.op for each in (waits.views[other] for other in missing) if each.oldest is not None}
        same = called == {operation.op}
        yield words + f" (called it with group {found.group or 'default'} instead)" * same, missing


def _called(what: str, ranks: Sequence[int], views: Mapping[int, RankView]) -> str:
    """What ranks called, and where they are: on a GPU a call returns at once, and its rank goes on to a later line."""
    places: dict[str, list[int]] = {}
    for rank in ranks:
        places.setdefault(views[rank].position, []).append(rank)
    place, there = max(places.items(), key=lambda each: (views[each[1][0]].handles != "", len(each[1])))
    who = "" if len(places) == 1 else f"{ranks_text(there)} "
    return f"{ranks_text(ranks)} called {what}" + f" and {who}{'is' if len(there) == 1 else 'are'} at {place}" * bool(
        place
    )


def _stuck(waits: Waits) -> HangDiagnosis | None:
    if not waits.stuck:
        return None
    rank, operation = next(iter(waits.stuck.items()))
    absent = [f"rank {other} never reached it" for other in waits.absent]
    return HangDiagnosis(
        f"{ranks_text(waits.stuck)} never finished work that others of the same group have finished "
        f"(rank {rank}: {operation} of group {_name(operation.group, waits.groups)}): its device or link is stuck",
        "stuck_device",
        waits.culprits,
        (*(f"rank {other}: oldest unfinished {held}" for other, held in waits.stuck.items()), *absent),
        ("check that node's GPU: nvidia-smi, dmesg (Xid errors), NCCL_DEBUG=INFO",),
    )


def _absent(waits: Waits) -> HangDiagnosis | None:
    if not waits.absent:
        return None
    first = waits.absent[0]
    waiting = {rank: others[first] for rank, others in waits.edges.items() if first in others}
    what = next(iter(waiting.values()))
    verb = f"never entered {what}" if what.peer is None else f"never answered {what.op} of rank {min(waiting)}"
    places: dict[str, list[int]] = {}
    for rank in waits.absent:
        places.setdefault(_whereabouts(rank, waits.views), []).append(rank)
    where = "; ".join(_of_ranks(place, ranks, alone=len(waits.absent) == 1) for place, ranks in places.items())
    return HangDiagnosis(
        f"{ranks_text(waits.absent)} {verb}; {where}",
        "absent",
        waits.absent,
        tuple(f"rank {rank} waits in {pending}" for rank, pending in sorted(waiting.items())),
        (_absent_fix(waits.views.get(first)),),
    )


def _cycle(waits: Waits) -> HangDiagnosis | None:
    ring = waits.cycle
    if not ring:
        return None
    steps = [(a, waits.edges[a][b]) for a, b in zip(ring, [*ring[1:], ring[0]], strict=True)]
    if (passed := _passed(steps, waits)) is not None:
        return passed
    several = len({operation.group for _, operation in steps}) > 1
    words = [f"rank {a} in {each}" + f" of group {_name(each.group, waits.groups)}" * several for a, each in steps]
    same, fix = one_sided(each.op for _, each in steps)
    return HangDiagnosis(
        "; ".join([f"{ranks_text(ring)} wait for each other: {'; '.join(words)}", *filter(None, [same])]),
        "cycle",
        tuple(sorted(ring)),
        tuple(f"rank {rank} is in {waits.views[rank].position}" for rank in sorted(ring)),
        (fix or "make all ranks enter their groups, sends and receives in one global order",),
    )


def _passed(steps: Sequence[tuple[int, Pending]], waits: Waits) -> HangDiagnosis | None:
    """Ranks that wait in different calls of one group: some have left the call in which others still are."""
    behind, called = min(steps, key=lambda step: step[1].sequence)
    ahead = [(rank, each) for rank, each in steps if each.sequence > called.sequence]
    if not ahead or any(each.peer is not None or each.group != called.group for _, each in steps):
        return None
    shape = f" of shape {called.shape}" if called.shape and called.op in EQUAL_SHAPES else ""
    further = "; ".join(f"rank {rank} has left #{called.sequence} and waits in {each}" for rank, each in ahead)
    return HangDiagnosis(
        f"rank {behind} waits in {called}{shape}; {further}: their calls #{called.sequence} do not fit together",
        "disagreement",
        tuple(sorted(rank for rank, _ in steps)),
        tuple(f"rank {rank} is in {waits.views[rank].position}" for rank, _ in sorted(steps, key=lambda step: step[0])),
        (
            f"compare what each rank passes to #{called.sequence} of group {_name(called.group, waits.groups)}: the "
            "shape of the tensor (a last batch that is smaller), the root, the operation",
        ),
        left=tuple(rank for rank, _ in ahead),
    )


def _together(views: Mapping[int, RankView]) -> HangDiagnosis:
    """No rank waits for a missing one."""
    pending = {str(each) for view in views.values() for each in view.pending}
    if views and all(view.pending for view in views.values()) and len(pending) == 1:
        what = next(iter(pending))
        return HangDiagnosis(
            f"all ranks are in {what}: it is in progress, or its transport is stuck",
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
            return HangDiagnosis(
                f"no rank waits in a collective; the rank that differs: {where}", "odd", tuple(sorted(few))
            )
    return HangDiagnosis("no rank waits for another", "none", ())


def _whereabouts(rank: int, views: Mapping[int, RankView]) -> str:
    view = views.get(rank)
    if view is None:
        return f"rank {rank} was not found"
    if view.raised:
        held = ", and is held for inspection" if view.state == "stopped" else ""
        return f"rank {rank} raised {view.raised}" + (f" at {view.place}" if view.place else "") + held
    if view.state == "stopped":
        return f"rank {rank} is stopped by the debugger at {view.place}"
    if view.state == "suspended":
        return f"rank {rank} is suspended by a signal (SIGSTOP) at {view.place}"
    if view.state in ENDED:
        return f"rank {rank} has {'crashed' if view.state == 'crashed' else 'ended'}" + (
            f" at {view.place}" if view.place else ""
        )
    return f"it is in {view.position}" if view.place else f"rank {rank} had nothing in flight"


def _of_ranks(whereabouts: str, ranks: Sequence[int], *, alone: bool) -> str:
    _, found, place = whereabouts.partition("it is in ")
    return (
        f"{ranks_text(ranks)} {'is' if len(ranks) == 1 else 'are'} in {place}" if found and not alone else whereabouts
    )


def _absent_fix(view: RankView | None) -> str:
    if view is not None and view.raised and view.state != "stopped":
        file = shlex.quote(view.crash_file) if view.crash_file else "CRASH_FILE (its log names it)"
        return f"correct what it raised; look at its frames and values: rldbg attach {file}"
    if view is None or view.state in ENDED:
        return "find out why it ended: its crash file, or `rldbg doctor` on its log"
    if view.state == "stopped":
        return f"inspect it: rldbg attach {view.who}; resume it: rldbg continue {view.who}"
    if view.state == "suspended":
        return "resume it: kill -CONT PID on its host (`rldbg ps` shows both)"
    return f"inspect it: rldbg attach {view.who}"


def ranks_text(ranks: Iterable[int]) -> str:
    numbers = sorted(ranks)
    return f"rank {numbers[0]}" if len(numbers) == 1 else "ranks " + ", ".join(map(str, numbers))


def _name(group: str, groups: Mapping[str, tuple[int, ...]]) -> str:
    members = groups.get(group, ())
    return f"{group or 'default'} (ranks {', '.join(map(str, members))})" if len(members) <= 16 else group
