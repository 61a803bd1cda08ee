"""From snapshots of processes to the nodes and edges of the wait graph."""

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from fnmatch import fnmatchcase

from rldbg.live.diagnosis.graph.dispatchers import tell_dispatchers
from rldbg.live.diagnosis.graph.entries import all_entries, entry_id, loops_of, process_id, process_name, serves
from rldbg.live.diagnosis.graph.lost_waits import DUTIES, why_lost
from rldbg.live.diagnosis.graph.polled_changes import tell_asked_servers, wait_for_changes
from rldbg.live.diagnosis.graph.pool_edges import IS_A_CHILD
from rldbg.live.diagnosis.graph.process_nodes import ended_program_nodes, process_nodes, stranger_node, strangers_of
from rldbg.live.diagnosis.graph.wait_edges import edges_of
from rldbg.live.diagnosis.graph.wait_graph import JOINS, Edge, Id, Node, WaitFacts, sleeps_again
from rldbg.live.diagnosis.graph.wait_words import place_text, thing
from rldbg.live.diagnosis.graph.who_ended import what_ended

# How the handlers of requests begin.
_HANDLES = re.compile(r"^(?:do|post|get|put|on|handle|api|rpc|cmd)_|_(?:handler|endpoint|request)$")
_WRITING = frozenset({"send", "send_bytes", "sendall", "sendto", "write", "writelines", "drain"})
_INBOXES = frozenset({"pipe", "socket", "queue_get", "message", "stream", "stdin"})
# How who is given work waits for the next piece.
_TAKES = frozenset({"queue_get", "condition"})


def nodes_of(stacks: Sequence[WaitFacts]) -> list[Node]:
    """A node per thread and task, and one per process that has none."""
    alone = len([stack for stack in stacks if stack.get("threads")]) == 1
    found: list[Node] = []
    for stack in stacks:
        found += process_nodes(stack, process_name(stack, stacks), alone)
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
            node.edges += _edges(entry, stack, node, known, stacks)
            if _has_happened(entry, node, known):
                for edge in node.edges:
                    known[edge.target].background = True
                node.wait, node.edges, node.activity = {}, [], "is running"
                continue
            if not node.edges and not node.wait.get("lost"):
                node.wait = {**node.wait, "lost": why_lost(entry, node.wait, stack, known, stacks)}
                # Other threads of the process run: a helper that waits for its next task is idle, not stuck. One that
                # waits for an event with a time limit does something each time, until it is told to stop.
                helps, timed = node.kind in DUTIES and not entry.get("main"), bool(node.wait.get("timeout"))
                node.background |= helps and (_goes_on(stack) or (timed and (node.kind == "event" or _paced(stack))))
    for stack in stacks:
        _without_idle_children(stack, known, stacks)
    _count_arrived(found)
    wait_for_changes(stacks, known)
    _wait_for_files(stacks, known)
    tell_asked_servers(stacks, known)
    tell_dispatchers(known)
    _name_who_asks(stacks, known)
    return found


def _has_happened(entry: WaitFacts, node: Node, known: Mapping[Id, Node]) -> bool:
    """Whether what is waited for came about while the job was looked at, so that the wait does not last: the kernel
    wakes who waits for a process that has ended, or for data from a connection that its peer has closed."""
    if node.kind == "child" and (entry.get("kernel") or {}).get("call") in ("wait4", "waitid"):
        awaited = [known[edge.target] for edge in node.edges if edge.target in known]
        return bool(awaited) and all(each.gone == "ended" for each in awaited)
    closed = node.kind in ("socket", "stream") and node.wait.get("ends") == [] and bool(node.wait.get("file"))
    return closed and not node.edges and bool(node.wait.get("accepted", True))


