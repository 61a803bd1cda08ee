"""From snapshots of processes to the nodes and edges of the wait graph."""

from collections.abc import Iterator, Mapping, Sequence, Set

from rldbg.live.diagnosis.entries import process_id
from rldbg.live.diagnosis.lost_waits import DUTIES, what_ended, why_lost
from rldbg.live.diagnosis.process_nodes import ended_program_nodes, process_nodes, stranger_node, strangers_of
from rldbg.live.diagnosis.wait_edges import edges_of
from rldbg.live.diagnosis.wait_graph import JOINS, Id, Node, WaitFacts, sleeps_again
from rldbg.live.diagnosis.wait_words import thing


def nodes_of(stacks: Sequence[WaitFacts]) -> list[Node]:
    """A node per thread and task, and one per process that has none."""
    alone = len([stack for stack in stacks if stack.get("threads")]) == 1
    found: list[Node] = []
    ranks = {stack.get("role") for stack in stacks if stack.get("rank") is not None}
    for stack in stacks:
        by_rank = stack.get("rank") is not None and len(ranks) == 1
        found += process_nodes(stack, f"rank {stack['rank']}" if by_rank else str(stack["who"]), alone)
    strangers = strangers_of(stacks, {node.id[:2] for node in found})
    found += [stranger_node(host, facts) for (host, _), facts in strangers.items()]
    found += ended_program_nodes(stacks, {node.id[:2] for node in found})
    known = {node.id: node for node in found}
    for (host, pid), facts in strangers.items():
        node = known[host, pid, "process"]
        if node.waits:
            node.edges += edges_of(node.wait, {**facts, "host": host}, node, known, stacks)
    _lose_turns(stacks, known)
    for stack in stacks:
        for entry, node in _entries(stack, known):
            node.edges += edges_of(entry["wait"], stack, node, known, stacks)
            if not node.edges and not node.wait.get("lost"):
                node.wait = {**node.wait, "lost": why_lost(entry, node.wait, stack, known, stacks)}
                # Other threads of the process run: a helper that waits for its next task is idle, not stuck.
                helps = node.kind in DUTIES and not entry.get("main")
                node.background |= helps and (_goes_on(stack) or (bool(node.wait.get("timeout")) and _paced(stack)))
    _count_arrived(found)
    return found


def rest_where_meant(nodes: Sequence[Node], stacks: Sequence[WaitFacts]) -> Sequence[Node]:
    """Nodes whose wait is meant to last do not wait; told when all others are joined, which may wait for them."""
    known = {node.id: node for node in nodes}
    joined = {edge.target for node in nodes for edge in node.edges if edge.relation in JOINS}
    awaited = {edge.target for node in nodes for edge in node.edges if edge.relation not in JOINS}
    for stack in stacks:
        for _, node in _entries(stack, known):
            alone = node.id not in awaited | joined
            # Who waits for the end of what serves, supervises it.
            serving = _waits_for_requests(node, stack) if node.id not in awaited else ""
            if activity := serving or _meant_to_last(node, alone=alone):
                node.wait, node.activity = {"kind": "serving"}, activity
                _rest_supervisors(node, nodes, awaited)
    return nodes


def _rest_supervisors(served: Node, nodes: Sequence[Node], awaited: Set[Id]) -> None:
    """Who waits only for the end of what is meant to last, waits as long."""
    for node in nodes:
        ends = node.waits and node.edges and all(e.target == served.id and e.relation in JOINS for e in node.edges)
        if ends and node.id not in awaited:
            node.activity, node.wait = f"waits for {thing(node.wait)}, which is meant to last", {"kind": "serving"}
            _rest_supervisors(node, nodes, awaited)


