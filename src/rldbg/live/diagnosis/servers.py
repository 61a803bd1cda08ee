"""Who should answer at the other end of a connection."""

from collections.abc import Mapping
from typing import Any

from rldbg.live.diagnosis.entries import busy_loops, front_of, process_id
from rldbg.live.diagnosis.wait_graph import Edge, Id, Node, WaitFacts


def own_server(wait: WaitFacts, stack: WaitFacts, node: Node, known: Mapping[Id, Node]) -> list[Edge]:
    """Who answers a connection of a process to itself: who has its other end, or runs the event loop."""
    base, ends = process_id(stack), {descriptor for _, descriptor in wait.get("sockets") or ()}
    own = [each for each in known.values() if each.id[:2] == base and each is not node]
    serving = [each for each in own if each.connections & ends or each.wait.get("descriptor") in ends]
    answering = [Edge(each.id, "is at the other end") for each in serving]
    return answering or [
        Edge(each, "runs the event loop that should answer") for each in busy_loops(stack) if each != node.id
    ]


def servers_of(pid: int, host: Any, known: Mapping[Id, Node], wait: WaitFacts) -> list[Id]:
    """The thread or task of a process that has the other end of a connection at hand; where none is seen with it and
    the main thread only accepts connections or runs an event loop, any that serves one; else its main thread."""
    main, front = known.get((host, pid, "main")), (host, pid, front_of(pid, host, known))
    if wait["kind"] not in ("socket", "stream") or main is None:
        return [front]
    ends = {descriptor for owner, descriptor in wait.get("sockets") or () if owner == pid}
    others = [node for node in known.values() if node.id[:2] == (host, pid) and node is not main]
    serving = [node for node in (*others, main) if node.connections & ends][:1]
    if wait.get("rpc") is not None and not serving:
        serving = [node for node in others if node.serves and not node.background]
    if not serving and main.kind == "socket" and not (main.wait.get("file") or {}).get("peer"):
        serving = [node for node in others if not node.background and "task" not in node.id][:1]
    if not serving and main.kind in ("event_loop", "poll"):
        serving = [node for node in others if node.serves and not node.background and node.waits]
    return [node.id for node in serving] or [front]