def _wait_for_files(stacks: Sequence[WaitFacts], known: Mapping[Id, Node]) -> None:
    """A loop that looks for a file waits for who will write it; told where these wait or look for something too."""
    entries = [(entry, stack) for stack in stacks for entry in all_entries(stack) if "wait" in entry]
    writers = [(known[entry_id(*each)], file) for each in entries for file in each[0].get("writes_files") or []]
    looking = [(known[entry_id(*each)], each[0]["wait"].get("awaits_files") or []) for each in entries]
    for node, paths in looking if writers else ():
        found = [(other, file) for other, file in writers if other is not node]
        found = [(other, file) for other, file in found if any(fnmatchcase(file["path"], path) for path in paths)]
        if node.kind == "sleep" and found and all(other.waits or other.wait.get("polls") for other, _ in found):
            targets = {other.id: f"writes {file['path']} only afterwards ({place_text(file)})" for other, file in found}
            node.edges = [Edge(identity, part) for identity, part in targets.items()]
            node.wait = {"kind": "change", "loop": node.wait["polls"]}


def _name_who_asks(stacks: Sequence[WaitFacts], known: Mapping[Id, Node]) -> None:
    """Where only the handler of a request would end a wait of a server: who sends such requests, in which function."""
    for stack in (stack for stack in stacks if serves(stack)):
        for _, node in _entries(stack, known):
            functions = [str(each).partition(":")[0] for each in node.wait.get("functions") or ()]
            handlers = {*functions, *(node.wait.get("leading") or ())} if node.wait.get("lost") else set()
            words = {_HANDLES.sub("", name).strip("_") for name in handlers}
            words |= {str(route).rpartition("/")[2] for route in node.wait.get("routes") or ()}
            others = [(other, each) for other in stacks if other is not stack for each in other.get("asks_for") or []]
            asking = [(other, each) for other, each in others if each["name"] in words]
            if asking and not node.wait.get("starters"):
                own = [place_text(each) for other, each in asking if other is asking[0][0]]
                told = f"{asking[0][0]['who']} asks for it in {' and '.join(own[:3])}, and does not do so now"
                lost = f"{node.wait['lost']}; {told}"
                node.wait = {**node.wait, "lost": lost, "asked_by": [process_id(other) for other, _ in asking]}


def _without_idle_children(stack: WaitFacts, known: Mapping[Id, Node], stacks: Sequence[WaitFacts]) -> None:
    """A child process that waits for what this process gives it to do, while nobody here is about to, has nothing to
    complete: it is idle, and not why a future is not completed."""
    base = process_id(stack)
    for entry, node in _entries(stack, known):
        children = [known[edge.target] for edge in node.edges if edge.relation == IS_A_CHILD]
        idle = [child for child in children if child.kind in _INBOXES and _only_from(base, child, known)]
        if idle and len(idle) == len(node.edges):
            why = why_lost(entry, node.wait, stack, known, stacks)
            told = [f"{child.label} is idle: it waits for {thing(child.wait)}" for child in idle[:2]]
            node.edges, node.wait = [], {**node.wait, "lost": "; ".join(filter(None, [why, *told]))}


def _only_from(base: Id, child: Node, known: Mapping[Id, Node]) -> bool:
    """Whether what a process waits for would come from threads of another that do not wait to send it."""
    senders = [known[edge.target] for edge in child.edges if edge.target in known]
    return bool(senders) and all(each.id[:2] == base and not each.waits for each in senders)


def _edges(
    entry: WaitFacts, stack: WaitFacts, node: Node, known: Mapping[Id, Node], stacks: Sequence[WaitFacts]
) -> list[Edge]:
    """Who should end a wait. A task cannot go on while its event loop is blocked, whatever it awaits: the loop is meant
    where it wants a lock that the task holds, or where nobody else is seen."""
    threads = loops_of(entry, stack) if "task" in entry else []
    threads = [each for each in threads if known[entry_id(each, stack)].waits]
    loops = [Edge(entry_id(each, stack), "runs its event loop") for each in threads]
    wanted = {choice["key"] for each in threads for choice in each["wait"].get("choices") or []}
    if wanted & {each["key"] for each in entry.get("holds") or []}:
        return loops
    found = edges_of(entry["wait"], stack, node, known, stacks)
    return found if found or node.wait.get("lost") else loops


