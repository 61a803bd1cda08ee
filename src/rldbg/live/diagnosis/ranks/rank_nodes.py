"""Ranks in the wait graph: who is missing in the collective or the process group that others wait in."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import permutations

from rldbg.agent import Message
from rldbg.live.diagnosis.graph.entries import process_id
from rldbg.live.diagnosis.graph.wait_graph import Edge, Node, WaitFacts, works_slowly
from rldbg.live.diagnosis.graph.wait_words import exit_text, listed, place_text, root_words
from rldbg.live.diagnosis.hang import ranks_text
from rldbg.live.diagnosis.passed_by import has_left, left_behind, other_branch_of, passed_by, rounds_apart, ways_past
from rldbg.live.diagnosis.ranks.group_members import UNKNOWN_MEMBER, group_name, groups_of, has_own_numbers, is_member
from rldbg.live.diagnosis.ranks.joining_ranks import tell_joining

_MOST_ENDED = 3
_JOINING = "has not joined it"
_ENDED_WELL = "has ended with exit code 0 (after a failure torchrun would have ended the others too)"
_TOGETHER = "all ranks are in it: it is in progress, or its transport is stuck"
_TOGETHER_KINDS = frozenset({"collective", "rendezvous"})
_ASYNCHRONOUS = frozenset({"wait", "wait_tensor"})
UNNAMED = frozenset({*_ASYNCHRONOUS, "backward"})
# A rank that waits for one of these runs what it is asked to.
_ON_REQUEST = frozenset({"serving", "queue_get", "event", "condition", "idle", "event_loop", "socket", "poll"})
_BETWEEN_TWO = frozenset({"send", "recv", "isend", "irecv"})
# What a rank that has come further need not have passed by.
NOT_BY_ALL = UNNAMED | _BETWEEN_TWO
_ANSWERS = {"receive": ("receives", "from", ("recv", "irecv")), "send": ("sends", "to", ("send", "isend"))}
# Of these a rank may be done before the others have come.
_LEFT_EARLY = frozenset(
    {"broadcast", "broadcast_object_list", "reduce", "gather", "gather_object", "scatter", "scatter_object_list"}
)
_REDUCTIONS = frozenset({"all_reduce", "reduce_scatter", "reduce_scatter_tensor"})


def join_ranks(nodes: list[Node], stacks: Sequence[Message], *, judged: Sequence[int] | None = None) -> list[Node]:
    """Adds edges from ranks in collectives to ranks of their job that are not in the same one; if counters have
    `judged`, only to those they blame."""
    _join_named(nodes, stacks)
    _join_unranked(nodes, stacks)
    tell_joining(nodes, stacks)
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
    over = {rank for stack in ranked.values() for rank in stack.get("ended_ranks") or ()}
    missing = {rank: _missing(rank, world, ended, name) for rank in range(world) if rank not in ranked}
    missing |= {rank: _ended_well(rank, name) for rank in over & set(missing)}
    fronts: dict[int, Node | None] = {rank: _front(nodes, stack, waiting.get(rank)) for rank, stack in ranked.items()}
    fronts |= missing
    _tell_roots(waiting, ranked, range(world))
    for rank, node in waiting.items():
        if node.wait.get("disagree") or node.wait.get("apart"):
            continue
        members = {other: is_member(node, ranked[rank], other) for other in fronts if other != rank}
        others = [(waiting.get(other), fronts[other]) for other, part in sorted(members.items()) if part is not False]
        absent = [front for other, front in others if front is not None and _is_missing(node, other, front.rank)]
        # Who is in a later round of the same loop has left it, and may have where the round is not known.
        late = [front for front in absent if rounds_apart(node.route, front.route) != 1]
        late = [each for each in late if not _is_same_call(node, each) and not _is_done(node, each)]
        for front in late or absent:
            # Counters know nothing of ranks that join a process group.
            if judged is None or front.rank in judged or node.kind == "rendezvous":
                unseen = UNKNOWN_MEMBER if members.get(front.rank or 0, True) is None else ""
                passing = unseen or _passing(node, front)
                node.edges.append(Edge(front.id, _relation(node, None if passing else front) + passing))
        if not absent and not node.edges and not node.wait.get("lost"):
            node.wait = {**node.wait, "lost": _all_there(node, [other for other, _ in others if other])}
    _join_threads(nodes, waiting)
    return list(missing.values())


def _all_there(node: Node, others: Sequence[Node]) -> str:
    """Why nobody is missing from what a rank waits in, as far as it is known."""
    if unclear := [f"rank {other.rank}" for other in others if _may_be_same(node, other)]:
        return f"whether {unclear[0]} is in the same one is not seen"
    return _TOGETHER


def _tell_roots(waiting: Mapping[int, Node], ranked: Mapping[int, Message], world: Iterable[int]) -> None:
    """Ranks in the same call, of which each takes another rank for the one that sends to all or receives from all."""
    for rank, node in waiting.items():
        alike = {other: each for other, each in waiting.items() if _is_same_call(node, each)}
        roots: dict[int, list[int]] = {}
        for other, each in sorted(alike.items()):
            roots.setdefault(each.wait["peer"], []).append(other)
        certain = all(rounds_apart(node.route, each.route) == 0 for each in alike.values())
        others = [other for other in world if other not in alike]
        # Of ranks in unknown rounds of a loop some may be ahead, unless all are there.
        everyone = all(is_member(node, ranked[rank], other) is False for other in others)
        if len(roots) < 2 or not (certain or everyone):
            continue
        calls = [f"{ranks_text(ranks)} {root_words(str(node.wait['op']), root)}" for root, ranks in roots.items()]
        lost = f"the ranks in it disagree on its root: {', '.join(calls)}"
        for each in alike.values():
            each.wait = {**each.wait, "peer": None, "disagree": sorted(alike), "lost": lost}


def _is_done(node: Node, other: Node) -> bool:
    """Whether another rank has done its part of what a rank waits in."""
    return node.wait.get("op") in _LEFT_EARLY and has_left(node.route, other.route)


def _is_same_call(node: Node, other: Node) -> bool:
    """Whether two are in the same collective but for its root, at the same lines and not in rounds known to differ."""
    rooted = node.wait.get("op") not in _BETWEEN_TWO and None not in (node.wait.get("peer"), other.wait.get("peer"))
    apart = rounds_apart(node.route, other.route)
    return rooted and _call(node)[:3] == _call(other)[:3] and node.place == other.place and apart in (0, None)


def _join_threads(nodes: Sequence[Node], waiting: Mapping[int, Node]) -> None:
    """Threads of one rank that are in collectives of the same process group at once."""
    for node in (node for node in waiting.values() if node.wait.get("lost") == _TOGETHER):
        own = [each for each in nodes if each.id[:2] == node.id[:2] and each is not node and each.waits]
        same = [each for each in own if each.kind == "collective" and group_name(each) == group_name(node)]
        if same:
            thread, op = same[0].label.partition(" of ")[0], same[0].wait["op"]
            both = f"its {thread} is in {op} of the same process group at the same time"
            order = "ranks that begin the two in different orders wait for each other"
            node.wait = {**node.wait, "lost": f"{both}: {order}"}
            for each in same:
                # It is told with the other one.
                each.background = True


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


def _relation(node: Node, other: Node | None) -> str:
    """How another rank relates to what a rank waits in; `other` only if it has not passed that by."""
    if node.kind == "rendezvous":
        return _JOINING
    if node.wait.get("op") in _BETWEEN_TWO and node.wait.get("peer") is not None:
        return f"does not {_answer(node)} it"
    if node.wait.get("op") in _ASYNCHRONOUS:
        return "is not in a collective"
    at_work = other is not None and (other.kind == "computing" or works_slowly(other.wait))
    return "has not yet entered it" if at_work else "never entered it"


def _passing(node: Node, other: Node) -> str:
    """How the other rank has come further without what the node waits in."""
    if other.activity == _ENDED_WELL and (how := ways_past(node.route)):
        return f" (it may have skipped it: {how})"
    known = not other.gone and node.wait.get("op") not in NOT_BY_ALL and not node.wait.get("begun")
    if known and (branch := other_branch_of(node.route, other.route)):
        return f" (it is in the other branch of {branch})"
    # An exception that it handles took it past everything.
    known = known and not other.wait.get("handles")
    how = passed_by(node.route, other.route, waits=other.kind in _TOGETHER_KINDS) if known else ""
    return f" (it skipped it: {how})" if how else answering_lines(node, other) or _not_called(node, other)


def _answer(node: Node) -> str:
    """What the other side of a send or receive would do."""
    return "receive" if str(node.wait.get("op")).endswith("send") else "send"


def answering_lines(node: Node, other: Node) -> str:
    """Where, in the files that it runs, the other side of a send or receive would answer, and whom."""
    # Who sends or receives itself is told with that.
    if node.wait.get("op") not in _BETWEEN_TWO or other.wait.get("op") in _BETWEEN_TWO:
        return ""
    verb, toward, ops = _ANSWERS[_answer(node)]
    lines = [line for op in ops for line in other.enters.get(op, ())]
    told = [f"{place_text(line)}, {toward} `{line['peer']}`" for line in lines]
    return f" (it {verb} at {' and at '.join(told)})" if 0 < len(told) <= _MOST_ENDED else ""


def uneven_rounds(ring: Sequence[Node]) -> tuple[str, str]:
    """Where one rank of a ring of sends or receives has left the round of a loop that another is still in: no order
    mends that, one side has more of them than the other. Empty where all are in the same round, or it is not known."""
    for node, other in ((a, b) for a in ring for b in ring if a.rank != b.rank and a.wait.get("peer") == b.rank):
        apart = left_behind(node.route, other.route) if node.wait.get("op") in _BETWEEN_TWO else None
        if apart is None or apart[1] > apart[2]:
            continue
        loop, own, _ = apart
        verb, _, ops = _ANSWERS[_answer(node)]
        lines = [line for op in ops for line in other.enters.get(op, ())]
        lines = [line for line in lines if not str(line["peer"]).isdigit() or int(line["peer"]) == node.rank]
        places = [place_text(line) for line in lines]
        where = f" (it {verb} at {' and at '.join(places)})" if 0 < len(places) <= _MOST_ENDED else ""
        count = f"rank {node.rank} {'receives' if verb == 'sends' else 'sends'} more in a round"
        more = f"{count} than rank {other.rank} {verb}"
        left = (
            f"rank {other.rank} has left round {own} of the loop in {loop}, in which rank {node.rank} still is{where}"
        )
        return f"{left}: {more}", f"count the sends and receives of both sides in a round: {more}"
    return "", ""


def _not_called(node: Node, other: Node) -> str:
    """Which functions of a rank that waits for something else would enter the collective."""
    if other.kind not in _ON_REQUEST or not node.route:
        return ""
    here = (node.route[-1]["file"], node.route[-1]["line"])
    calls = [each for each in other.enters.get(str(node.wait.get("op")), ()) if (each["file"], each["line"]) != here]
    idle = [each for each in calls if str(each["function"]).rpartition(".")[2] not in other.functions]
    names = dict.fromkeys(map(place_text, idle))
    return f" (only {' and '.join(names)} would, which it does not run)" if 0 < len(names) <= _MOST_ENDED else ""


def _may_be_same(node: Node, other: Node) -> bool:
    """Whether this is the wait for an operation that was started earlier."""
    ops = {node.wait.get("op"), other.wait.get("op")}
    if len(ops) == 1 or node.kind != other.kind:
        return False
    return bool(ops & _ASYNCHRONOUS) or ("backward" in ops and bool(ops & _REDUCTIONS))


def _join_named(nodes: Sequence[Node], stacks: Sequence[Message]) -> None:
    """Groups that a library has named, which may join processes of several jobs: who has the same one and is not in
    it."""
    holders: dict[tuple[str, int], list[Message]] = {}
    for stack in stacks:
        for group in (group for group in groups_of(stack) if not group["ranks"]):
            holders.setdefault((str(group["name"]), int(group["size"])), []).append(stack)
    for (name, size), having in holders.items():
        waiting = {process_id(stack): _waiting(nodes, stack) for stack in having}
        inside = {own: node for own, node in waiting.items() if node is not None and group_name(node) == name}
        for own, node in inside.items():
            others = [stack for stack in having if process_id(stack) != own]
            fronts = [_front(nodes, stack, waiting[process_id(stack)]) for stack in others]
            missing = [front for front in fronts if front is not None and _call(front) != _call(node)]
            node.edges += [Edge(front.id, f"has process group {name} and is not in it") for front in missing]
            node.wait = {**node.wait, "named": True}
            if not missing:
                unseen = (
                    f"{size - len(having)} of the {size} processes of group {name} were not found, the others are in it"
                )
                node.wait = {**node.wait, "lost": unseen if len(having) < size else _TOGETHER}


def _join_unranked(nodes: Sequence[Node], stacks: Sequence[Message]) -> None:
    """Actors that were told their rank in a call: others with a process group of the same size that are elsewhere."""
    nameless = [stack for stack in stacks if stack.get("rank") is None and int(stack.get("distributed") or 0) > 1]
    waiting = {process_id(stack): _waiting(nodes, stack) for stack in nameless}
    for stack, other in permutations(nameless, 2):
        node, same_size = waiting[process_id(stack)], stack["distributed"] == other["distributed"]
        front = _front(nodes, other, None)
        named = node is not None and has_own_numbers(node, stack)
        if node is not None and front is not None and same_size and not named and waiting[process_id(other)] is None:
            node.edges.append(Edge(front.id, "has a process group of that size and is not in it"))


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


def _ended_well(rank: int, job: str) -> Node:
    return Node(("rank", rank, job), f"rank {rank}", activity=_ENDED_WELL, rank=rank, gone="ended")


def _ended(child: WaitFacts) -> str:
    return f"process {child['pid']} has ended ({exit_text(str(child.get('exit') or 'unknown exit code'))})"


def _waiting(nodes: Sequence[Node], stack: WaitFacts) -> Node | None:
    own = [node for node in nodes if node.id[:2] == process_id(stack)]
    return next((node for node in own if node.kind in _TOGETHER_KINDS and node.waits), None)


def _front(nodes: Sequence[Node], stack: WaitFacts, waiting: Node | None) -> Node | None:
    """The thread that counts for a rank: the one in a collective, else its main thread, else the process."""
    own = {node.id[2:]: node for node in nodes if node.id[:2] == process_id(stack)}
    return waiting or own.get(("main",)) or own.get(("process",))


def _is_missing(node: Node, other: Node | None, rank: int | None) -> bool:
    if other is not None and _may_be_same(node, other):
        return False
    peer = node.wait.get("peer") if node.wait.get("op") in _BETWEEN_TWO else None
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
    return node.kind, node.wait.get("op"), group_name(node), node.wait.get("peer")
