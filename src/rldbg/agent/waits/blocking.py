"""What one thread waits for, from its frames, the objects in them, the source line and the kernel's information.

The frames between the user's code and the innermost one name the call that waits; the outermost that is known says
most (`queue.get`, not the lock inside of it). Where the user's line waits in C, the line and the system call tell.
"""

import ast
from collections.abc import Sequence

from .library_calls import library_wait
from .looking import LOCKS, Looking, Wait, lock_key, shared_semaphore
from .objects import Frame, Object, is_a
from .resolving import resolve, texts_of
from .source import Call
from .system_calls import kernel_wait

_STORE_CALLS = frozenset({"get", "multi_get", "wait", "queue_pop", "barrier"})


def wait_of(looking: Looking) -> Wait:
    """The wait of a thread; its kind is `unknown` when nothing is recognised."""
    frames = looking.frames[: looking.user if looking.user is not None else len(looking.frames)]
    found = library_wait(frames, looking) or _at_line(looking) or kernel_wait(looking) or {"kind": "unknown"}
    return found | _connection(frames, looking) if found["kind"] in ("pipe", "socket") else found


def _connection(frames: Sequence[Frame], looking: Looking) -> Wait:
    """What the user's line calls a connection of multiprocessing, whose pipes are sockets where both sides write."""
    for frame in frames:
        if frame.file.endswith("multiprocessing/connection.py") and is_a(frame.variable("self"), "_ConnectionBase"):
            return {"type": "Connection", "name": looking.name(frame.variable("self"), "recv", "recv_bytes", "send")}
    return {}


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
        elif call.method in _STORE_CALLS and is_a(value, "Store"):
            named = [text for argument in call.arguments for text in texts_of(argument, place)]
            return {"kind": "store", "name": call.name, "keys": named[:3], "call": call.method}
        elif call.method.startswith("recv") and is_a(value, "Socket"):
            # Of pyzmq; those of the standard library are lower case.
            return {"kind": "message", "name": call.name}
        elif call.method in ("wait", "synchronize") and is_a(value, "Work"):
            return {"kind": "collective", "name": call.name, "group": "", **_begun(call, looking)}
    if locks and blocked:
        wait = {"kind": "lock", "choices": locks, "name": locks[0]["name"], "key": locks[0]["key"]}
        inside = {"file": place.file, "line": place.line, "function": place.function}
        return wait | ({"taken_in": inside} if looking.user else {})
    return None


def _lock(call: Call, value: Object | None) -> Wait:
    lock = value.get("_lock") or value if value is not None and is_a(value, "Condition") else value
    return {"name": call.name, "key": lock_key(value, call.name), "owner": lock.owner() if lock is not None else None}


def _begun(call: Call, looking: Looking) -> Wait:
    """The send or receive that is waited for, if the current function started it; else any operation."""
    begun = looking.sources.assigned(looking.place, call.name) if looking.place is not None else None
    op = begun.func.attr if begun is not None and isinstance(begun.func, ast.Attribute) else ""
    if begun is None or looking.place is None or op not in ("isend", "irecv"):
        return {"op": "wait", "peer": None}
    told = [word.value for word in begun.keywords if word.arg in ("src", "dst")] + begun.args[1:2]
    known = [_number(each, looking.place) for each in told[:1]]
    return {"op": op, "peer": next(iter(known), None)}


def _number(expression: ast.expr, place: Frame) -> int | None:
    if isinstance(expression, ast.Constant):
        return expression.value if isinstance(expression.value, int) else None
    value = resolve(expression, place)
    return value.number() if value is not None else None
