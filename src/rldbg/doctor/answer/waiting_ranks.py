"""Ranks that wait for others: who reports it, who is silent, when the waiting began, and what calls the collective."""

import re
from collections.abc import Iterator, Sequence

from rldbg.doctor.logs.clock import Stamp
from rldbg.doctor.logs.evidence import LogEnd, LogEvidence
from rldbg.doctor.verdict.judgement import Judgement

_WORK = re.compile(
    r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(?P<number>\d+), OpType=(?P<kind>\w+)"
    r"(?:, NumelIn=(?P<numel>\d+))?"
)
_CALLERS = (
    (
        re.compile(r"ALLTOALL"),
        "sequence parallelism (Ulysses) and expert parallelism do in every layer: possibly the ranks of one such "
        "group took different numbers of micro-batches or layers (a last batch, a filtered sample, a branch), or "
        "one of them failed or ran out of memory; compare how many batches each rank had",
    ),
    (
        re.compile(r"(?:_?ALLGATHER|_?REDUCE_?SCATTER)"),
        "FSDP and ZeRO do for each layer: possibly one rank called a module less often (fewer micro-batches, a frozen "
        "or skipped module, generation or a state dict on one rank only)",
    ),
    (
        re.compile(r"BROADCAST"),
        "weights that are sent or loaded, and objects of rank 0, go through: possibly the sender was still busy "
        "(loading, saving, evaluating), or not all ranks take part",
    ),
    (
        re.compile(r"(?:SEND|RECV)"),
        "pipeline parallelism does between stages: possibly one stage failed, or has another number of micro-batches",
    ),
)
_ONE_NUMBER = re.compile(r"ALLREDUCE|BROADCAST|_?ALLGATHER")
_FEW_NUMBERS = 8
_OF_ONE_NUMBER = (
    "is called with a few numbers, as for metrics, a gradient norm, a length or a barrier: possibly some rank did "
    "something longer before it (saving, evaluating, scoring), or left the loop earlier"
)
_TRANSPORT = (
    "NCCL_DEBUG=INFO shows over what they talk (P2P, SHM, NET); try NCCL_P2P_DISABLE=1, then NCCL_SHM_DISABLE=1 and "
    "NCCL_IB_DISABLE=1 with one all_reduce alone"
)
_SILENT_S = 120.0


def reporting_ranks(judgement: Judgement, evidence: LogEvidence) -> Iterator[str]:
    """Which ranks report a collective that did not finish, and which of those that the logs name do not."""
    hits = [hit for sighting in judgement.fallout for hit in sighting.hits]
    works = [(hit.place.speaker.rank, found) for hit in hits if (found := _WORK.search(hit.text))]
    numbers = {(found["number"], found["kind"]) for _rank, found in works}
    ranks = sorted({int(rank) for rank, _found in works if rank})
    if len(numbers) != 1 or len(ranks) < 2:
        return
    number, kind = numbers.pop()
    places = (*(hit.place for hit in evidence.hits), *(failure.place for failure in evidence.failures))
    others = sorted({int(place.speaker.rank) for place in places if place.speaker.rank.isdigit()} - set(ranks))
    waited = f"ranks {_listed(ranks)} waited in {kind} number {number}"
    if others:
        yield f"{waited}; ranks {_listed(others)} wrote other lines and not this: one of those never came to it"
    elif ranks == list(range(len(ranks))):
        yield f"{waited}; if the job has no more, all came to it and cannot reach each other: {_TRANSPORT}"
    else:
        yield f"{waited}; every other rank is silent: one of those never came to it"


def callers_of_collective(judgement: Judgement) -> Iterator[str]:
    """Which part of a program calls the collective that did not finish: where its ranks can differ."""
    texts = (hit.text for sighting in judgement.fallout for hit in sighting.hits)
    kinds = {found["kind"]: int(found["numel"] or 0) for text in texts if (found := _WORK.search(text))}
    if len(kinds) != 1 or judgement.first_error is not None:
        return
    kind, numel = kinds.popitem()
    words = next((words for shape, words in _CALLERS if shape.match(kind)), "")
    if _ONE_NUMBER.match(kind) and 0 < numel <= _FEW_NUMBERS:
        yield f"{kind} {_OF_ONE_NUMBER}"
    elif words:
        yield f"{kind} is what {words}"


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def silence(judgement: Judgement, evidence: LogEvidence) -> Iterator[str]:
    """When the waiting began, and whose log ends there while the others go on."""
    waits = [s.first for s in judgement.fallout if s.first.timeout_s is not None and s.first.since is not None]
    if not waits:
        return
    begin = min((hit.since for hit in waits if hit.since), key=lambda stamp: stamp.seconds)
    yield f"look at what every rank logged at {begin}: the rank at fault stopped logging then, the timeout came later"
    for end in _silent_since(begin, evidence.ends):
        who = str(end.speaker) or end.file
        yield f"{who} wrote its last line at {end.last}, before the others began to wait: read the end of {end.file}"


def _silent_since(begin: Stamp, ends: list[LogEnd]) -> list[LogEnd]:
    timed = [end for end in ends if end.last and end.last.comparable(begin)]
    silent = [end for end in timed if end.last and end.last.seconds <= begin.seconds + _SILENT_S]
    return silent if len(silent) < len(timed) else []
