"""The asyncio tasks of a process, and what each of them awaits."""

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from ..code.origins import last_name
from ..code.places import is_users, users_place
from ..code.resolving import resolve
from ..code.source import Sources
from ..processes.ended import raised_facts
from ..reading.objects import Frame, Object, chain_of, is_a
from .client_calls import pool_wait, rpc_wait
from .distributed_calls import ray_task
from .lock_files import awaited_absence
from .looking import barrier_facts, has_timeout, queue_facts, queue_of, ray_queue_wait, serves, was_replaced

_PRIMITIVES = {
    ("queues.py", "get"): "queue_get",
    ("queues.py", "put"): "queue_put",
    ("queues.py", "join"): "queue_join",
    ("locks.py", "acquire"): "lock",
    ("locks.py", "__aenter__"): "lock",
    ("locks.py", "wait"): "event",
    ("tasks.py", "sleep"): "sleep",
    ("tasks.py", "wait_for"): "inner",
    ("tasks.py", "_wait"): "inner",
    ("taskgroups.py", "__aexit__"): "group",
    ("tasks.py", "_wait_for_one"): "some",
    ("subprocess.py", "wait"): "child",
    ("subprocess.py", "communicate"): "child",
    ("streams.py", "read"): "stream",
    ("streams.py", "readline"): "stream",
    ("streams.py", "readexactly"): "stream",
    ("streams.py", "readuntil"): "stream",
}


_STREAM_READER = "asyncio.StreamReader"
_SENDING = ("drain", "_drain_helper")
# Of aiohttp, and of httpcore.
_ASKED = ("_key", "_origin")
_TRANSPORTS = (("_transport",), ("transport",), ("_protocol", "transport"), ("_connection", "_protocol", "transport"))


def all_tasks(modules: Mapping[str, Object]) -> Iterator[Object]:
    """All tasks, including those that are done but still referenced."""
    module = modules.get("asyncio.tasks")
    seen: set[int] = set()
    for name in ("_scheduled_tasks", "_all_tasks", "_eager_tasks"):
        every = module.get(name) if module is not None else None
        entries = (every.get("data") or every).elements() if every is not None else []
        for entry in entries:
            task = entry.referent() or entry
            if task.address not in seen:
                seen.add(task.address)
                yield task


def is_waiting(task: Object) -> bool:
    """Whether a task is neither done nor about to run."""
    waiter = task.get("_fut_waiter")
    return waiter is not None and waiter.kind != "NoneType"


def awaited(task: Object) -> str:
    """The address of the future that a task waits for; each wait has one of its own."""
    waiter = task.get("_fut_waiter")
    return f"{waiter.address:#x}" if waiter is not None else ""


def failed_tasks(tasks: list[Object]) -> list[dict[str, Any]]:
    """Tasks that an exception has ended, or that were cancelled."""
    found = []
    for task in tasks:
        error, name = task.get("_exception"), task.get("_name")
        if task.state() == "CANCELLED":
            text = (name.text() if name is not None else None) or "task"
            found.append({"kind": "task", "name": text, "exit": "was cancelled"})
        elif error is not None and is_a(error, "BaseException") and not is_a(error, "CancelledError"):
            text = (name.text() if name is not None else None) or "task"
            found.append({"kind": "task", "name": text, "exit": f"has ended: {_raised_text(error)}"})
    return found


def _raised_text(error: Object) -> str:
    facts = raised_facts(error) or {}
    place = facts.get("place")
    if place is None:
        return str(facts["message"])
    file, function = place["file"].rpartition("/")[2], place["function"].rpartition(".")[2]
    return f"{facts['message']} at {file}:{place['line']} ({function})"


