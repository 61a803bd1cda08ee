"""Waits in words: what is waited for, what should end it, and one sentence per path of the wait graph."""

import signal
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from rldbg.live.diagnosis.graph.wait_graph import FEEDS, Node
from rldbg.live.diagnosis.waits import toward

POOL_RESULTS = ("Pool", "ApplyResult", "AsyncResult", "MapResult", "IMapIterator", "IMapUnorderedIterator")
_OUTPUTS = {1: "its standard output", 2: "its standard error"}
_MOST_LISTED, _MOST_MEMBERS = 3, 8
DEFAULT_GROUP = ("", "default", "0")
_SIGNALS = {each.value: each.name for each in signal.Signals}


def place_text(place: Any) -> str:
    if not place:
        return ""
    return f"{str(place['file']).rpartition('/')[2]}:{place['line']} ({str(place['function']).rpartition('.')[2]})"


def named(kind: str, name: str) -> str:
    return f"{kind} `{name}`" if name else f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def exit_text(how: str) -> str:
    """`signal 9` as people know it."""
    word, _, number = how.partition(" ")
    if word == "signal" and number.isdigit():
        return f"killed by {_SIGNALS.get(int(number), how)}"
    return how


def thing(wait: Any) -> str:
    """What is waited for."""
    kind, name = str(wait.get("kind")), str(wait.get("name") or "")
    words = _THINGS.get(kind)
    return words(wait, name) if words is not None else "something that is not recognised"


def _queue(wait: Any, name: str) -> str:
    size, limit = wait.get("size"), wait.get("limit")
    sort = {"Queue": "queue.Queue", "": "queue"}.get(str(wait.get("type") or ""), str(wait.get("type")))
    if wait.get("between") == "processes":
        sort = "multiprocessing queue"
    elif wait.get("between") == "ray":
        sort = "ray.util.queue"
    if rest := wait.get("rest_of_item"):
        come = f"{rest['size'] - rest['missing']} of {rest['size']} bytes have come"
        return f"the rest of an item of {named('queue', name)} ({sort}; {come})"
    if wait["kind"] == "queue_get":
        state = ", empty" if size == 0 else f", {size} items" if size else ""
        kept = wait.get("kept") or {}
        if wait.get("between") == "processes" and kept.get("ahead"):
            more = f" and {kept['more']} more" if kept["more"] else ""
            state += f"; others of `{kept['table']}` have items: {', '.join(kept['ahead'])}{more}"
        return f"an item of {named('queue', name)} ({sort}{state})"
    if wait["kind"] == "queue_join":
        return f"all items of {named('queue', name)} to be marked as done ({sort})"
    return f"room in {named('queue', name)} ({sort}, full{f': {size} of {limit} items' if size else ''})"


def _socket(wait: Any, name: str) -> str:
    file = wait.get("file") or {}
    if wait.get("type") == "Connection":
        return _pipe(wait, name)
    peer, local, call = file.get("peer"), file.get("local"), wait.get("call")
    if call == "connect" or file.get("connection") == "connecting":
        return f"a connection to {peer}, which does not answer"
    if call in ("accept", "accept4") or (file and not peer and local):
        return f"a process to connect to {local}"
    if call in ("sendto", "sendmsg", "write"):
        return f"{peer or 'its peer'} to read what it sends"
    closed = f" (the connection is {file['connection']})" if "closed" in str(file.get("connection")) else ""
    return f"data from {peer or 'a local socket'}{closed}"


def _pipe(wait: Any, name: str) -> str:
    path = str((wait.get("file") or {}).get("path") or "")
    pipe = f"the named pipe {path}" if path.startswith("/") else named("pipe", name)
    output = _OUTPUTS.get((wait.get("file") or {}).get("descriptor", 0), "")
    if wait.get("call") in ("write", "writev"):
        return f"room in {output or pipe} ({f'{pipe}, ' if output else ''}full)"
    return f"data from {pipe}"


def _child(wait: Any, name: str) -> str:
    child, pid = wait.get("child") or {}, wait.get("pid")
    what = f"process {pid}" if pid else "a child process"
    title = wait.get("process") or name
    command = str(child.get("command") or "")[:80]
    over = "; its main program is over" if wait.get("at_exit") else ""
    return f"{what}{f' ({title})' if title else ''} to end" + (f": {command}" if command and not title else "") + over