def rest_where_meant(nodes: Sequence[Node], stacks: Sequence[WaitFacts]) -> Sequence[Node]:
    """Nodes whose wait is meant to last do not wait; told when all others are joined, which may wait for them."""
    known = {node.id: node for node in nodes}
    joined = {edge.target for node in nodes for edge in node.edges if edge.relation in JOINS}
    _rest_unused_connections(stacks, known)
    awaited = {edge.target for node in nodes for edge in node.edges if edge.relation not in JOINS}
    for stack in stacks:
        for _, node in _entries(stack, known):
            alone = node.id not in awaited | joined
            behind = _idle_behind(node, nodes)
            # Who waits for the end of what serves, supervises it.
            serving = _waits_for_requests(node, stack) if behind is not None else ""
            serving = serving or (_asked_later(node, known) if node.id not in awaited else "")
            if activity := serving or _meant_to_last(node, stack, alone=alone):
                for each in behind or ():
                    each.wait, each.activity = {"kind": "serving"}, f"waits for work (for {thing(each.wait)})"
                node.wait, node.activity = {"kind": "serving"}, activity
                _rest_supervisors(node, nodes, awaited)
    return nodes


def _idle_behind(node: Node, nodes: Sequence[Node]) -> list[Node] | None:
    """The workers, one behind the other, that have nothing to do until this node has: they take one item after the
    other out of a queue. None where others wait for one of them, for what it was asked to do."""
    found: list[Node] = []
    asked = [node]
    while asked:
        one = asked.pop()
        for each in (each for each in nodes if each not in (node, *found) and _asks(each, one)):
            if each.kind != "queue_get" or not each.wait.get("endless"):
                return None
            found.append(each)
            asked.append(each)
    return found


def _asks(node: Node, other: Node) -> bool:
    """Whether it waits for what the other one does, not for its end; helpers of libraries do not count."""
    targets = [edge.target for edge in node.edges if edge.relation not in JOINS]
    return not node.background and other.id in targets


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


def _meant_to_last(node: Node, stack: WaitFacts, *, alone: bool) -> str:
    """What a node does whose wait is no hang although nobody is seen who would end it."""
    if not node.wait.get("lost"):
        return ""
    if node.wait.get("by_signal"):
        return f"stays until a signal ends it (waits for {thing(node.wait)})"
    nobody_elses = node.wait.get("nobody_elses") or (node.wait.get("kept_to_itself") and serves(stack))
    if nobody_elses and alone:
        return f"stays until it is ended (nobody else has what it waits for: {thing(node.wait)})"
    return ""


def _waits_for_requests(node: Node, stack: WaitFacts) -> str:
    """In a process that serves, functions that no line starts are called for requests."""
    called = node.wait.get("functions") and not node.wait.get("starters") and not what_ended(stack)
    idle = node.kind in _TAKES and node.wait.get("lost") and called and serves(stack)
    return f"waits for requests (for {thing(node.wait)})" if idle else ""


def _rest_unused_connections(stacks: Sequence[WaitFacts], known: Mapping[Id, Node]) -> None:
    """A server that reads the next request, and at the other end a loop that reads answers and sends nothing itself: no
    request is under way."""
    reading = {node.id: node for stack in stacks for entry, node in _entries(stack, known) if _only_reads(entry)}
    for node in (node for node in known.values() if node.waits and node.wait.get("requests")):
        others = [reading.get(edge.target) for edge in node.edges]
        for other in others if others and all(others) else ():
            if other is not None and {edge.target for edge in other.edges} == {node.id}:
                node.activity = f"waits for requests (for {thing(node.wait)})"
                other.activity = f"waits for answers (for {thing(other.wait)})"
                node.wait = other.wait = {"kind": "serving"}


def _only_reads(entry: WaitFacts) -> bool:
    return bool(entry["wait"].get("reads_on")) and not _WRITING & {*(entry.get("may_call") or ())}


def _asked_later(node: Node, known: Mapping[Id, Node]) -> str:
    """A server reads the next request of a connection, while who is at its other end does something else."""
    others = [known[edge.target] for edge in node.edges if edge.target in known]
    idle = node.wait.get("requests") and others and not any(each.waits or each.gone for each in others)
    return f"waits for requests (for {thing(node.wait)})" if idle else ""


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
