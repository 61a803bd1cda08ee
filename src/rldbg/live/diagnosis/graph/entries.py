"""Threads, tasks and processes in snapshots: which node of the wait graph stands for each."""

from collections.abc import Mapping, Sequence
from typing import Any

from rldbg.live.diagnosis.graph.wait_graph import RESTING, Id, Node, WaitFacts


def process_id(stack: WaitFacts) -> Id:
    return stack.get("host"), stack.get("pid")


def process_name(stack: WaitFacts, stacks: Sequence[WaitFacts]) -> str:
    """What a process is called: ranks of a launcher by their rank, where all are of one program. An actor has a name
    of its own, which Ray's lists show too."""
    roles = {each.get("role") for each in stacks if each.get("rank") is not None}
    by_rank = stack.get("rank") is not None and stack.get("kind") != "actor" and len(roles) == 1
    return f"rank {stack['rank']}" if by_rank else str(stack["who"])


def children_of(stack: WaitFacts) -> set[int]:
    return {child["pid"] for child in stack.get("children") or []}


def all_entries(stack: WaitFacts) -> list[WaitFacts]:
    return [*(stack.get("threads") or []), *(stack.get("tasks") or [])]


def entry_id(entry: WaitFacts, stack: WaitFacts) -> Id:
    if "task" in entry:
        return (*process_id(stack), "task", entry["key"])
    return (*process_id(stack), "main" if entry["main"] else entry["ident"])


def thread_id(stack: WaitFacts, ident: Any) -> Id:
    main = any(each["main"] and each["ident"] == ident for each in stack.get("threads") or [])
    return (*process_id(stack), "main" if main else ident)


def thread_key(thread: WaitFacts) -> Any:
    return "main" if thread["main"] else thread["ident"]


def busy_loops(stack: WaitFacts) -> list[Id]:
    """Threads whose event loop is blocked by a call: its tasks cannot continue meanwhile."""
    threads = [t for t in stack.get("threads") or [] if t.get("loops") and t["wait"]["kind"] != "event_loop"]
    return [(*process_id(stack), thread_key(thread)) for thread in threads]


def blocked_loops(stack: WaitFacts) -> list[Id]:
    """Event loops whose thread waits in a blocking call."""
    waits = {(*process_id(stack), thread_key(t)): t["wait"]["kind"] for t in stack.get("threads") or [] if "wait" in t}
    return [each for each in busy_loops(stack) if waits[each] not in RESTING]


def loops_of(task: WaitFacts, stack: WaitFacts) -> list[WaitFacts]:
    """The threads that run the event loop of a task and wait in a blocking call there: it cannot go on meanwhile."""
    blocked = blocked_loops(stack)
    threads = [t for t in stack.get("threads") or [] if (*process_id(stack), thread_key(t)) in blocked]
    return [t for t in threads if not t.get("loop") or t["loop"] == task.get("loop", t["loop"])]


def front_of(pid: int, host: Any, known: Mapping[Id, Node]) -> Any:
    """The node of a process: its main thread, or the process itself if its threads are unknown."""
    return "main" if (host, pid, "main") in known else "process"


def serves(stack: WaitFacts) -> bool:
    """Whether a process waits for requests of others, in any of its threads."""
    waits = [thread.get("wait") or {} for thread in stack.get("threads") or []]
    return any(wait.get("kind") == "serving" or wait.get("listens") or _accepts(wait) for wait in waits)


def _accepts(wait: WaitFacts) -> bool:
    return wait.get("kind") == "socket" and bool((wait.get("file") or {}).get("local")) and not wait["file"].get("peer")