def _taken_in(wait: Any) -> str:
    """Where a library takes a lock for the user's line."""
    return f" (taken in {place_text(wait['taken_in'])})" if wait.get("taken_in") else ""


def _barrier(wait: Any, name: str) -> str:
    count, parties = wait.get("count"), wait.get("parties")
    return f"{named('barrier', name)}" + (
        f": {count} of {parties} have arrived" if parties and count is not None else ""
    )


def _data_loader(wait: Any, _name: str) -> str:
    count = len(wait.get("workers") or [])
    return f"a batch of its data loader ({count} worker {'process' if count == 1 else 'processes'})"


def _collective(wait: Any, _name: str) -> str:
    peer = wait.get("peer")
    if peer is not None and wait.get("op") in ("send", "recv", "isend", "irecv"):
        return f"{wait.get('op')} {toward(str(wait.get('op')))} rank {peer}" + (
            f" (tag {wait['tag']})" if wait.get("tag") else ""
        )
    if own := _OWN_WORDS.get(str(wait.get("op"))):
        return own + (f" (`{wait['name']}`)" if wait.get("name") else "")
    group = wait.get("group")
    root = f" {root_words(str(wait.get('op')), peer)}" if peer is not None else ""
    members = wait.get("members") or ()
    own = f" (ranks {', '.join(map(str, members))})" if 1 < len(members) <= _MOST_MEMBERS else ""
    named = f" of group {group}{own}" if str(group or "") not in DEFAULT_GROUP else ""
    return f"{wait.get('op')}{root}{named}{' (begun before)' if wait.get('begun') else ''}"


def root_words(op: str, root: int) -> str:
    """Who sends to all or receives from all in a collective."""
    return f"from rank {root}" if op.startswith(("broadcast", "scatter")) else f"to rank {root}"


_OWN_WORDS = {
    "backward": "its backward pass, with the collectives of the gradients, to finish",
    "parameters": "the parameters of its model to be compared or broadcast (DDP, FSDP)",
    "wait": "an asynchronous collective to finish",
    "wait_tensor": "an asynchronous collective to finish",
}


def _store(wait: Any, name: str) -> str:
    return f"a rank to set {_keys(wait) or 'a key'} of the torch.distributed store `{name}`"


def _keys(wait: Any) -> str:
    keys = " and ".join(f"`{key}`" for key in wait.get("keys") or [])
    return f"key {keys}" if keys else ""


def _ray(wait: Any, _name: str) -> str:
    count = wait.get("count")
    return str(
        wait.get("text")
        or ("the result of a Ray task" if count == 1 else f"the results of {count or 'some'} Ray tasks")
    )


