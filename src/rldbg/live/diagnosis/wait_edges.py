"""Who should end a wait: the edges of the wait graph, by the kind of what is waited for."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rldbg.live.diagnosis.counterparts import later_setters, lock_edges, own_server, servers_of
from rldbg.live.diagnosis.entries import (
    all_entries,
    blocked_loops,
    busy_loops,
    children_of,
    entry_id,
    front_of,
    process_id,
    serves,
    thread_id,
    thread_key,
)
from rldbg.live.diagnosis.lost_waits import (
    DUTIES,
    ended_children,
    ended_relatives,
    is_out_of_reach,
    keys_text,
    ways_text,
    what_ended,
    workers_keep_ending,
)
from rldbg.live.diagnosis.wait_graph import FEEDS, NOT_ABOUT_TO, Edge, Id, Node, WaitFacts
from rldbg.live.diagnosis.wait_words import place_text

# Who waits for the next item has nothing left to mark as done.
_TAKING = {"queue_join": "queue_get"}
_OWNED = {"thread": "is that thread", "undrained": "hands it on", "import": "imports it", "gil": "holds it"}
# Of these more may come from outside the job.
_FROM_OUTSIDE = frozenset({"socket", "stream", "message", "poll", "pipe", "stdin", "fifo"})
# What is answered by writing into a connection, and by which methods.
_READ = frozenset({"pipe", "socket", "stream", "stdin"})
_SENDING = frozenset({"send", "send_bytes", "sendall", "sendto", "sendmsg", "write", "writelines"})
# There is one of these for each request.
_ONE_EACH = frozenset({"future", "event"})
IS_A_CHILD = "is a child process that should complete it"
_RELATIONS = {
    "file_lock": "holds it",
    "lock_file": "is named in it",
    "child": "is that process",
    "message": "is connected to it",
} | dict.fromkeys(("pipe", "socket", "stream", "poll", "stdin"), "is at the other end")


@dataclass(frozen=True)
class Asked:
    """A wait, where it was seen, its node, and everything that is known besides."""

    wait: WaitFacts
    stack: WaitFacts
    node: Node
    known: Mapping[Id, Node]
    stacks: Sequence[WaitFacts]

    @property
    def base(self) -> Id:
        return process_id(self.stack)

    @property
    def kind(self) -> str:
        return str(self.wait["kind"])

    def relation(self) -> str:
        """The part of a process at the other end."""
        if not self.wait.get("accepted", True):
            return "listens there and has not accepted the connection"
        return _RELATIONS.get(self.kind, "should do it")


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
    found = _BY_KIND.get(asked.kind, _process_edges)(asked)
    return [_with_unflushed(_with_skipped_step(edge, asked), asked) for edge in found] if asked.kind in _READ else found


def _duty_edges(asked: Asked) -> list[Edge]:
    """What somebody has to do, to an object: who does so in what it runs, or has the other end of it."""
    wait, stack, node, known = asked.wait, asked.stack, asked.node, asked.known
    host, (should, duty) = asked.base[0], DUTIES[asked.kind]
    found = []
    if wait.get("rest_of_item"):
        # Only the process that has begun to write an item can end it.
        should = "should write the rest of it"
    else:
        found = [edge for user in wait.get("users") or [] if (edge := _user_edge(user, stack, wait)) is not None]
        if is_out_of_reach(wait) or (wait.get("kept_to_itself") and serves(stack)):
            # Who would look it up by its name finds another one, or nothing.
            return [edge for edge in found if edge.relation == should]
        found += [edge for edge in _sharing(wait, stack, asked.stacks) if edge.relation == should or _may(edge, asked)]
    others = [pid for pid in wait.get("ends") or [] if pid != stack.get("pid")] if not found else []
    if others and (lost := _ended_users(others, host, asked.stacks)):
        node.wait = {**node.wait, "lost": lost}
        return []
    willing = [pid for pid in others if _may_use(pid, asked)]
    if others and not willing and (gone := ended_relatives(wait, stack, asked.stacks)):
        # Who is forked has all queues of its parent.
        lost = f"no process that has the other end of the queue runs code that would {duty}: {gone}"
        node.wait = {**node.wait, "lost": lost}
        return []
    unwilling = f"{NOT_ABOUT_TO} {duty}"
    found += [Edge((host, pid, front_of(pid, host, known)), should if pid in willing else unwilling) for pid in others]
    if not found and wait.get("between") == "processes" and wait.get("ends") is None and asked.kind != "semaphore":
        family = [edge.target for edge in _pool_edges(stack, known, threads=False)]
        above = [process_id(each) for each in asked.stacks if stack.get("pid") in children_of(each)]
        family += [(*each, front_of(each[1], each[0], known)) for each in above]
        edges = [Edge(other, f"may {duty}") for other in family if other in known]
        return [edge for edge in edges if _may(edge, asked)]
    found = found or _closed_at_exit(asked) or _starting(asked) or _asking(asked) or _feeding(asked)
    acting = should, f"may {duty}"
    found = [_with_skipped_step(edge, asked) if edge.relation in acting else edge for edge in found]
    ends = asked.kind == "future" and not workers_keep_ending(wait, stack)
    return found or (_completers(stack, node, known) if ends else [])


def _may(edge: Edge, asked: Asked) -> bool:
    """Whether who has a shared object may act on it from where it is: not if it waits for others of the job, and what
    it runs then does not name it."""
    node = asked.known[edge.target]
    if asked.wait.get("between") == "ray" or not node.waits or node.kind in _FROM_OUTSIDE:
        return True
    return _may_use(node.id[1], asked)


def _feeding(asked: Asked) -> list[Edge]:
    """Who gives the next item to who takes one after the other, and waits itself; not where somebody was started to do
    so, or requests bring the items."""
    if asked.wait.get("starters") or serves(asked.stack):
        return []
    found = [(_entry_named(each["who"], asked.stack), each) for each in asked.wait.get("fed_by") or []]
    edges = [
        Edge(identity, f"{FEEDS} {each['calls']} ({place_text(each)})")
        for identity, each in found
        if identity in asked.known and identity != asked.node.id
    ]
    return [edge for edge in edges if asked.known[edge.target].waits]


def _entry_named(who: str, stack: WaitFacts) -> Id:
    named = (each for each in all_entries(stack) if who in (each.get("thread"), each.get("key")))
    return next((entry_id(each, stack) for each in named), ())


def _with_skipped_step(edge: Edge, asked: Asked) -> Edge:
    """An edge with what makes its target leave out its part for an item."""
    target = asked.known.get(edge.target)
    for step in (target.answers or ()) if target is not None else ():
        if (step["left_by"] or step["only_if"]) and _answers(step, edge, asked):
            does = "it answers" if asked.kind in _READ else "it does so"
            elsewhere = target is not None and not target.place.endswith(f"({step['function']})")
            where = f"in line {step['line']}" + f" of {step['function']}" * elsewhere
            why = f"which {ways_text(step)}" if step["left_by"] else f"only if {step['only_if']}"
            # Of what is taken out of a table, the keys say more.
            last = keys_text(step["lookup"]) or _last_item(step)
            return replace(edge, skipped=f"{does} {where}, {why}{last}")
    return edge


def _last_item(step: WaitFacts) -> str:
    """What the conditions that lead past a step look at, as it was for the item that was taken last."""
    return f"; of its last item{str(step['values']).replace(' (', ' ', 1).removesuffix(')')}" if step["values"] else ""


def _with_unflushed(edge: Edge, asked: Asked) -> Edge:
    """An edge with what its target has written for who waits, and which is still in the buffer of its file."""
    own = [each for each in asked.stacks if process_id(each) == edge.target[:2]]
    ends = {number for owner, number in asked.wait.get("sockets") or () if owner == edge.target[1]}
    files = [file for each in own for file in each.get("unflushed") or () if file["descriptor"] in ends]
    if not files or asked.wait.get("call") == "write" or asked.wait.get("sends"):
        return edge
    asked.node.wait = {**asked.node.wait, "unflushed": True}
    kept = f"what it wrote last ({files[0]['size']} bytes) is still in the buffer of {files[0]['name']}, not flushed"
    return replace(edge, skipped=kept)


def _answers(step: WaitFacts, edge: Edge, asked: Asked) -> bool:
    """Whether a step of another thread would end a wait; where it is not certain on which object it is done, whether it
    may."""
    if asked.kind in _READ:
        ends = {number for owner, number in asked.wait.get("sockets") or () if owner == edge.target[1]}
        return step["method"] in _SENDING and bool(ends & {*step["writes"]})
    own = {asked.wait.get("key"), asked.wait.get("shared")} - {None, ""}
    ends_it = step["method"] in (asked.wait.get("ended_by") or ())
    there = {*step["keys"], *(step["lookup"].get("objects") or ())}
    return ends_it and (bool(own & there) or (asked.kind in _ONE_EACH and bool(step["may"])))


def _closed_at_exit(asked: Asked) -> list[Edge]:
    """Processes whose main program is over, and that have closed the end of a queue which others wait at: those that
    have another end of it, and who has started the process that waits, and has given it the queue."""
    own = asked.stack.get("pid")
    if asked.wait.get("ends") is None:
        return []
    pids = [pid for pid in asked.wait.get("openers") or [] if pid != own]
    pids += [each["pid"] for each in asked.stacks if each.get("host") == asked.base[0] and own in children_of(each)]
    mains = [asked.known[each] for pid in pids if (each := (asked.base[0], pid, "main")) in asked.known]
    return [Edge(each.id, "has closed its end of it") for each in mains if each.wait.get("at_exit")]


def _starting(asked: Asked) -> list[Edge]:
    """Who will start the thread, process or task that would end the wait. A loop that has started some of those who
    meet at a barrier starts the others in its next rounds."""
    found, duty = [], DUTIES[asked.kind][1]
    wanted = [each for each in asked.wait.get("starters") or [] if not each["passed"]]
    hosts = [each for each in asked.stacks if each.get("host") == asked.base[0]] if wanted else []
    for identity, entry in ((entry_id(entry, stack), entry) for stack in hosts for entry in all_entries(stack)):
        later = [each for each in entry.get("starts") or [] if asked.kind == "barrier" or not each["again"]]
        lines = {(each["file"], each["line"]) for each in later if identity != asked.node.id}
        for each in wanted:
            if (each["file"], each["line"]) in lines:
                who = f"{each['what']} {each['name']}" if each["name"] else f"the {each['what']}"
                part = f"starts {who} (line {each['line']}), which would {duty}, only afterwards"
                found.append(Edge(identity, part))
    return found


def _asking(asked: Asked) -> list[Edge]:
    """Who will send the request for which the server calls the function that would end the wait."""
    found, duty = [], DUTIES[asked.kind][1]
    routes = [str(each) for each in asked.wait.get("routes") or []]
    entries = [(entry, each) for each in asked.stacks for entry in all_entries(each)] if routes else []
    for entry, stack in entries:
        asks = [each for each in entry.get("asks_for") or [] if str(each["path"]).endswith(tuple(routes))]
        if asks and entry_id(entry, stack) != asked.node.id:
            part = f"asks for {asks[0]['path']}, which would {duty}, only afterwards ({place_text(asks[0])})"
            found.append(Edge(entry_id(entry, stack), part))
    return found


def _may_use(pid: int, asked: Asked) -> bool:
    """Whether a process that has the other end of a queue may do with it what ends the wait, from where it is."""
    own = [each for each in asked.stacks if each.get("host") == asked.base[0] and each.get("pid") == pid]
    entries, ending = [entry for each in own for entry in all_entries(each)], set(asked.wait.get("ended_by") or ())
    if not entries or not asked.wait.get("shared") or not all("may_call" in entry for entry in entries):
        return True
    acts = [{*entry["may_call"], *entry["shares"].get(asked.wait["shared"], ())} for entry in entries]
    looked_up = (step for entry in entries for step in entry.get("answers") or () if step["method"] in ending)
    found = any(asked.wait["shared"] in (step["lookup"].get("objects") or ()) for step in looked_up)
    return found or any(each & ending for each in acts)


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
    return _edges_to([asked.wait["pid"]] if asked.wait.get("pid") else children, asked)


def _loader_edges(asked: Asked) -> list[Edge]:
    workers = asked.wait.get("workers") or []
    if any(worker["ended"] for worker in workers):
        return []
    pids = [worker["pid"] for worker in workers if worker["pid"]]
    # Batches come in order: the worker that has the next one is meant.
    return _edges_to([pid for pid in pids if pid == asked.wait.get("next")] or pids, asked)


def _process_edges(asked: Asked) -> list[Edge]:
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
    found = _edges_to(pids, asked)
    if not found and asked.kind in ("socket", "stream", "pipe") and stack.get("pid") in (wait.get("ends") or ()):
        return own_server(wait, stack, asked.node, asked.known)
    if not found and asked.kind == "socket" and not (wait.get("file") or {}).get("peer"):
        return [Edge(edge.target, "may be at the other end") for edge in _pool_edges(stack, asked.known, threads=False)]
    return found


def _edges_to(pids: Sequence[int], asked: Asked) -> list[Edge]:
    """Edges to the threads or tasks of processes that have a part in the wait."""
    wait, stack, known = asked.wait, asked.stack, asked.known
    ids = [each for pid in pids if pid != stack.get("pid") for each in servers_of(pid, asked.base[0], known, wait)]
    waiting = (each for each in known.values() if each.kind == "child" and "task" in each.id)
    joins = [each.id for each in waiting if each.wait.get("pid") == stack.get("pid")]
    # So is the one that reads what this process answers.
    reading = (each for each in known.values() if each.kind in _READ and "task" in each.id)
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


def _ended_users(pids: Sequence[int], host: Any, stacks: Sequence[WaitFacts]) -> str:
    """Why processes that have the other end of a queue do nothing with it: a thread of theirs has ended."""
    there = [each for each in stacks if each.get("host") == host and each.get("pid") in pids]
    gone = [(each["who"], what_ended(_without_children(each))) for each in there]
    told = [
        f"{who} has the other end of the queue, and runs no code that uses it: {what}" for who, what in gone if what
    ]
    return "; ".join(told) if len(told) == len(pids) else ""


def _without_children(stack: WaitFacts) -> WaitFacts:
    ended = [each for each in stack.get("ended") or [] if each["kind"] != "process"]
    return {**stack, "ended": ended, "children": []}


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
    # While its thread is blocked, no task of a loop goes on.
    blocked = [edge for edge in loops if edge.target in blocked_loops(stack)]
    return pooled or blocked or roots or loops or _pool_edges(stack, known, threads=False)


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
    return [Edge(child, IS_A_CHILD) for child in busy]


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


_BY_KIND: Mapping[str, Callable[[Asked], list[Edge]]] = (
    dict.fromkeys(DUTIES, _duty_edges)
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