def task_facts(task: Object, sources: Sources) -> dict[str, Any]:
    """One task as a thread would be described: frames innermost first, and its wait."""
    frames: list[Frame] = [step.frame for step in chain_of(task.get("_coro")) if step.frame is not None][::-1]
    name, loop = task.get("_name"), task.get("_loop")
    return {
        "task": (name.text() if name is not None else "") or (frames[-1].function if frames else "task"),
        "key": f"{task.address:#x}",
        "loop": f"{loop.address:#x}" if loop is not None else "",
        "frames": frames,
        "background": users_place(frames) is None,
        "serves": bool(frames) and not is_users(frames[-1].file),
        "awaits": awaited(task),
        "wait": _wait(task, frames, sources) | ({"completed": True} if _is_done(task.get("_fut_waiter")) else {}),
    }


def _is_done(future: Object | None) -> bool:
    return future is not None and not is_a(future, "Task") and future.state() not in ("", "PENDING")


def _wait(task: Object, frames: list[Frame], sources: Sources) -> dict[str, Any]:
    user = users_place(frames)
    place = frames[user or 0] if frames else None
    expression = sources.awaited(place) if place is not None else None
    if user and (found := pool_wait(frames[:user]) or rpc_wait(frames[:user]) or _connected(frames[:user])):
        return found
    for frame in reversed(frames[: user if user is not None else len(frames)]):
        file, function = frame.file.rpartition("/")[2], frame.function.rpartition(".")[2]
        if serves(frame):
            return {"kind": "serving"}
        if frame.file.endswith("ray/util/queue.py") and function in ("get_async", "put_async") and place is not None:
            return ray_queue_wait(frame, _name_of(frame.variable("self"), place, sources))
        kind = _PRIMITIVES.get((file, function)) if "/asyncio/" in frame.file else None
        if kind == "inner":
            if inner := _inner(frame, expression, place):
                return inner
        elif kind == "group":
            return {"kind": "task", "text": "the tasks of its TaskGroup"} | _keys(frame.variable("self"), "_tasks")
        elif kind == "some":
            # Which ones they are is known to their callbacks alone.
            return {"kind": "some_tasks"}
        elif kind == "sleep" and place is not None:
            delay = frame.variable("delay")
            polls, delay_s = sources.polled(place), delay.real() if delay is not None else None
            absence = awaited_absence(place, sources)
            return {"kind": "sleep", "polls": polls, "delay_s": delay_s, "absence_of": absence}
        elif kind is not None:
            # Where a queue of another library waits for a condition of its own, the queue is meant.
            queues = [each for each in frames[:user] if kind in ("event", "lock") and queue_of(each) is not None]
            action = queues[-1].function.rpartition(".")[2] if queues else ""
            return _primitive(
                f"queue_{action}" if queues else kind, (queues or [frame])[-1], frames, user or 0, sources
            )
    if ref := _ray_reference(expression, place, frames):
        return {"kind": "ray_get", "tasks": [ref], "count": 1}
    if place is not None and (message := _message(expression, place)):
        return message
    return _future(task.get("_fut_waiter"), expression, place)


def _future(waiter: Object | None, expression: ast.expr | None, place: Frame | None) -> dict[str, Any]:
    """A task or a future that is awaited directly, through `gather`, or through a call that was given it (`shield`)."""
    told = _given(expression, place)
    children = waiter.get("_children") if waiter is not None else None
    gathered = children.elements() if children is not None else []
    awaited = [waiter] if is_a(waiter, "Task") and waiter is not None else gathered or [each for each, _ in told]
    name = ast.unparse(expression)[:80] if expression is not None else ""
    if tasks := [each for each in awaited if is_a(each, "Task")]:
        return {"kind": "task", "name": name, "keys": [f"{each.address:#x}" for each in tasks]}
    pending = next((each for each in awaited if is_a(each, "Future") and not _is_done(each)), waiter)
    if pending is None:
        return {"kind": "future", "name": name, "key": ""}
    own = next((text for each, text in told if each.address == pending.address), name)
    return _plain_future(pending, own, expression, place) if not gathered else _future_facts(pending, own)


