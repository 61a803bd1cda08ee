"""Ranks in the wait graph: who is missing in the collective or the process group that others wait in."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import permutations

from rldbg.agent import Message
from rldbg.live.diagnosis.entries import children_of, process_id
from rldbg.live.diagnosis.lost_waits import ended_processes, ended_text
from rldbg.live.diagnosis.wait_graph import Edge, Node, WaitFacts
from rldbg.live.diagnosis.wait_words import exit_text, listed

_MOST_ENDED = 3
_JOINING = "has not joined it"
_TOGETHER = "all ranks are in it: it is in progress, or its transport is stuck"
_ASYNCHRONOUS = frozenset({"wait", "wait_tensor"})
UNNAMED = frozenset({*_ASYNCHRONOUS, "backward"})
_REDUCTIONS = frozenset({"all_reduce", "reduce_scatter", "reduce_scatter_tensor"})


def join_ranks(nodes: list[Node], stacks: Sequence[Message], *, judged: Sequence[int] | None = None) -> list[Node]:
    """Adds edges from ranks in collectives to ranks of their job that are not in the same one; if counters have
    `judged`, only to those they blame."""
    _join_unranked(nodes, stacks)
    _count_joining(nodes, stacks)
    jobs: dict[str, dict[int, Message]] = {}
    for stack in (stack for stack in stacks if stack.get("rank") is not None):
        jobs.setdefault(str(stack.get("job") or ""), {})[int(stack["rank"])] = stack
    found = list(nodes)
    for name, ranked in jobs.items():
        found += _join_job(nodes, ranked, stacks, name, judged)
    return found


def _join_job(
    nodes: Sequence[Node],
    ranked: Mapping[int, Message],
    stacks: Sequence[Message],
    name: str,
    judged: Sequence[int] | None,
) -> list[Node]:
    """The ranks of one job; returns nodes for those that were not found."""
    waiting = {rank: node for rank, stack in ranked.items() if (node := _waiting(nodes, stack)) is not None}
    _join_devices(nodes, ranked, waiting)
    _name_missing_setters(nodes, ranked)
    if not waiting:
        return []
    world = max([int(stack.get("world_size") or 0) for stack in ranked.values()] + [max(ranked) + 1])
    ended = [_ended(child) for stack in stacks for child in stack.get("children") or [] if child["state"] == "zombie"]
    missing = {rank: _missing(rank, world, ended, name) for rank in range(world) if rank not in ranked}
    fronts: dict[int, Node | None] = {rank: _front(nodes, stack, waiting.get(rank)) for rank, stack in ranked.items()}
    fronts |= missing
    for rank, node in waiting.items():
        others = [(waiting.get(other), front) for other, front in sorted(fronts.items()) if other != rank and front]
        unclear = [f"rank {other.rank}" for other, _ in others if other is not None and _may_be_same(node, other)]
        for other, front in others:
            blamed = judged is None or front.rank in judged
            if blamed and front.rank is not None and _is_missing(node, other, front.rank):
                node.edges.append(Edge(front.id, _relation(node)))
        if not node.edges and not node.wait.get("lost"):
            lost = f"whether {unclear[0]} is in the same one is not seen" if unclear else _TOGETHER
            node.wait = {**node.wait, "lost": lost}
    return list(missing.values())


def _name_missing_setters(nodes: Sequence[Node], ranked: Mapping[int, Message]) -> None:
    """Ranks that were not found may be those that should have set a key of a store."""
    absent = unseen_ranks(ranked.values())
    own = {process_id(stack) for stack in ranked.values()}
    for node in nodes if absent else ():
        if node.kind == "store" and not node.edges and node.id[:2] in own:
            lost = filter(None, [str(node.wait.get("lost") or ""), absent])
            node.wait = {**node.wait, "lost": "; ".join(lost)}


def unseen_ranks(stacks: Iterable[Message]) -> str:
    """The ranks of a job that were not looked at, in words; empty if there are none."""
    seen = {int(stack["rank"]): int(stack.get("world_size") or 0) for stack in stacks if stack.get("rank") is not None}
    world = max(seen.values(), default=0)
    missing = [str(rank) for rank in range(world) if rank not in seen]
    if not missing:
        return ""
    ranks = f"rank {missing[0]}, which has" if len(missing) == 1 else f"ranks {listed(missing)}, which have"
    return f"not found of its {world} ranks: {ranks} ended or run{'s' * (len(missing) == 1)} elsewhere"


def _relation(node: Node) -> str:
    if node.kind == "rendezvous":
        return _JOINING
    return "is not in a collective" if node.wait.get("op") in _ASYNCHRONOUS else "never entered it"


def _may_be_same(node: Node, other: Node) -> bool:
    """Whether this is the wait for an operation that was started earlier."""
    ops = {node.wait.get("op"), other.wait.get("op")}
    if len(ops) == 1 or node.kind != other.kind:
        return False
    return bool(ops & _ASYNCHRONOUS) or ("backward" in ops and bool(ops & _REDUCTIONS))


def _join_unranked(nodes: Sequence[Node], stacks: Sequence[Message]) -> None:
    """Actors that were told their rank in a call: others with a process group of the same size that are elsewhere."""
    nameless = [stack for stack in stacks if stack.get("rank") is None and int(stack.get("distributed") or 0) > 1]
    waiting = {process_id(stack): _waiting(nodes, stack) for stack in nameless}
    for stack, other in permutations(nameless, 2):
        node, same_size = waiting[process_id(stack)], stack["distributed"] == other["distributed"]
        front = _front(nodes, other, None)
        if node is not None and front is not None and same_size and waiting[process_id(other)] is None:
            node.edges.append(Edge(front.id, "has a process group of that size and is not in it"))


def _count_joining(nodes: Sequence[Node], stacks: Sequence[Message]) -> None:
    """Names the ranks that are missing from a process group; for processes that got their rank in a call."""
    nameless = {process_id(stack) for stack in stacks if stack.get("rank") is None}
    joining = [node for node in nodes if node.kind == "rendezvous" and node.waits and node.id[:2] in nameless]
    for node in joining:
        size = node.wait.get("world_size")
        here = {other.wait.get("rank") for other in joining if other.wait.get("world_size") == size}
        missing = [rank for rank in range(size or 0) if rank not in here]
        if missing and not node.edges and not node.wait.get("lost"):
            listed = f"{', '.join(map(str, missing[:8]))}{' and more' if len(missing) > 8 else ''}"
            who = f"rank {listed} is" if len(missing) == 1 else f"ranks {listed} are"
            lost = [f"{who} not among the processes that join it", *_ended_siblings(node, nodes, stacks)]
            node.wait = {**node.wait, "lost": "; ".join(lost)}


def _ended_siblings(node: Node, nodes: Sequence[Node], stacks: Sequence[Message]) -> list[str]:
    """Processes with the same parent that have not ended well, with what they raised."""
    parents = [stack for stack in stacks if stack.get("host") == node.id[0] and node.id[1] in children_of(stack)]
    ended = {facts["pid"]: facts for parent in parents for facts in ended_processes(parent, failed=True)}
    raised = {each.id[1]: each for each in nodes if each.id[0] == node.id[0] and each.gone == "raised"}
    return [
        f"{ended_text(facts)}{f': it {raised[pid].activity}' if pid in raised else ''}" for pid, facts in ended.items()
    ][:_MOST_ENDED]


def _join_devices(nodes: Sequence[Node], ranked: Mapping[int, Message], waiting: Mapping[int, Node]) -> None:
    """A rank whose GPU does not finish may wait there for others: calls of collectives on a GPU return at once."""
    mains = {rank: front for rank, stack in ranked.items() if (front := _front(nodes, stack, None)) is not None}
    on_gpu = {rank for rank, node in mains.items() if node.kind == "cuda"}
    for rank in on_gpu:
        if mains[rank].edges:
            # NCCL has said whom it waits for.
            continue
        elsewhere = [node for other, node in sorted(mains.items()) if other not in on_gpu and other not in waiting]
        mains[rank].edges += [Edge(node.id, "is elsewhere (a collective on the GPU may need it)") for node in elsewhere]


def _missing(rank: int, world: int, ended: Sequence[str], job: str) -> Node:
    activity = "; ".join([f"was not found (the job has {world} ranks)", *ended[:3]])
    return Node(("rank", rank, job), f"rank {rank}", activity=activity, rank=rank, gone="not_found")


def _ended(child: WaitFacts) -> str:
    return f"process {child['pid']} has ended ({exit_text(str(child.get('exit') or 'unknown exit code'))})"


def _waiting(nodes: Sequence[Node], stack: WaitFacts) -> Node | None:
    own = [node for node in nodes if node.id[:2] == process_id(stack)]
    return next((node for node in own if node.kind in ("collective", "rendezvous") and node.waits), None)


def _front(nodes: Sequence[Node], stack: WaitFacts, waiting: Node | None) -> Node | None:
    """The thread that counts for a rank: the one in a collective, else its main thread, else the process."""
    own = {node.id[2:]: node for node in nodes if node.id[:2] == process_id(stack)}
    return waiting or own.get(("main",)) or own.get(("process",))


def _is_missing(node: Node, other: Node | None, rank: int) -> bool:
    if node.wait.get("members") and rank not in node.wait["members"]:
        return False
    if other is not None and _may_be_same(node, other):
        return False
    peer = node.wait.get("peer") if node.wait.get("op") in ("send", "recv", "isend", "irecv") else None
    if peer is not None:
        return rank == peer and (other is None or not _answers(node, other))
    return other is None or _call(other) != _call(node)


def _answers(node: Node, other: Node) -> bool:
    """Whether the other rank is in the matching send or receive."""
    ops = {str(each.wait.get("op")).removeprefix("i") for each in (node, other)}
    tags = {each.wait.get("tag") or 0 for each in (node, other)}
    return ops == {"send", "recv"} and other.wait.get("peer") in (None, node.rank) and len(tags) == 1


def _call(node: Node) -> tuple[object, ...]:
    # Who sends to all, or receives from all, is part of the call.
    return node.kind, node.wait.get("op"), node.wait.get("group"), node.wait.get("peer")