_THINGS = {
    "lock": lambda wait, name: (
        "its turn to write into a multiprocessing queue" if wait.get("turn") else named("lock", name) + _taken_in(wait)
    ),
    "queue_get": _queue,
    "queue_turn": lambda wait, name: f"its turn to take an item of {named('queue', name)} (multiprocessing queue)",
    "queue_put": _queue,
    "queue_join": _queue,
    "event": lambda wait, name: f"{named('event', name)} to be set",
    "condition": lambda wait, name: f"{named('condition', name)} to be notified{loop_text(wait)}",
    "semaphore": lambda wait, name: (
        named("semaphore", name) + (f" (0 of {wait['limit']} free)" if wait.get("limit") else "")
    ),
    "change": lambda wait, name: f"its loop {wait['loop']} to end",
    "barrier": _barrier,
    "thread": lambda wait, name: f"thread {wait.get('thread') or name} to end",
    "exit": lambda wait, name: f"its other threads to end; {wait.get('over') or 'its main program'} is over",
    "undrained": lambda wait, name: (
        "what it has put in a multiprocessing queue to be handed on; its main program is over"
    ),
    "future": lambda wait, name: _future(wait, name),
    "some_tasks": lambda wait, name: "the next of its tasks to complete (as_completed)",
    "poll": lambda wait, name: (
        f"data on any of {wait['count']} files or connections" if wait["count"] > 1 else "an event"
    ),
    "task": lambda wait, name: wait.get("text") or _task(wait, name),
    "turn": lambda wait, name: "its event loop, which a call blocks",
    "child": _child,
    "pipe": _pipe,
    "fifo": lambda wait, name: f"a process to open the other end of {wait.get('path') or 'a named pipe'}",
    "stream": lambda wait, name: _rpc(wait) or _stream(wait),
    "socket": _socket,
    "store": _store,
    "store_turn": lambda wait, name: (
        f"its turn to {wait['call']} {_keys(wait) or 'a key'} of the torch.distributed store `{name}`"
    ),
    "file_lock": lambda wait, name: f"the lock on file {wait.get('path') or 'of ' + named('lock', name)}",
    "lock_file": lambda wait, name: (
        f"lock file {wait['path']} ({age_text(wait['lock_file']['age_s'])} old) to be removed"
    ),
    "connection_pool": lambda wait, name: (
        "a free connection of its HTTP client" + (f" (its limit is {wait['limit']})" if wait.get("limit") else "")
    ),
    "stdin": lambda wait, name: f"input on its standard input ({(wait.get('file') or {}).get('path', '')})",
    "disk": lambda wait, name: _disk(wait),
    "import": lambda wait, name: f"the import of module `{name}`",
    "data_loader": _data_loader,
    "collective": _collective,
    "rendezvous": lambda wait, name: f"other ranks to join its process group ({wait.get('call')}{_joining(wait)})",
    "message": lambda wait, name: f"a message on {named('ZeroMQ socket', name)}",
    "cuda": lambda wait, name: f"the GPU to finish its work ({wait.get('call') or 'torch.cuda synchronize'})",
    "native_lock": lambda wait, name: _native_lock(wait),
    "gil": lambda wait, name: "the interpreter lock (GIL)",
    "managed": lambda wait, name: f"`{name}.{wait.get('method')}()` of a multiprocessing manager",
    "native": lambda wait, name: f"native code to finish ({', '.join(wait.get('methods') or [])})",
    "ray_get": _ray,
    "ray_task": _ray,
}


def _future(wait: Any, name: str) -> str:
    if wait.get("type") in POOL_RESULTS:
        return (
            f"the results of pool `{name}`" if name and wait["type"] == "Pool" else f"{named('result', name)} of a pool"
        )
    return f"{named('future', name)} to be completed"


def _task(wait: Any, name: str) -> str:
    if not name:
        return "another task"
    return f"{'the tasks of' if len(wait.get('keys') or ()) > 1 else 'task'} `{name}`"


def loop_text(wait: Any) -> str:
    over = "that does not hold any more" if str(wait.get("until")).startswith("while") else "that is so already"
    met = f": {over}, only the notification is missing" if wait.get("met") else ""
    limit = " or its time limit is over" if wait.get("time_limit") else ""
    return f", in a loop {wait['until']}{limit}{met}" if wait.get("until") else ""


def age_text(seconds: float) -> str:
    for unit, length in (("days", 172_800.0), ("hours", 7200.0), ("minutes", 120.0)):
        if seconds >= length:
            return f"{seconds / (length / 2):.0f} {unit}"
    return f"{seconds:.0f} s"


def lock_file_text(file: Any) -> str:
    """A file that is waited for, where it is not certain that nobody removes it."""
    if not file:
        return ""
    named = f"names process {file['pid']}, perhaps of another host" if "pid" in file else "names no process"
    return f"the file is {age_text(file['age_s'])} old and {named}"


def _native_lock(wait: Any) -> str:
    loaded = ", ".join(wait.get("libraries") or [])
    return "a lock in native code" + (f" (of a library with threads: {loaded})" if loaded else "")


def _stream(wait: Any) -> str:
    unnamed = "a pipe" if (wait.get("file") or {}).get("kind") == "pipe" else "a stream"
    other = wait.get("peer") or unnamed
    return f"room to send to {other} (what was sent is not read)" if wait.get("sends") else f"data from {other}"


def _rpc(wait: Any) -> str:
    if "rpc" not in wait:
        return ""
    asked = f"gRPC call `{wait['rpc']}`" if wait["rpc"] else "a gRPC call"
    return f"the answer to {asked}" + (f" from {wait['address']}" if wait.get("address") else "")


