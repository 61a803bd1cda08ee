"""What one thread waits for, from its frames, the objects in them, the source line and the kernel's information.

The frames between the user's code and the innermost one name the call that waits; the outermost that is known says
most (`queue.get`, not the lock inside of it). Where the user's line waits in C, the line and the system call tell.
"""

import ast
from collections.abc import Iterator, Sequence

from ..code.origins import given_to, last_name, own_nodes
from ..code.resolving import resolve, texts_of
from ..code.source import SETTING, Call
from ..code.starters import handed_function
from ..reading.objects import Frame, Object, called_on, is_a
from .distributed_calls import BEGUN, TRANSFERS
from .library_calls import library_wait
from .looking import DEFAULT_GROUP, LOCKS, Looking, Wait, lock_key, shared_semaphore
from .system_calls import kernel_wait

_ROOTED = ("broadcast", "reduce", "gather", "scatter")
_STORE_CALLS = frozenset({"get", "multi_get", "wait", "queue_pop", "barrier"})
_STORE_METHODS = SETTING | {"check", "delete_key", "num_keys", "queue_len"}
_STORES_WITH_CONNECTION = ("TCPStore", "PrefixStore")


def wait_of(looking: Looking) -> Wait:
    """The wait of a thread; its kind is `unknown` when nothing is recognised."""
    frames = looking.frames[: looking.user if looking.user is not None else len(looking.frames)]
    found = library_wait(frames, looking) or _handed(looking) or _at_line(looking)
    found = found or kernel_wait(looking) or {"kind": "unknown"}
    return found | _connection(frames, looking) if found["kind"] in ("pipe", "socket") else found


def _connection(frames: Sequence[Frame], looking: Looking) -> Wait:
    """What the user's line calls a connection of multiprocessing, whose pipes are sockets where both sides write."""
    for frame in frames:
        if frame.file.endswith("multiprocessing/connection.py") and is_a(frame.variable("self"), "_ConnectionBase"):
            named = looking.user is not None
            name = looking.name(frame.variable("self"), "recv", "recv_bytes", "send") if named else ""
            return {"type": "Connection", "name": name}
    return {}


def _handed(looking: Looking) -> Wait | None:
    """A method of a lock or queue in C that a pool or a thread was handed: it runs without a frame of its own."""
    owner = looking.frames[0].variable("self") if looking.frames else None
    if owner is None or looking.kernel.get("call") not in (None, "", "futex"):
        return None
    value = called_on(handed_function(looking.frames[0], owner))
    if is_a(value, "SimpleQueue") and value is not None:
        size = value.length()
        return {"kind": "queue_get", "type": "SimpleQueue", "name": "", "key": f"{value.address:#x}", "size": size}
    if not is_a(value, *LOCKS) or value is None:
        return None
    choice = {"name": "", "key": lock_key(value, ""), "owner": value.owner()}
    return {"kind": "lock", "choices": [choice], "name": "", "key": choice["key"]}


def _at_line(looking: Looking) -> Wait | None:
    """The innermost line, the user's or of a library, waits in C: what it calls, and on what."""
    # A thread that is running has what its line takes.
    blocked = looking.kernel.get("call") in (None, "", "futex") and looking.kernel.get("state") != "running"
    if not looking.frames or (looking.user and not blocked):
        return None
    place = looking.frames[0]
    calls = looking.sources.calls_at(place)
    locks = []
    for call in calls:
        value = resolve(call.receiver, place) if call.receiver is not None else None
        if call.method in ("acquire", "__enter__") and (value is None or is_a(value, *LOCKS)):
            if call.method == "__enter__" and value is None and not isinstance(call.receiver, ast.Name | ast.Attribute):
                continue
            if value is not None and "Semaphore" in value.kind:
                return shared_semaphore(value, call.name)
            locks.append(_lock(call, value))
        elif call.method == "get" and is_a(value, "SimpleQueue") and value is not None:
            name, key = call.name, f"{value.address:#x}"
            return {"kind": "queue_get", "type": "SimpleQueue", "name": name, "key": key, "size": value.length()}
        elif is_a(value, "Store") and (wait := _store(call, value, place, looking)):
            return wait
        elif call.method.startswith("recv") and is_a(value, "Socket"):
            # Of pyzmq; those of the standard library are lower case.
            return {"kind": "message", "name": call.name}
        elif call.method in ("wait", "synchronize") and is_a(value, "Work"):
            return {"kind": "collective", "name": call.name, **_begun(call, looking)}
    if locks and blocked:
        wait = {"kind": "lock", "choices": locks, "name": locks[0]["name"], "key": locks[0]["key"]}
        inside = {"file": place.file, "line": place.line, "function": place.function}
        return wait | ({"taken_in": inside} if looking.user else {})
    return None


