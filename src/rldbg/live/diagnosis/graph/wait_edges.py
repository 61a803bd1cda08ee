"""Who should end a wait: the edges of the wait graph, by the kind of what is waited for."""

from collections.abc import Callable, Mapping, Sequence

from rldbg.live.diagnosis.graph.asked import Asked
from rldbg.live.diagnosis.graph.counterparts import later_setters, lock_edges
from rldbg.live.diagnosis.graph.duty_edges import duty_edges
from rldbg.live.diagnosis.graph.entries import all_entries, blocked_loops, busy_loops, entry_id, thread_id
from rldbg.live.diagnosis.graph.left_out import READ, with_left_out, with_unflushed
from rldbg.live.diagnosis.graph.lost_waits import DUTIES
from rldbg.live.diagnosis.graph.process_edges import edges_to, process_edges
from rldbg.live.diagnosis.graph.wait_graph import Edge, Id, Node, WaitFacts

_OWNED = {"thread": "is that thread", "undrained": "hands it on", "import": "imports it", "gil": "holds it"}


def edges_of(
    wait: WaitFacts, stack: WaitFacts, node: Node, known: Mapping[Id, Node], stacks: Sequence[WaitFacts]
) -> list[Edge]:
    if node.kind == "queue_turn":
        return []
    if node.kind == "turn":
        return [Edge(each, "runs it") for each in blocked_loops(stack)]
    if wait.get("completed"):
        # A thread that blocks its event loop keeps it from continuing.
        return [Edge(each, "runs its event loop") for each in busy_loops(stack)]
    holders = lock_edges(wait, stack, node, stacks)
    if holders or wait["kind"] == "lock":
        return holders
    asked = Asked(wait, stack, node, known, stacks)
    found = _BY_KIND.get(asked.kind, process_edges)(asked)
    return [with_unflushed(with_left_out(edge, asked), asked) for edge in found] if asked.kind in READ else found


def _owner_edges(asked: Asked) -> list[Edge]:
    ident = asked.wait.get("ident") or asked.wait.get("owner")
    return [Edge(thread_id(asked.stack, ident), _OWNED[asked.kind])] if ident else []


def _exit_edges(asked: Asked) -> list[Edge]:
    others = [each for each in asked.stack["threads"] if not each["main"] and not each.get("daemon", True)]
    # A library's own thread only waits for the others.
    others = [each for each in others if not each["background"]] or others
    return [Edge((*asked.base, each["ident"]), "has not ended") for each in others]


def _task_edges(asked: Asked) -> list[Edge]:
    awaited = [(*asked.base, "task", key) for key in asked.wait.get("keys") or []]
    found = [Edge(identity, "is awaited") for identity in awaited if identity in asked.known]
    # A running task is on the stack of the thread that runs its loop.
    return found or [Edge(each, "runs it") for each in busy_loops(asked.stack)]


def _any_task_edges(asked: Asked) -> list[Edge]:
    tasks = [task for task in asked.stack.get("tasks") or [] if not task["background"]]
    others = [(*asked.base, "task", task["key"]) for task in tasks]
    return [Edge(identity, "may be one of them") for identity in others if identity != asked.node.id]


def _connection_edges(asked: Asked) -> list[Edge]:
    """Who uses the connections of a pool that has none left."""
    own = [each for each in asked.known.values() if each.id[:2] == asked.base and each.kind in ("socket", "stream")]
    # A server's own streams are not connections of the client.
    asking = [each for each in own if not each.background and each.wait.get("type") != "asyncio.StreamReader"]
    return [Edge(each.id, "has one of them") for each in asking]


def _connection_of_store(asked: Asked) -> list[Edge]:
    """Who waits for an answer of a store in the same process, and has its connection meanwhile."""
    own = [each for each in asked.known.values() if each.id[:2] == asked.base and each.id != asked.node.id]
    reading = [each for each in own if each.kind == "store" and not each.wait.get("in_turn")]
    named = [each for each in reading if each.wait.get("name") == asked.wait.get("name")]
    return [
        Edge(each.id, "has the connection of that store, which serves one call at a time") for each in named or reading
    ]


def _store_edges(asked: Asked) -> list[Edge]:
    if asked.wait.get("in_turn") and (before := _connection_of_store(asked)):
        return before
    wanted, node = set(asked.wait.get("keys") or ()), asked.node
    entries = [(each, entry) for each in asked.stacks for entry in all_entries(each)]
    if later := [edge for edge in later_setters(wanted, asked.stacks) if edge.target != node.id]:
        return later
    setters = [entry_id(entry, each) for each, entry in entries if set(entry.get("sets") or ()) & wanted]
    found = [Edge(identity, "should set it") for identity in setters if identity != node.id]
    left = [each for each in asked.known.values() if each.gone and each.rank is not None and each.id != node.id]
    return found or [Edge(each.id, "has not set it") for each in left]


def _child_edges(asked: Asked) -> list[Edge]:
    children = [child["pid"] for child in asked.stack.get("children") or []]
    return edges_to([asked.wait["pid"]] if asked.wait.get("pid") else children, asked)


def _loader_edges(asked: Asked) -> list[Edge]:
    workers = asked.wait.get("workers") or []
    if any(worker["ended"] for worker in workers):
        return []
    pids = [worker["pid"] for worker in workers if worker["pid"]]
    # Batches come in order: the worker that has the next one is meant.
    return edges_to([pid for pid in pids if pid == asked.wait.get("next")] or pids, asked)


_BY_KIND: Mapping[str, Callable[[Asked], list[Edge]]] = (
    dict.fromkeys(DUTIES, duty_edges)
    | dict.fromkeys(_OWNED, _owner_edges)
    | {
        "exit": _exit_edges,
        "task": _task_edges,
        "some_tasks": _any_task_edges,
        "connection_pool": _connection_edges,
        "store": _store_edges,
        "store_turn": _connection_of_store,
        "child": _child_edges,
        "data_loader": _loader_edges,
    }
)
