"""Loops that look at something which only others change: they wait for those. Loops that ask a server again and again:
who listens there, and what has ended in it."""

from collections.abc import Iterator, Mapping, Sequence

from rldbg.live.diagnosis.graph.entries import all_entries, entry_id, process_name, serves
from rldbg.live.diagnosis.graph.wait_graph import Edge, Id, Node, WaitFacts
from rldbg.live.diagnosis.graph.who_ended import last_raised, what_ended

# What waits for one of these goes on when something comes from outside the job.
_FROM_OUTSIDE = frozenset({"socket", "stream", "message", "poll", "pipe", "stdin", "fifo", "child"})


def wait_for_changes(stacks: Sequence[WaitFacts], known: Mapping[Id, Node]) -> None:
    """Told where all who would change it wait, and not for what comes from outside, or are in such a loop themselves
    and do nothing else in it."""
    polling = {node.id: edges for node, edges in _polling(stacks, known) if edges}
    only_looking = {node for stack in stacks for node in _only_looking(stack, known)}
    size = -1
    while size != len(polling):
        size = len(polling)
        polling = {
            identity: edges
            for identity, edges in polling.items()
            if all(
                _waits_inside(known[edge.target])
                or (edge.target in polling and {identity, edge.target} <= only_looking)
                for edge in edges
            )
        }
    for identity, edges in polling.items():
        node = known[identity]
        node.edges, node.wait = edges, {"kind": "change", "loop": node.wait["polls"]}


def _waits_inside(node: Node) -> bool:
    return node.waits and node.kind not in _FROM_OUTSIDE


def _polling(stacks: Sequence[WaitFacts], known: Mapping[Id, Node]) -> Iterator[tuple[Node, list[Edge]]]:
    """Nodes that are in such a loop, and who would change what they look at."""
    for stack in stacks:
        entries = {str(entry.get("thread") or entry["key"]): entry for entry in all_entries(stack) if "wait" in entry}
        for entry in entries.values():
            node, edges = known[entry_id(entry, stack)], dict[Id, Edge]()
            for each in entry["wait"].get("looks_at") or () if node.kind == "sleep" else ():
                others = [entries[each["who"]]] if "who" in each else []
                ids = [entry_id(other, stack) for other in others] or _sharing(each, stack, stacks)
                edges |= {other: Edge(other, f"should change `{each['name']}`") for other in ids}
            yield node, list(edges.values())


def _sharing(seen: WaitFacts, stack: WaitFacts, stacks: Sequence[WaitFacts]) -> list[Id]:
    """Who changes an object of several processes in what it runs."""
    others = [each for each in stacks if each.get("host") == stack.get("host") and each is not stack]
    entries = [(entry, other) for other in others for entry in all_entries(other)]
    return [entry_id(*each) for each in entries if {*each[0].get("shares", {}).get(seen["shared"], ())} & {*seen["by"]}]


def _only_looking(stack: WaitFacts, known: Mapping[Id, Node]) -> list[Id]:
    """Those that do nothing else in their loops, in a process where nobody else is at work or called for requests."""
    entries = [entry for entry in all_entries(stack) if "wait" in entry]
    nodes = {entry_id(entry, stack): known[entry_id(entry, stack)] for entry in entries}
    at_work = [node for node in nodes.values() if not node.background and node.kind in ("", "computing")]
    if at_work or serves(stack):
        return []
    return [entry_id(entry, stack) for entry in entries if entry["wait"].get("only_looks")]


def tell_asked_servers(stacks: Sequence[WaitFacts], known: Mapping[Id, Node]) -> None:
    """A server in which an exception has ended a thread goes on to answer, but perhaps never as the loop expects."""
    for stack in stacks:
        for entry in (each for each in all_entries(stack) if (each.get("wait") or {}).get("asks_at")):
            node = known[entry_id(entry, stack)]
            told, raised = _told(entry["wait"], stack, stacks)
            if told and node.activity.startswith("polls"):
                node.activity = f"{node.activity.removesuffix(')')}; {told})"
                node.gone = node.gone or ("raised" if raised else "")


def _told(wait: WaitFacts, stack: WaitFacts, stacks: Sequence[WaitFacts]) -> tuple[str, bool]:
    served_by, address = wait.get("served_by"), wait["asks_at"]
    if served_by is None:
        return "", False
    if not served_by:
        return f"no process of this host listens at {address}", False
    others = [each for each in stacks if each is not stack and each.get("host") == stack.get("host")]
    for server in (each for each in others if each.get("pid") in served_by):
        listens = f"{process_name(server, stacks)} listens at {address}"
        raised = what_ended(server) if last_raised(server) else _printed(server)
        return f"{listens}, and {raised}" if raised else listens, bool(raised)
    return "", False


def _printed(server: WaitFacts) -> str:
    """The thread or task that an exception has ended, by what the process has printed."""
    for each in server.get("said") or []:
        if each.get("gone"):
            return f"{each['gone']} has ended: {each['message']}"
        if each.get("thread_ended"):
            whose = f"thread {each['thread_ended']} of it, or of another process that prints into the same file,"
            return f"{whose} has ended: {each['message']}"
    return ""