def _store(call: Call, value: Object | None, place: Frame, looking: Looking) -> Wait:
    """A call of a torch.distributed store; `in_turn` where another call may have its connection, which serves one at a
    time: who waits for an answer reads, and does not sleep."""
    in_turn = is_a(value, *_STORES_WITH_CONNECTION) and looking.kernel.get("call") == "futex"
    # Others give their answer at once.
    if call.method not in _STORE_CALLS and not (in_turn and call.method in _STORE_METHODS):
        return {}
    # A time limit may follow.
    keys = call.arguments[:1]
    named = [text for argument in keys for text in texts_of(argument, place)]
    written = [ast.unparse(each)[:80] for each in keys if isinstance(each, ast.JoinedStr)]
    kind = "store" if call.method in _STORE_CALLS else "store_turn"
    told = {"kind": kind, "name": call.name, "keys": named[:3], "written": written, "call": call.method}
    return told | {"in_turn": in_turn}


def _lock(call: Call, value: Object | None) -> Wait:
    lock = value.get("_lock") or value if value is not None and is_a(value, "Condition") else value
    return {"name": call.name, "key": lock_key(value, call.name), "owner": lock.owner() if lock is not None else None}


def _begun(call: Call, looking: Looking) -> Wait:
    """The operation that is waited for, if the current function has begun it; else any."""
    place, unknown = looking.place, {"op": "wait", "peer": None, "group": ""}
    calls = list(_beginnings(call, place, looking)) if place is not None else []
    ops = {last_name(each.func) for each in calls}
    if place is None or len(ops) != 1 or not ops <= BEGUN:
        return unknown
    op, begun = next(iter(ops)), calls[0]
    told = [word.value for word in begun.keywords if word.arg in ("src", "dst")]
    told += begun.args[1:2] if op in TRANSFERS or op.startswith(_ROOTED) else []
    peer = _number(told[0], place) if told else None
    if op in TRANSFERS:
        # With whom is known of a single one only.
        return {"op": op, "peer": peer, "group": ""} if len(calls) == 1 and peer is not None else unknown
    given = [word.value for word in begun.keywords if word.arg == "group"]
    group = resolve(given[0], place) if given else None
    named = f"{group.address:#x}" if group is not None and group.kind != "NoneType" else DEFAULT_GROUP
    return {"op": op, "peer": peer, "group": named if group is not None or not given else "", "begun": True}


def _beginnings(call: Call, place: Frame, looking: Looking) -> Iterator[ast.Call]:
    """The calls of the current function that gave what is waited for: to its name, or to the table that a loop takes
    it from."""
    if (direct := looking.sources.assigned(place, call.name)) is not None:
        yield direct
        return
    function = looking.sources.function(place)
    taken = list(given_to(call.name, function)) if function is not None else []
    tables = {ast.unparse(each) for each in taken}
    for node in own_nodes(function) if function is not None else ():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append":
            taken += node.args[:1] if ast.unparse(node.func.value) in tables else []
        elif isinstance(node, ast.Assign) and any(ast.unparse(target) in tables for target in node.targets):
            taken.append(node.value)
    for each in taken:
        parts = each.elts if isinstance(each, ast.List | ast.Tuple) else [getattr(each, "elt", each)]
        yield from (part for part in parts if isinstance(part, ast.Call))


def _number(expression: ast.expr, place: Frame) -> int | None:
    if isinstance(expression, ast.Constant):
        return expression.value if isinstance(expression.value, int) else None
    value = resolve(expression, place)
    return value.number() if value is not None else None