def _joining(wait: Any) -> str:
    """Which group is joined, or as which rank."""
    rank, size, members = wait.get("rank"), wait.get("world_size"), wait.get("members")
    if members:
        return f" of {'rank' if len(members) == 1 else 'ranks'} {listed([*map(str, members)])}"
    return f", as rank {rank} of {size}" if rank is not None and size else ""


def _disk(wait: Any) -> str:
    path, channel = str((wait.get("file") or {}).get("path") or ""), str(wait.get("channel") or "")
    if path.startswith("/dev/"):
        return f"the driver of {path}"
    return f"the disk or network file system ({path})" if path else f"the kernel ({channel or 'unknown place'})"


def handled_text(entry: Any) -> str:
    """What a thread that waits is handling meanwhile: a `finally` or `except` that does what the others do not."""
    handles = entry.get("handles")
    if not handles:
        return ""
    where = place_text(handles.get("place"))
    return f", while it handles {handles['message']}" + (f" raised at {where}" if where else "")


def _waiting(node: Node) -> str:
    where = f" at {node.place}" if node.place else ""
    handed = f" (handed to it in {place_text(node.wait['handed'])})" if node.wait.get("handed") else ""
    return f"waits{where} for {thing(node.wait)}{handed}{node.wait.get('handles') or ''}"


def clause(node: Node) -> str:
    where = f" at {node.place}" if node.place else ""
    if node.waits:
        return f"{node.label} {_waiting(node)}"
    return f"{node.label} {node.activity or 'is running'}{where if node.place and ' at ' not in node.activity else ''}"


def _waits_for_itself(relation: str) -> str:
    if relation.startswith("belongs to the pool"):
        return "it is work for the pool of this thread, and all threads of that pool wait for such work (deadlock)"
    part, begins, why = relation.partition(" (")
    return (
        f"it holds that itself{begins}{why} (deadlock)"
        if "holds" in relation
        else f"it {part} itself{begins}{why} (deadlock)"
    )


def _is_guess(step: tuple[Node, Node]) -> bool:
    before, node = step
    return any(edge.relation.startswith("may ") for edge in before.edges if edge.target == node.id)


def listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return ", ".join(names[:_MOST_LISTED]) + more


def told_nodes(path: Sequence[Node]) -> list[Node]:
    """Those of a path that say something: not a library's own task on the way; a ring needs all of its members."""
    if path[0] is path[-1]:
        return list(path)
    return [node for node in path if node in (path[0], path[-1]) or not (node.background and node.kind == "task")]


def _relation(before: Node, node: Node, path: Sequence[Node]) -> str:
    """The part of a node in the wait of another: what says most on the way between them."""
    begins = next(n for n, each in enumerate(path) if each is before)
    ends = next(n for n, each in enumerate(path) if n > begins and each is node)
    parts = [
        next((edge.relation for edge in each.edges if edge.target == following.id), "is waited for")
        for each, following in pairwise(path[begins : ends + 1])
    ]
    return next((part for part in parts if part != "is awaited"), parts[0])


def _skipped(before: Node, node: Node) -> str:
    told = next((edge.skipped for edge in before.edges if edge.target == node.id and edge.skipped), "")
    return f" ({told})" if told else ""


def sentence(path: Sequence[Node]) -> str:
    """One path of the wait graph; a ring ends with the node that it began with."""
    parts = [clause(path[0])]
    told = told_nodes(path)
    for number, node in enumerate(told[1:]):
        before = told[number]
        relation = _relation(before, node, path) + _skipped(before, node)
        if node is before:
            parts.append(_waits_for_itself(relation))
        elif relation.startswith(FEEDS):
            does = "is waiting" if node is path[0] else _waiting(node)
            parts.append(f"{relation} in {node.label}, which {does}")
        elif node is path[0]:
            guess = "may " if any(map(_is_guess, pairwise(path))) else ""
            parts.append(f"{node.label} {relation}, so they {guess}wait for each other (deadlock)")
        elif node.waits:
            parts.append(f"{node.label} {relation}, and {_waiting(node)}")
        else:
            where = f" at {node.place}" if node.place and " at " not in node.activity else ""
            parts.append(f"{node.label} {relation}, but {node.activity or 'is running'}{where}")
    lost = str(path[-1].wait.get("lost") or "") if path[-1] is not path[0] or len(path) == 1 else ""
    return "; ".join([*parts, *([lost] if lost else [])])