def _future_facts(future: Object, name: str) -> dict[str, Any]:
    return {"kind": "future", "name": name, "key": f"{future.address:#x}"}


def _plain_future(future: Object, name: str, expression: ast.expr | None, place: Frame | None) -> dict[str, Any]:
    """A future that no task stands for; `replaced` where the line gives its name to another one by now."""
    call = expression if isinstance(expression, ast.Call) and last_name(expression.func) == "shield" else None
    named = call.args[0] if call is not None and call.args else expression
    now = resolve(named, place) if place is not None else None
    same = now is None or is_a(now, "Task") or not is_a(now, "Future") or now.address == future.address
    # What `shield` gives stands for what it was given, and is completed with that.
    if named is None or now is None or same or (call is not None and not _is_done(now)):
        return _future_facts(future, name)
    return _future_facts(future, ast.unparse(named)) | {"replaced": True, "replaced_by": now.state()}


def _given(expression: ast.expr | None, place: Frame | None) -> list[tuple[Object, str]]:
    """Tasks and futures among the arguments of the call that is awaited, and their names."""
    arguments = expression.args if isinstance(expression, ast.Call) and place is not None else []
    plain = [each.value if isinstance(each, ast.Starred) else each for each in arguments]
    found = [(value, ast.unparse(each)) for each in plain if place is not None and (value := resolve(each, place))]
    found += [(inner, text) for value, text in found for inner in value.elements()]
    return [(value, text) for value, text in found if is_a(value, "Future")]


def _ray_reference(expression: ast.expr | None, place: Frame | None, frames: list[Frame]) -> str:
    """The Ray task whose result is awaited: by the user, or for the user by `gather` and `wait_for`."""
    awaited = [resolve(expression, place)] if place is not None else []
    awaited += [frame.variable("awaitable") for frame in frames if frame.function == "_wrap_awaitable"]
    return next((ray_task(each) for each in awaited if each is not None and is_a(each, "ObjectRef")), "")


def _message(expression: ast.expr | None, place: Frame) -> dict[str, Any]:
    """A socket of pyzmq, whose methods give futures."""
    function = expression.func if isinstance(expression, ast.Call) else None
    if not isinstance(function, ast.Attribute) or not function.attr.startswith("recv"):
        return {}
    socket = resolve(function.value, place)
    return {"kind": "message", "name": ast.unparse(function.value)} if is_a(socket, "_AsyncSocket") else {}


def _keys(owner: Object | None, name: str) -> dict[str, Any]:
    tasks = owner.get(name) if owner is not None else None
    return {"keys": [f"{task.address:#x}" for task in tasks.elements()] if tasks is not None else []}


def _inner(frame: Frame, expression: ast.expr | None, place: Frame | None) -> dict[str, Any]:
    """`wait_for` and `wait` wait for tasks that they made, or for a future that they were given."""
    one, many = frame.variable("fut"), frame.variable("fs")
    keys = [one] if is_a(one, "Future", "Task") and one is not None else many.elements() if many is not None else []
    if not keys:
        return {}
    name = ast.unparse(expression)[:80] if expression is not None else ""
    if one is not None and keys == [one] and not is_a(one, "Task"):
        given = expression.args[0] if isinstance(expression, ast.Call) and expression.args else None
        own = ast.unparse(given)[:80] if given is not None else name
        return _plain_future(one, own, given, place) | {"timeout": has_timeout(frame)}
    return {"kind": "task", "name": name, "keys": [f"{key.address:#x}" for key in keys]}


