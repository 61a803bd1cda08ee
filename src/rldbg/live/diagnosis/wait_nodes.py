"""From snapshots of processes to the nodes and edges of the wait graph."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rldbg.live.diagnosis.counterparts import lock_edges, own_server, servers_of
from rldbg.live.diagnosis.entries import (
    all_entries,
    blocked_loops,
    busy_loops,
    children_of,
    entry_id,
    front_of,
    process_id,
    thread_id,
    thread_key,
)
from rldbg.live.diagnosis.lost_waits import DUTIES, ended_children, what_ended, why_lost, workers_keep_ending
from rldbg.live.diagnosis.process_nodes import process_nodes, stranger_node, strangers_of
from rldbg.live.diagnosis.wait_graph import Edge, Id, Node, WaitFacts, sleeps_again
from rldbg.live.diagnosis.wait_words import thing

# Who waits for the next item has nothing left to mark as done.
_TAKING = {"queue_join": "queue_get"}
_OWNED = {"thread": "is that thread", "import": "imports it", "gil": "holds it"}
_RELATIONS = {
    "file_lock": "holds it",
    "lock_file": "is named in it",
    "child": "is that process",
    "message": "is connected to it",
} | dict.fromkeys(("pipe", "socket", "stream", "poll", "stdin"), "is at the other end")


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
    known = {node.id: node for node in found}
    for (host, pid), facts in strangers.items():
        node = known[host, pid, "process"]
        if node.waits:
            node.edges += _edges(node.wait, {**facts, "host": host}, node, known, stacks)
    _lose_turns(stacks, known)
    for stack in stacks:
        for entry, node in _entries(stack, known):
            node.edges += _edges(entry["wait"], stack, node, known, stacks)
            if not node.edges and not node.wait.get("lost"):
                node.wait = {**node.wait, "lost": why_lost(entry, node.wait, stack, known, stacks)}
                # Other threads of the process run: a helper that waits for its next task is idle, not stuck.
                helps = node.kind in DUTIES and not entry.get("main")
                node.background |= helps and (_goes_on(stack) or (bool(node.wait.get("timeout")) and _paced(stack)))
    _count_arrived(found)
    return found


def rest_where_meant(nodes: Sequence[Node], stacks: Sequence[WaitFacts]) -> Sequence[Node]:
    """Nodes whose wait is meant to last do not wait; told when all others are joined, which may wait for them."""
    known, awaited = {node.id: node for node in nodes}, {edge.target for node in nodes for edge in node.edges}
    for stack in stacks:
        for entry, node in _entries(stack, known):
            if activity := _meant_to_last(node, entry, stack, awaited=node.id in awaited):
                node.wait, node.activity = {"kind": "serving"}, activity
    return nodes


def _paced(stack: WaitFacts) -> bool:
    """Whether the main thread sleeps between rounds, without looking for anything that others should do."""
    mains = [thread["wait"] for thread in stack.get("threads") or [] if thread["main"] and "wait" in thread]
    return any(wait["kind"] == "sleep" and not wait.get("polls") and sleeps_again(wait) for wait in mains)


def _meant_to_last(node: Node, entry: WaitFacts, stack: WaitFacts, *, awaited: bool) -> str:
    """What a node does whose wait is no hang although nobody is seen who would end it."""
    if not node.wait.get("lost"):
        return ""
    if node.wait.get("by_signal"):
        return f"stays until a signal ends it (waits for {thing(node.wait)})"
    if node.wait.get("nobody_elses") and not awaited:
        return f"stays until it is ended (waits for {thing(node.wait)} that nobody else can have)"
    # Functions that no line starts are called by the server, for requests.
    called = node.wait.get("functions") and not node.wait.get("starters") and not what_ended(stack)
    if node.kind == "queue_get" and called and not awaited and _serves(stack):
        return f"waits for requests (for {thing(node.wait)})"
    return ""


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


def _edges(
    wait: WaitFacts, stack: WaitFacts, node: Node, known: Mapping[Id, Node], stacks: Sequence[WaitFacts]
) -> list[Edge]:
    base, kind = process_id(stack), wait["kind"]
    if node.kind == "queue_turn":
        return []
    if node.kind == "turn":
        return [Edge(each, "runs it") for each in blocked_loops(stack)]
    if wait.get("completed"):
        # A thread that blocks its event loop keeps it from continuing.
        return [Edge(each, "runs its event loop") for each in busy_loops(stack)]
    holders = lock_edges(wait, stack, node, stacks)
    if holders or kind == "lock":
        return holders
    if kind in DUTIES:
        found = [edge for user in wait.get("users") or [] if (edge := _user_edge(user, stack, wait)) is not None]
        found += _sharing(wait, stack, stacks)
        others = [pid for pid in wait.get("ends") or [] if pid != stack.get("pid")] if not found else []
        if others and (lost := _ended_users(others, base[0], stacks)):
            node.wait = {**node.wait, "lost": lost}
            return []
        found += [Edge((base[0], pid, front_of(pid, base[0], known)), DUTIES[kind][0]) for pid in others]
        if not found and wait.get("between") == "processes" and wait.get("ends") is None and kind != "semaphore":
            others = [edge.target for edge in _pool_edges(stack, known, threads=False)]
            above = [process_id(each) for each in stacks if stack.get("pid") in children_of(each)]
            others += [(*each, front_of(each[1], each[0], known)) for each in above]
            return [Edge(other, f"may {DUTIES[kind][1]}") for other in others if other in known]
        ends = kind == "future" and not workers_keep_ending(wait, stack)
        return found or (_completers(stack, node, known) if ends else [])
    if kind in _OWNED:
        ident = wait.get("ident") or wait.get("owner")
        return [Edge(thread_id(stack, ident), _OWNED[kind])] if ident else []
    if kind == "exit":
        others = [each for each in stack["threads"] if not each["main"] and not each.get("daemon", True)]
        return [Edge((*base, each["ident"]), "has not ended") for each in others]
    if kind == "task":
        awaited = [(*base, "task", key) for key in wait.get("keys") or []]
        found = [Edge(identity, "is awaited") for identity in awaited if identity in known]
        # A running task is on the stack of the thread that runs its loop.
        return found or [Edge(each, "runs it") for each in busy_loops(stack)]
    if kind == "some_tasks":
        tasks = [(*base, "task", task["key"]) for task in stack.get("tasks") or [] if not task["background"]]
        return [Edge(identity, "may be one of them") for identity in tasks if identity != node.id]
    if kind == "connection_pool":
        asking = [each for each in known.values() if each.id[:2] == base and each.kind in ("socket", "stream")]
        # A server's own streams are not connections of the client.
        served = "asyncio.StreamReader"
        return [Edge(e.id, "has one of them") for e in asking if not e.background and e.wait.get("type") != served]
    if kind == "store":
        entries = ((each, entry) for each in stacks for entry in all_entries(each))
        setters = [
            (each, entry) for each, entry in entries if set(entry.get("sets") or ()) & set(wait.get("keys") or ())
        ]
        found = [Edge(i, "should set it") for each, entry in setters if (i := entry_id(entry, each)) != node.id]
        left = [each for each in known.values() if each.gone and each.rank is not None and each.id != node.id]
        return found or [Edge(each.id, "has not set it") for each in left]
    if kind == "child":
        pids = [wait["pid"]] if wait.get("pid") else [child["pid"] for child in stack.get("children") or []]
    elif kind == "data_loader":
        pids = [worker["pid"] for worker in wait.get("workers") or [] if worker["pid"] and not worker["ended"]]
        pids = [] if any(worker["ended"] for worker in wait.get("workers") or []) else pids
        # Batches come in order: the worker that has the next one is meant.
        pids = [pid for pid in pids if pid == wait.get("next")] or pids
    else:
        pids = [*(wait.get("holders") or []), *(wait.get("ends") or [])]
    relation = _RELATIONS.get(str(kind), "should do it")
    if not wait.get("accepted", True):
        relation = "listens there and has not accepted the connection"
    if kind == "pipe" and wait.get("call") != "write" and (unused := _unused_ends(wait, pids, base[0], known)):
        ended = ended_children(stack)
        why = f" ({', '.join(ended)})" if ended else ""
        return [Edge(each, f"has the other end open and runs nothing that uses it{why}") for each in unused]
    ids = [each for pid in pids if pid != stack.get("pid") for each in servers_of(pid, base[0], known, wait)]
    waiting = (each for each in known.values() if each.kind == "child" and "task" in each.id)
    joins = [each.id for each in waiting if each.wait.get("pid") == stack.get("pid")]
    # Of a program that runs an event loop, the task that waits for this process is meant, not its idle thread.
    idle = [i for i in ids if i in known and known[i].kind == "event_loop" and any(each[:2] == i[:2] for each in joins)]
    ids = [i for i in ids if i not in idle] + [each for each in joins if any(each[:2] == i[:2] for i in idle)]
    found = [Edge(identity, relation) for identity in ids if identity in known]
    if not found and kind in ("socket", "stream", "pipe") and stack.get("pid") in (wait.get("ends") or ()):
        return own_server(wait, stack, node, known)
    if not found and kind == "socket" and not (wait.get("file") or {}).get("peer"):
        return [Edge(edge.target, "may be at the other end") for edge in _pool_edges(stack, known, threads=False)]
    return found


def _unused_ends(wait: WaitFacts, pids: Sequence[int], host: Any, known: Mapping[Id, Node]) -> list[Id]:
    """The main threads of processes that have inherited the other end of a pipe, if none of them uses it."""
    own = {pid: {number for owner, number in wait.get("sockets") or () if owner == pid} for pid in pids}
    users = [node for node in known.values() if node.id[0] == host and node.connections & own.get(node.id[1], set())]
    # Standard files are used by any print; a named pipe is opened by who uses it.
    standard = any(numbers & {0, 1, 2} for numbers in own.values())
    standard |= str((wait.get("file") or {}).get("path") or "").startswith("/")
    mains = [(host, pid, "main") for pid in pids if (host, pid, "main") in known]
    known_ends = bool(pids) and len(mains) == len(pids) and all(own.values())
    return mains if known_ends and not users and not standard else []


def _ended_users(pids: Sequence[int], host: Any, stacks: Sequence[WaitFacts]) -> str:
    """Why processes that have the other end of a queue do nothing with it: a thread of theirs has ended."""
    there = [each for each in stacks if each.get("host") == host and each.get("pid") in pids]
    gone = [(each["who"], what_ended(each)) for each in there]
    told = [f"{who} has its other end, and what it runs now does not use it: {what}" for who, what in gone if what]
    return "; ".join(told) if len(told) == len(pids) else ""


def _sharing(wait: WaitFacts, stack: WaitFacts, stacks: Sequence[WaitFacts]) -> list[Edge]:
    """Nodes of other processes on this host whose current function would end the wait for a shared object."""
    shared, by_ray = wait.get("shared"), wait.get("between") == "ray"
    hosts = [each for each in stacks if by_ray or each.get("host") == stack.get("host")] if shared else []
    entries = [(entry, each) for each in hosts if each is not stack for entry in all_entries(each)]
    # Who waits for the same comes to its own part of it only afterwards.
    same = (wait["kind"], shared)
    others = [
        (entry_id(entry, each), set(entry["shares"][shared]))
        for entry, each in entries
        if shared in entry.get("shares", {}) and (entry["wait"].get("kind"), entry["wait"].get("shared")) != same
    ]
    acting = [Edge(identity, DUTIES[wait["kind"]][0]) for identity, acts in others if acts & {*wait["ended_by"]}]
    # Whose object keeps a queue of Ray may use it in a method that is called later.
    return acting or [Edge(identity, f"may {DUTIES[wait['kind']][1]}") for identity, acts in others if not acts]


def _completers(stack: WaitFacts, node: Node, known: Mapping[Id, Node]) -> list[Edge]:
    """Pools; and for a thread, the tasks of event loops in others, of which it may have started one."""
    pooled = _pool_edges(stack, known, children=False)
    if any(not known[edge.target].waits for edge in pooled):
        # The others go on: it does not wait for itself.
        pooled = [edge for edge in pooled if edge.target != node.id]
    tasks = [(*process_id(stack), "task", task["key"]) for task in stack.get("tasks") or [] if not task["background"]]
    awaited = {edge.target for task in tasks for edge in known[task].edges}
    roots = [Edge(task, "may be what completes it") for task in tasks if task not in awaited and "task" not in node.id]
    loops = [Edge(each, "runs the event loop that should complete it") for each in busy_loops(stack) if each != node.id]
    return pooled or roots or loops or _pool_edges(stack, known, threads=False)


def _pool_edges(
    stack: WaitFacts, known: Mapping[Id, Node], *, threads: bool = True, children: bool = True
) -> list[Edge]:
    """Who could complete a future without a known owner: threads of pools, or child processes."""
    base = process_id(stack)
    in_pools = [t for t in stack.get("threads") or [] if t.get("pooled")]
    # One that is idle now and was not a moment ago works for it as well.
    pooled = [t for t in in_pools if not t.get("background")] or [t for t in in_pools if t.get("moved")]
    if pooled and threads:
        return [Edge((*base, thread_key(thread)), "belongs to the pool that should complete it") for thread in pooled]
    below = stack.get("children") or [] if children else []
    fronts = [(base[0], child["pid"], front_of(child["pid"], base[0], known)) for child in below]
    busy = [child for child in fronts if child in known and not known[child].background]
    return [Edge(child, "is a child process that should complete it") for child in busy]


def _user_edge(user: WaitFacts, stack: WaitFacts, wait: WaitFacts) -> Edge | None:
    if not user["acts"] and not user.get("may"):
        return None
    for entry in all_entries(stack):
        # Who waits for the same comes to its own part of it only afterwards.
        same = entry["wait"].get("key") == wait.get("key") and entry["wait"].get("kind") in (
            wait["kind"],
            _TAKING.get(wait["kind"]),
        )
        if user["who"] in (entry.get("thread"), entry.get("key")) and not same:
            should, verb = DUTIES[wait["kind"]]
            return Edge(entry_id(entry, stack), should if user["acts"] else f"may {verb}")
    return None
