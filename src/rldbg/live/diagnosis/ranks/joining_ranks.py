"""Ranks that join a process group and do not meet: which of them are missing, and where each looks for the others."""

from collections.abc import Sequence

from rldbg.agent import Message
from rldbg.live.diagnosis.graph.entries import children_of, process_id
from rldbg.live.diagnosis.graph.wait_graph import Id, Node
from rldbg.live.diagnosis.graph.wait_words import listed
from rldbg.live.diagnosis.graph.who_ended import ended_processes, ended_text
from rldbg.live.diagnosis.ranks.group_members import joins_named

_MOST_TOLD = 4
_MOST_ENDED = 3
_Joining = tuple[int, Node]


def tell_joining(nodes: Sequence[Node], stacks: Sequence[Message]) -> None:
    """Adds to each rank that joins a process group why it does not meet the others."""
    _tell_places(nodes, stacks)
    _count_joining(nodes, stacks)


def _tell_places(nodes: Sequence[Node], stacks: Sequence[Message]) -> None:
    """Where their addresses say it."""
    jobs: dict[Id, object] = {process_id(stack): stack.get("job") for stack in stacks}
    groups: dict[tuple[object, ...], list[_Joining]] = {}
    for node in (node for node in nodes if node.kind == "rendezvous" and node.waits and node.wait.get("meets_at")):
        rank = node.wait.get("rank") if node.wait.get("rank") is not None else node.rank
        if rank is not None:
            size = node.wait.get("world_size")
            groups.setdefault((jobs.get(node.id[:2]), node.wait["call"], size), []).append((rank, node))
    # Ranks that were told different addresses seem to be of different jobs, of which each is incomplete.
    whole = {key: joining for key, joining in groups.items() if len({rank for rank, _ in joining}) == key[2]}
    parts: dict[tuple[object, ...], list[_Joining]] = {}
    for key, joining in groups.items():
        if key not in whole:
            parts.setdefault(key[1:], []).extend(joining)
    for joining in (*whole.values(), *parts.values()):
        _tell_group(sorted(joining, key=lambda each: each[0]))


def _tell_group(joining: Sequence[_Joining]) -> None:
    """Ranks that join groups of the same size; of the same group, if no two of them have the same rank."""
    places = {str(node.wait["meets_at"]) for _, node in joining}
    unheard = [each for each in joining if _is_unheard(each)]
    distinct = len({rank for rank, _ in joining}) == len(joining)
    # Different names may be those of one host.
    if len(places) > 1 and distinct and unheard:
        shown = "; ".join(map(_place, joining[:_MOST_TOLD]))
        more = f" and {len(joining) - _MOST_TOLD} more" if len(joining) > _MOST_TOLD else ""
        _lose(joining, f"they look for each other at different addresses: {shown}{more}", apart=True)
        return
    for place in sorted({str(node.wait["meets_at"]) for _, node in unheard}):
        there = [each for each in joining if each[1].wait["meets_at"] == place]
        _lose(there, "; ".join([f"nobody listens at {place}, where the ranks should meet", *_any_port(place, there)]))


def _any_port(place: str, joining: Sequence[_Joining]) -> list[str]:
    """Where rank 0 listens instead, if the port was left open."""
    if not place.endswith(":0"):
        return []
    taken = [listed(node.wait["listens"]) for rank, node in joining if rank == 0 and node.wait.get("listens")]
    return [f"port 0 stands for any free one{f', and rank 0 listens at {taken[0]}' if taken else ''}"]


def _is_unheard(each: _Joining) -> bool:
    rank, node = each
    return rank != 0 and node.wait.get("listened") is False


def _place(each: _Joining) -> str:
    rank, node = each
    who = node.label if node.label == f"rank {rank}" else f"{node.label} (rank {rank})"
    return f"{who} at {node.wait['meets_at']}{', where nobody listens' if _is_unheard(each) else ''}"


def _lose(joining: Sequence[_Joining], why: str, *, apart: bool = False) -> None:
    for _, node in joining:
        node.wait = {**node.wait, "lost": why, "apart": apart}


def _count_joining(nodes: Sequence[Node], stacks: Sequence[Message]) -> None:
    """Names the ranks that are missing from a process group; for processes that got their rank in a call, or by the
    name of the group."""
    nameless = {process_id(stack) for stack in stacks if stack.get("rank") is None}
    joining = [node for node in nodes if node.kind == "rendezvous" and node.waits]
    joining = [node for node in joining if node.id[:2] in nameless or joins_named(node)]
    for node in joining:
        size = node.wait.get("world_size")
        alike = [each for each in joining if all(each.wait.get(k) == node.wait.get(k) for k in ("world_size", "group"))]
        here = {other.wait.get("rank") for other in alike}
        missing = [rank for rank in range(size or 0) if rank not in here]
        if missing and not node.edges:
            numbers = f"{', '.join(map(str, missing[:8]))}{' and more' if len(missing) > 8 else ''}"
            who = f"rank {numbers} is" if len(missing) == 1 else f"ranks {numbers} are"
            lost = [f"{who} not among the processes that join it", *_ended_siblings(node, nodes, stacks)]
            node.wait = {**node.wait, "lost": "; ".join(filter(None, [str(node.wait.get("lost") or ""), *lost]))}


def _ended_siblings(node: Node, nodes: Sequence[Node], stacks: Sequence[Message]) -> list[str]:
    """Processes with the same parent that have not ended well, with what they raised."""
    parents = [stack for stack in stacks if stack.get("host") == node.id[0] and node.id[1] in children_of(stack)]
    ended = {facts["pid"]: facts for parent in parents for facts in ended_processes(parent, failed=True)}
    raised = {each.id[1]: each for each in nodes if each.id[0] == node.id[0] and each.gone == "raised"}
    return [
        f"{ended_text(facts)}{f': it {raised[pid].activity}' if pid in raised else ''}" for pid, facts in ended.items()
    ][:_MOST_ENDED]