def without_library_tasks(nodes: list[Node]) -> list[Node]:
    """Tasks that asyncio made for results of Ray (`gather`, `wait_for`) are no code of the user: who awaits only such
    ones waits for these results."""
    known = {node.id: node for node in nodes}
    for node in nodes:
        awaited = [known[edge.target] for edge in node.edges if edge.target in known]
        made = [each for each in awaited if each.background and "task" in each.id and each.kind == "ray_get"]
        if node.kind != "task" or node.background or not made or len(made) < len(awaited):
            continue
        first, others = made[0].wait, len(made) - 1
        more = f" and {others} more" if others else ""
        node.wait = {**first, "text": f"{thing(first)}{more}"}
        node.edges = [edge for each in made for edge in each.edges]
    return nodes


def _paced(stack: WaitFacts) -> bool:
    """Whether the main thread sleeps between rounds, without looking for anything that others should do."""
    mains = [thread["wait"] for thread in stack.get("threads") or [] if thread["main"] and "wait" in thread]
    return any(wait["kind"] == "sleep" and not wait.get("polls") and sleeps_again(wait) for wait in mains)


def _meant_to_last(node: Node, *, alone: bool) -> str:
    """What a node does whose wait is no hang although nobody is seen who would end it."""
    if not node.wait.get("lost"):
        return ""
    if node.wait.get("by_signal"):
        return f"stays until a signal ends it (waits for {thing(node.wait)})"
    if node.wait.get("nobody_elses") and alone:
        return f"stays until it is ended (waits for {thing(node.wait)} that nobody else can have)"
    return ""


def _waits_for_requests(node: Node, stack: WaitFacts) -> str:
    """In a process that serves, functions that no line starts are called for requests."""
    called = node.wait.get("functions") and not node.wait.get("starters") and not what_ended(stack)
    idle = node.kind == "queue_get" and node.wait.get("lost") and called and _serves(stack)
    return f"waits for requests (for {thing(node.wait)})" if idle else ""


def _serves(stack: WaitFacts) -> bool:
    waits = [thread.get("wait") or {} for thread in stack.get("threads") or []]
    return any(wait.get("kind") == "serving" or wait.get("listens") or _accepts(wait) for wait in waits)


def _accepts(wait: WaitFacts) -> bool:
    return wait.get("kind") == "socket" and bool((wait.get("file") or {}).get("local")) and not wait["file"].get("peer")


def _goes_on(stack: WaitFacts) -> bool:
    threads = [thread for thread in stack.get("threads") or [] if not thread.get("background", True)]
    return any(thread.get("moved") or thread["wait"]["kind"] == "computing" for thread in threads)


def _lose_turns(stacks: Sequence[WaitFacts], known: Mapping[Id, Node]) -> None:
    """Those who wait for their turn at a queue of processes while nobody has it: whoever was killed in `get` keeps
    it."""
    taking = [(stack, entry, node) for stack in stacks for entry, node in _entries(stack, known)]
    taking = [each for each in taking if each[2].kind == "queue_get" and each[1]["wait"].get("shared")]
    in_it = {(stack["host"], entry["wait"]["shared"]) for stack, entry, _ in taking if not entry["wait"].get("in_turn")}
    for stack, entry, node in taking:
        if (stack["host"], entry["wait"]["shared"]) not in in_it:
            node.wait = {**node.wait, "kind": "queue_turn"}


def _count_arrived(nodes: Sequence[Node]) -> None:
    """How many wait at a barrier of several processes: its own count is in memory that they share."""
    shared = [node for node in nodes if node.kind == "barrier" and node.wait.get("shared")]
    for node in shared:
        if node.wait.get("count") is None:
            same = [each for each in shared if each.wait["shared"] == node.wait["shared"]]
            node.wait = {**node.wait, "count": len(same)}


def _entries(stack: WaitFacts, known: Mapping[Id, Node]) -> Iterator[tuple[WaitFacts, Node]]:
    base = process_id(stack)
    for thread in stack.get("threads") or []:
        if "wait" in thread and (node := known[(*base, "main" if thread["main"] else thread["ident"])]).waits:
            yield thread, node
    for task in stack.get("tasks") or []:
        if (node := known[(*base, "task", task["key"])]).waits:
            yield task, node
