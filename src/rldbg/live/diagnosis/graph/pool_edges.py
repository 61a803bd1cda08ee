"""Who could complete what was given to a pool, a child process or an event loop."""

from collections.abc import Mapping

from rldbg.live.diagnosis.graph.entries import blocked_loops, busy_loops, front_of, process_id, thread_key
from rldbg.live.diagnosis.graph.wait_graph import Edge, Id, Node, WaitFacts

IS_A_CHILD = "is a child process that should complete it"


def completers(stack: WaitFacts, node: Node, known: Mapping[Id, Node]) -> list[Edge]:
    """Pools; and for a thread, the tasks of event loops in others, of which it may have started one."""
    pooled = pool_edges(stack, known, children=False)
    if any(not known[edge.target].waits for edge in pooled):
        # The others go on: it does not wait for itself.
        pooled = [edge for edge in pooled if edge.target != node.id]
    tasks = [(*process_id(stack), "task", task["key"]) for task in stack.get("tasks") or [] if not task["background"]]
    awaited = {edge.target for task in tasks for edge in known[task].edges}
    roots = [Edge(task, "may be what completes it") for task in tasks if task not in awaited and "task" not in node.id]
    loops = [Edge(each, "runs the event loop that should complete it") for each in busy_loops(stack) if each != node.id]
    # While its thread is blocked, no task of a loop goes on.
    blocked = [edge for edge in loops if edge.target in blocked_loops(stack)]
    return pooled or blocked or roots or loops or pool_edges(stack, known, threads=False)


def pool_edges(
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
    return [Edge(child, IS_A_CHILD) for child in busy]