def _connected(frames: list[Frame]) -> dict[str, Any]:
    """The connection of a client library that waits for an answer (aiohttp, httpx, websockets)."""
    for frame in frames:
        for transport in transports_of(frame.variable("self")):
            if found := _connection(transport):
                in_streams = frame.file.endswith("asyncio/streams.py")
                sends = in_streams and frame.function.rpartition(".")[2] in _SENDING
                own = {"sends": True} if sends else {"type": _STREAM_READER} if in_streams else {}
                return {"kind": "stream"} | own | found
    # Transports of uvloop keep that in C: the client knows the address that it asks.
    owners = [value for frame in frames if (value := frame.variable("self")) is not None]
    owners += [inner for value in owners if (inner := value.get("_connection")) is not None]
    asked = [where for value in owners for name in _ASKED if (where := value.get(name)) is not None]
    addresses = [f"{host.text()}:{port.number()}" for each in asked for host, port in _host_and_port(each)]
    return {"kind": "stream", "peer": addresses[0], "address": addresses[0]} if addresses else {}


def transports_of(value: Object | None) -> Iterator[Object]:
    """The connections of an object of a client or server library."""
    for path in _TRANSPORTS:
        inner = value
        for name in path:
            inner = inner.get(name) if inner is not None else None
        if inner is not None and inner.kind != "NoneType":
            yield inner


def _host_and_port(where: Object) -> Iterator[tuple[Object, Object]]:
    """Host and port from a client's description of a server: a tuple that begins with them, or an object that has
    both."""
    host, port = where.elements()[:2] if len(where.elements()) > 1 else (where.get("host"), where.get("port"))
    if host is not None and host.text() and port is not None and port.number():
        yield host, port


def _connection(transport: Object) -> dict[str, Any]:
    """Address and descriptor of what a transport is connected to."""
    extra, descriptor = transport.get("_extra"), transport.get("_sock_fd") or transport.get("_fileno")
    peer = dict(extra.items()).get("peername") if extra is not None else None
    parts = peer.elements() if peer is not None else []
    number = descriptor.number() if descriptor is not None else None
    if len(parts) < 2:
        # A pipe, or a local socket.
        return {"descriptor": number} if number is not None and number >= 0 else {}
    return {"peer": f"{parts[0].text()}:{parts[1].number()}", "descriptor": number}


def _name_of(value: Object | None, place: Frame, sources: Sources) -> str:
    """What the user's line calls an object."""
    named = [(call.name, resolve(call.receiver, place)) for call in sources.calls_at(place)]
    own = [name for name, found in named if value is not None and found is not None and found.address == value.address]
    return own[-1] if own else ""


def _primitive(kind: str, frame: Frame, frames: list[Frame], user: int, sources: Sources) -> dict[str, Any]:
    value = queue_of(frame) or frame.variable("self")
    name = _name_of(value, frames[user], sources)
    method = frame.function.rpartition(".")[2]
    calls = [call for call in sources.calls_at(frames[user]) if call.method == method and call.receiver]
    called = [call.name for call in calls]
    replaced = next((e for e in called if not name and was_replaced(value, e, [method], frames[user], sources)), "")
    # What a function of the user gives has no other name.
    made = next((call.name for call in calls if resolve(call.receiver, frames[user]) is None), "")
    wait: dict[str, Any] = {
        "kind": kind,
        "name": name or replaced or made,
        "replaced": bool(replaced),
        "type": f"{frame.file.split('/')[-2]}.{value.kind}" if value is not None else "asyncio",
    }
    if value is None:
        return wait
    wait["key"] = f"{value.address:#x}"
    if kind == "event" and value.kind != "Event":
        wait["kind"] = value.kind.lower()
    if wait["kind"] == "condition":
        wait |= sources.awaited_condition(frames[user])
    if wait["kind"] == "barrier":
        wait |= barrier_facts(value)
    if kind == "lock" and value.kind != "Lock":
        wait["kind"] = "semaphore"
    if kind.startswith("queue_"):
        wait |= queue_facts(value)
    if wait["kind"] in ("lock", "semaphore"):
        wait["choices"] = [{"name": name, "key": wait["key"], "owner": None}]
    if kind == "stream" and (transport := value.get("_transport")) is not None:
        wait |= _connection(transport)
    if kind == "child":
        process = value.get("pid")
        wait["pid"] = process.number() if process is not None else None
    return wait
