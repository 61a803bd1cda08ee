"""The other side of a wait: the holder of a lock, or who should answer at the other end of a connection."""

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

from rldbg.live.diagnosis.graph.entries import (
    all_entries,
    busy_loops,
    children_of,
    entry_id,
    front_of,
    process_id,
    thread_id,
)
from rldbg.live.diagnosis.graph.failed_work import is_key
from rldbg.live.diagnosis.graph.wait_graph import Edge, Id, Node, WaitFacts
from rldbg.live.diagnosis.graph.wait_words import place_text
from rldbg.live.diagnosis.graph.who_ended import what_ended


def lock_edges(wait: WaitFacts, stack: WaitFacts, node: Node, stacks: Sequence[WaitFacts]) -> list[Edge]:
    for choice in wait.get("choices") or []:
        everywhere = stacks if choice["key"].startswith("shared:") else [stack]
        owner, threads = choice.get("owner"), stack.get("threads") or []
        found = [Edge(thread_id(stack, owner), "holds it")] if any(owner == each["ident"] for each in threads) else []
        for holder, entry in ((each, entry) for each in everywhere for entry in all_entries(each)):
            for held in entry.get("holds") or []:
                if choice["key"] and held["key"] == choice["key"]:
                    identity = entry_id(entry, holder)
                    where = place_text(held)
                    name = f"as `{held['name']}`, " if held["name"] != choice["name"] else ""
                    taken = f"holds it ({name}taken in {where})"
                    edge = Edge(identity, taken, passes=not held.get("loops", True))
                    found = [edge] if choice.get("owner") else [*found, edge]
        if found:
            node.wait = {**node.wait, "name": choice["name"], "key": choice["key"]}
            return found
        if choice["key"].startswith("shared:") and wait["kind"] == "lock":
            ended = ", ".join(dict.fromkeys(filter(None, map(what_ended, stacks))))
            held = "no process is seen holding it: it was acquired and never released"
            node.wait = {**node.wait, "name": choice["name"], "lost": f"{held}; {ended}" if ended else held}
        elif lost := _holder_at_fork(choice, stack, stacks):
            node.wait = {**node.wait, "name": choice["name"], "lost": lost}
        elif owner and stack.get("source") == "memory":
            # From outside all threads are seen.
            gone = "the thread that holds it is not in this process: it has ended, or held it in the parent when this "
            node.wait = {**node.wait, "name": choice["name"], "lost": f"{gone}process was forked"}
    return []


def _holder_at_fork(choice: WaitFacts, stack: WaitFacts, stacks: Sequence[WaitFacts]) -> str:
    """A lock that a thread of the parent held while this process was forked: it has the same address there."""
    for parent in stacks:
        if stack.get("pid") not in children_of(parent):
            continue
        for entry in all_entries(parent):
            if any(choice["key"] and held["key"] == choice["key"] for held in entry.get("holds") or []):
                who = "the main thread" if entry.get("main") else f"thread {entry.get('thread') or entry.get('task')}"
                return f"{who} of {parent['who']} held it when this process was forked: its copy is never released here"
    return ""


def own_server(wait: WaitFacts, stack: WaitFacts, node: Node, known: Mapping[Id, Node]) -> list[Edge]:
    """Who answers a connection of a process to itself: who has its other end, or runs the event loop."""
    base, ends = process_id(stack), {descriptor for _, descriptor in wait.get("sockets") or ()}
    own = [each for each in known.values() if each.id[:2] == base and each is not node]
    accepted = wait.get("accepted", True)
    if wait.get("type") == "Connection":
        # A process keeps the end that it gave to another one; who has it in a variable need not use it.
        return [Edge(each.id, "should write into it") for each in own if each.writes & ends]
    serving = [each for each in own if accepted and (each.connections & ends or each.wait.get("descriptor") in ends)]
    serving = [each for each in serving if not _reads_another(each, ends)]
    # A library that serves has it too, for the user's handler.
    handling = _reading(serving, ends) or [each for each in serving if not each.background] or serving
    answering = [Edge(each.id, "is at the other end") for each in handling]
    loops = [Edge(each, "runs the event loop that should answer") for each in busy_loops(stack) if each != node.id]
    # Servers on loops in C keep their connections there: any task that a library started may handle the request.
    requests = [each for each in own if accepted and each.serves and "task" in each.id and not each.background]
    return answering or loops or [Edge(each.id, "may handle the request") for each in requests if each.waits]


def _reading(nodes: Iterable[Node], ends: Set[int]) -> list[Node]:
    """Of those that have a connection, those that wait for data from it: the others may never use it."""
    return [node for node in nodes if (node.wait.get("file") or {}).get("descriptor") in ends]


def _reads_another(node: Node, ends: Set[int]) -> bool:
    """Whether it waits in its own line for data from another connection, and will not write into this one: it only has
    it too, as a method of the object that keeps both."""
    other = node.kind == "socket" and (node.wait.get("file") or {}).get("descriptor") not in ends
    return other and node.in_own_line and not node.may_send and not node.writes & ends


def servers_of(pid: int, host: Any, known: Mapping[Id, Node], wait: WaitFacts) -> list[Id]:
    """The thread or task of a process whose frames hold the other end of a connection; if none does and the main thread
    only accepts connections or runs an event loop, any that serves a connection; else its main thread."""
    main, front = known.get((host, pid, "main")), (host, pid, front_of(pid, host, known))
    if wait["kind"] not in ("socket", "stream") or main is None:
        return [front]
    ends = {descriptor for owner, descriptor in wait.get("sockets") or () if owner == pid}
    others = [node for node in known.values() if node.id[:2] == (host, pid) and node is not main]
    using = [node for node in (*others, main) if node.connections & ends and not _reads_another(node, ends)]
    serving = (_reading(using, ends) or [node for node in using if node.writes & ends] or using)[:1]
    if wait.get("rpc") is not None and not serving:
        serving = [node for node in others if node.serves and not node.background]
    if not serving and main.kind == "socket" and not (main.wait.get("file") or {}).get("peer"):
        serving = [node for node in others if not node.background and "task" not in node.id][:1]
    if not serving and main.kind in ("event_loop", "poll"):
        serving = [node for node in others if node.serves and not node.background and node.waits]
    return [node.id for node in serving] or [front]


def _part_of_setter(entry: WaitFacts, place: WaitFacts) -> str:
    own = entry.get("place") or {}
    at_it = all(own.get(each) == place[each] for each in ("file", "line"))
    return "is at the call that would set it" if at_it else f"sets it only later ({place_text(place)})"


def later_setters(wanted: Set[str], stacks: Sequence[WaitFacts]) -> list[Edge]:
    """Threads and tasks that come to a line which sets one of the keys, with that line."""
    found = {
        entry_id(entry, stack): _part_of_setter(entry, place)
        for stack in stacks
        for entry in all_entries(stack)
        for key, place in (entry.get("sets_later") or {}).items()
        if any(is_key(own, key) for own in wanted)
    }
    return [Edge(identity, part) for identity, part in found.items()]
