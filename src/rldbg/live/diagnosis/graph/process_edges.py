"""Which process, and who in it, has the other end of a pipe or connection, or holds a file."""

from collections.abc import Sequence

from rldbg.live.diagnosis.graph.asked import Asked
from rldbg.live.diagnosis.graph.counterparts import own_server, servers_of
from rldbg.live.diagnosis.graph.left_out import READ
from rldbg.live.diagnosis.graph.pool_edges import pool_edges
from rldbg.live.diagnosis.graph.wait_graph import Edge, Id, Node
from rldbg.live.diagnosis.graph.who_ended import ended_children


def process_edges(asked: Asked) -> list[Edge]:
    """Who has the other end of a pipe or connection, or holds a file."""
    wait, stack = asked.wait, asked.stack
    if program := _ended_program(asked):
        return program
    pids = [*(wait.get("holders") or []), *(wait.get("ends") or [])]
    piped = asked.kind == "pipe" or wait.get("type") == "Connection"
    if piped and wait.get("call") != "write":
        if writers := _writers(asked, pids):
            return [Edge(each.id, asked.relation()) for each in writers]
        if unused := _unused_ends(asked, pids):
            if failed := ended_children(stack, failed=True):
                # Who is forked has all pipes of its parent.
                lost = f"no process that has the other end open runs anything that writes into it: {', '.join(failed)}"
                asked.node.wait = {**wait, "lost": lost}
                return []
            ended = ended_children(stack)
            why = f" ({', '.join(ended)})" if ended else ""
            return [Edge(each, f"has the other end open and runs nothing that writes into it{why}") for each in unused]
    found = edges_to(pids, asked)
    if not found and asked.kind in ("socket", "stream", "pipe") and stack.get("pid") in (wait.get("ends") or ()):
        return own_server(wait, stack, asked.node, asked.known)
    if not found and asked.kind == "socket" and not (wait.get("file") or {}).get("peer"):
        return [Edge(edge.target, "may be at the other end") for edge in pool_edges(stack, asked.known, threads=False)]
    return found


def edges_to(pids: Sequence[int], asked: Asked) -> list[Edge]:
    """Edges to the threads or tasks of processes that have a part in the wait."""
    wait, stack, known = asked.wait, asked.stack, asked.known
    ids = [each for pid in pids if pid != stack.get("pid") for each in servers_of(pid, asked.base[0], known, wait)]
    waiting = (each for each in known.values() if each.kind == "child" and "task" in each.id)
    joins = [each.id for each in waiting if each.wait.get("pid") == stack.get("pid")]
    # So is the one that reads what this process answers.
    reading = (each for each in known.values() if each.kind in READ and "task" in each.id)
    joins = [each.id for each in reading if stack.get("pid") in (each.wait.get("ends") or ())] or joins
    # Of a program that runs an event loop, the task that waits for this process is meant, not its idle thread.
    idle = [i for i in ids if i in known and known[i].kind == "event_loop" and any(each[:2] == i[:2] for each in joins)]
    ids = [i for i in ids if i not in idle] + [each for each in joins if any(each[:2] == i[:2] for i in idle)]
    return [Edge(identity, asked.relation()) for identity in ids if identity in known]


def _ended_program(asked: Asked) -> list[Edge]:
    """The program that a pipe leads to, if it has ended; who has inherited its end of the pipe only keeps it open."""
    program, host = asked.wait.get("program") or {}, asked.base[0]
    identity = (host, program.get("pid"), "process")
    if not program.get("exit") or identity not in asked.known:
        return []
    return [Edge(identity, str(program["part"]))]


def _other_ends(asked: Asked, pids: Sequence[int]) -> dict[int, set[int]]:
    """The descriptors that other processes have of the other end of a pipe."""
    others = [pid for pid in pids if pid != asked.stack.get("pid")]
    return {pid: {number for owner, number in asked.wait.get("sockets") or () if owner == pid} for pid in others}


def _writers(asked: Asked, pids: Sequence[int]) -> list[Node]:
    """Threads and tasks that will write into a pipe which is read. Those of others that have it need not use it."""
    own = _other_ends(asked, pids)
    every = [node for node in asked.known.values() if node.id[0] == asked.base[0]]
    return [node for node in every if node.writes & own.get(node.id[1], set())]


def _unused_ends(asked: Asked, pids: Sequence[int]) -> list[Id]:
    """The main threads of processes that have the other end of a pipe, if nobody there is about to write into it: who
    has it in a variable only waits, and not to send something that is not known yet."""
    wait, host, known = asked.wait, asked.base[0], asked.known
    own = _other_ends(asked, pids)
    pids = list(own)
    users = [node for node in known.values() if node.id[0] == host and node.connections & own.get(node.id[1], set())]
    users = [node for node in users if not node.waits or node.may_send]
    # Standard files are used by any print; a named pipe is opened by who uses it.
    standard = any(numbers & {0, 1, 2} for numbers in own.values())
    standard |= str((wait.get("file") or {}).get("path") or "").startswith("/")
    mains = [(host, pid, "main") for pid in pids if (host, pid, "main") in known]
    known_ends = bool(pids) and len(mains) == len(pids) and all(own.values())
    return mains if known_ends and not users and not standard else []
