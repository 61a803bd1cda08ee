"""Functions that wait, and what each of them waits for; here those of the standard library."""

from collections.abc import Sequence

from ..reading.objects import Frame, is_a
from .client_calls import CLIENT_RULES
from .distributed_calls import DISTRIBUTED_RULES
from .looking import (
    Looking,
    Wait,
    WaitRule,
    WaitRules,
    barrier_facts,
    has_timeout,
    is_feeder,
    lock_key,
    own_wait,
    queue_facts,
    queue_of,
    serves,
    shared_key,
    shared_semaphore,
)
from .system_calls import kernel_wait

_HANDLING = frozenset({"_handle_request_noblock", "process_request", "service_actions"})


def library_wait(frames: Sequence[Frame], looking: Looking) -> Wait | None:
    """The wait of the outermost frame whose function is known."""
    if frames and (turn := _write_turn(frames[0])):
        return turn
    for number in reversed(range(len(frames))):
        frame, called = frames[number], frames[number - 1].function.rpartition(".")[2] if number else ""
        # Who handles a request does not wait for one.
        if serves(frame) and called not in _HANDLING:
            return {"kind": "serving"}
        if (found := _known_wait(frame, looking)) is not None:
            return _as_queue(found, frames, looking) | _turn(found, frames[0])
    return None


def _write_turn(frame: Frame) -> Wait:
    """The thread that hands on the items of a queue of multiprocessing, while one of another process writes."""
    lock = frame.variable("writelock") if is_feeder(frame) else None
    key = shared_key(lock)
    return {"kind": "lock", "turn": True, "name": "", "key": key, "choices": [_choice(key)]} if key else {}


def _choice(key: str) -> Wait:
    return {"name": "", "key": key, "owner": None}


def _turn(wait: Wait, innermost: Frame) -> Wait:
    """Processes take turns at a queue: only the one that has its lock waits for an item, the others for the lock."""
    locked = wait["kind"] == "queue_get" and innermost.file.endswith("multiprocessing/synchronize.py")
    return {"in_turn": True} if locked else {}


def _known_wait(frame: Frame, looking: Looking) -> Wait | None:
    function = frame.function.rpartition(".")[2]
    for suffix, names, rule in (*DISTRIBUTED_RULES, *CLIENT_RULES, *_RULES):
        if frame.file.endswith(suffix) and function in names:
            return rule(frame, looking)
    return None


def _queue(frame: Frame, looking: Looking) -> Wait:
    action = frame.function.rpartition(".")[2]
    wait = own_wait(frame, f"queue_{action}", looking, action)
    queue = queue_of(frame)
    return wait | queue_facts(queue) | {"name": looking.name(queue, action)} if queue is not None else wait


def _as_queue(wait: Wait, frames: Sequence[Frame], looking: Looking) -> Wait:
    """Where a queue of another library waits for a condition of its own, the queue is meant."""
    own = wait["kind"] in ("condition", "event", "semaphore", "lock")
    queue = next((frame for frame in reversed(frames) if own and queue_of(frame) is not None), None)
    return _queue(queue, looking) if queue is not None else wait


def _process_queue(frame: Frame, looking: Looking) -> Wait:
    action = frame.function.rpartition(".")[2]
    wait = own_wait(frame, f"queue_{action}", looking, action, between="processes")
    value = frame.variable("self")
    pipe = value.get("_reader" if action == "get" else "_writer") if value is not None else None
    handle = pipe.get("_handle") if pipe is not None else None
    facts = queue_facts(value) if value is not None else {}
    wait |= {
        "size": facts.get("size"),
        "limit": facts.get("limit"),
        "descriptor": handle.number() if handle is not None else None,
    }
    return wait | (_rest_of_item(looking.frames) if action == "get" else {})


def _rest_of_item(frames: Sequence[Frame]) -> Wait:
    """How much of a message is missing that has begun to come: its header, which tells its size, has been read."""
    reading = {
        frame.function.rpartition(".")[2]: frame
        for frame in frames
        if frame.file.endswith("multiprocessing/connection.py")
    }
    values = [
        reading[function].variable(name) if function in reading else None
        for function, name in (("_recv_bytes", "size"), ("_recv", "remaining"))
    ]
    size, missing = (value.number() if value is not None else None for value in values)
    return {"rest_of_item": {"size": size, "missing": missing}} if size and missing else {}


def _managed(frame: Frame, looking: Looking) -> Wait:
    """A method of an object that a `multiprocessing.Manager` holds in a process of its own."""
    value, method = frame.variable("self"), frame.variable("methodname")
    called = (method.text() if method is not None else "") or ""
    if value is not None and called == "acquire":
        return _process_lock(frame, looking)
    proxy = value.kind if value is not None else ""
    kinds = {"wait": proxy.removesuffix("Proxy").lower()} if proxy.endswith("Proxy") else {}
    if "Queue" in proxy:
        kinds = {"get": "queue_get", "put": "queue_put", "join": "queue_join"}
    return own_wait(frame, kinds.get(called, "managed"), looking, called, between="processes", method=called)


def _event(frame: Frame, looking: Looking) -> Wait:
    return own_wait(frame, "event", looking, "wait")


def _condition(frame: Frame, looking: Looking) -> Wait:
    value = frame.variable("self")
    if any(call.method == "_acquire_restore" for call in looking.sources.calls_at(looking.frames[0])):
        return _lock_of(frame, looking)
    lock = value.get("_lock") if value is not None else None
    return own_wait(
        frame,
        "condition",
        looking,
        "wait",
        "wait_for",
        lock=f"{lock.address:#x}" if lock is not None else "",
        **(looking.sources.awaited_condition(looking.place) if looking.place is not None else {}),
    )


def _lock_of(frame: Frame, looking: Looking) -> Wait:
    """A condition's own lock: to enter it, or to go on after it was notified."""
    value = frame.variable("self")
    name = looking.name(value, "wait", "wait_for", "__enter__")
    lock = value.get("_lock") or value if value is not None else None
    owner = lock.owner() if lock is not None else None
    choice = {"name": name, "key": lock_key(value, name), "owner": owner}
    return {"kind": "lock", "choices": [choice], "name": name, "key": choice["key"]}


def _semaphore(frame: Frame, looking: Looking) -> Wait:
    value = frame.variable("self")
    if is_a(value, "Condition"):
        return _lock_of(frame, looking)
    limit = value.get("_initial_value") if value is not None else None
    wait = own_wait(frame, "semaphore", looking, "acquire", "__enter__", limit=limit.number() if limit else None)
    return wait | {"choices": [{"name": wait["name"], "key": wait["key"], "owner": None}]}


def _barrier(frame: Frame, looking: Looking) -> Wait:
    value = frame.variable("self")
    return own_wait(frame, "barrier", looking, "wait", **(barrier_facts(value) if value is not None else {}))


def _thread(frame: Frame, looking: Looking) -> Wait:
    value = frame.variable("self")
    name, ident = (value.get("_name"), value.get("_ident")) if value is not None else (None, None)
    return own_wait(frame, "thread", looking, "join") | {
        "thread": name.text() if name is not None else "",
        "ident": ident.number() if ident is not None else None,
    }


def _exit(frame: Frame, looking: Looking) -> Wait:
    return {"kind": "exit"}


def _undrained(frame: Frame, looking: Looking) -> Wait:
    """A process ends only when all that it has put in a queue of multiprocessing has been handed on."""
    feeder = frame.variable("thread")
    ident, name = (feeder.get("_ident"), feeder.get("_name")) if feeder is not None else (None, None)
    return {
        "kind": "undrained",
        "ident": ident.number() if ident is not None else None,
        "thread": name.text() if name is not None else "",
    }


def _future(frame: Frame, looking: Looking) -> Wait:
    return own_wait(frame, "future", looking, "result", "exception")


def _pool_result(frame: Frame, looking: Looking) -> Wait:
    value = frame.variable("self")
    pool = value if is_a(value, "Pool") else value.get("_pool") if value is not None else None
    most = pool.get("_maxtasksperchild") if pool is not None else None
    return _future(frame, looking) | {"keeps_workers": most is not None and most.kind == "NoneType"}


def _futures(frame: Frame, looking: Looking) -> Wait:
    return {"kind": "future", "name": "", "key": "", "timeout": has_timeout(frame)}


def _process_lock(frame: Frame, looking: Looking) -> Wait:
    value = frame.variable("self")
    name = looking.name(value, "acquire", "__enter__")
    choice = {"name": name, "key": lock_key(value, name), "owner": None}
    if value is not None and "Semaphore" in value.kind:
        return shared_semaphore(value, name)
    return {"kind": "lock", "choices": [choice], "name": name, "key": choice["key"]}


def _shared_value(frame: Frame, looking: Looking) -> Wait:
    """A value of multiprocessing takes its own lock to be read or written; this code is made at run time."""
    value, place = frame.variable("self"), looking.place
    named = looking.sources.names(place) if value is not None and place is not None else ()
    name = next((text for each, text in named if value is not None and each.address == value.address), "")
    lock = value.get("_lock") if value is not None else None
    choice = {"name": name, "key": lock_key(lock, name), "owner": None}
    return {"kind": "lock", "choices": [choice], "name": name, "key": choice["key"]}


def _child(frame: Frame, looking: Looking) -> Wait:
    value = frame.variable("self") or frame.variable("process")
    if frame.file.endswith("subprocess.py") and not is_a(value, "Popen"):
        # `check_output` and `call` start the process in a function that they call.
        inner = [v for each in looking.frames[: looking.user] for v in each.locals().values()]
        value = next((v for v in inner if is_a(v, "Popen")), value)
    if is_a(value, "Popen") and value is not None and looking.ended(value):
        # It has ended, and a process that it started keeps its output open.
        found = kernel_wait(looking)
        if found is not None and found["kind"] in ("pipe", "poll"):
            return found
    popen = (value.get("_popen") if value is not None else None) or value
    pid = popen.get("pid") if popen is not None else None
    name = value.get("_name") if value is not None else None
    return own_wait(frame, "child", looking, "wait", "join", "communicate") | {
        "pid": pid.number() if pid is not None else None,
        "process": name.text() if name is not None else "",
        "at_exit": any(map(_joins_children, looking.frames)),
    }


def _joins_children(frame: Frame) -> bool:
    """What multiprocessing does before a process ends: it waits for the children that are not daemons."""
    return frame.file.endswith("multiprocessing/util.py") and frame.function == "_exit_function"


def _import(frame: Frame, looking: Looking) -> Wait:
    value = frame.variable("self")
    name, owner = (value.get("name"), value.get("owner")) if value is not None else (None, None)
    if owner is not None and owner.kind == "list":
        owner = next(iter(owner.elements()), None)
    return {
        "kind": "import",
        "name": (name.text() if name is not None else "") or "",
        "key": f"{value.address:#x}" if value is not None else "",
        "owner": owner.number() if owner is not None else None,
    }


def _debugger(frame: Frame, looking: Looking) -> Wait:
    return {"kind": "debugger"}


def _idle(frame: Frame, looking: Looking) -> Wait:
    return {"kind": "idle"}


def _loop(frame: Frame, looking: Looking) -> Wait:
    if any(map(_ends_its_threads, looking.frames)):
        return {"kind": "exit", "over": "what asyncio.run was given"}
    value = frame.variable("self")
    key = f"{value.address:#x}" if value is not None else ""
    return {"kind": "event_loop", "key": key, "listens": bool(looking.kernel.get("listens"))}


def _ends_its_threads(frame: Frame) -> bool:
    """Whether asyncio.run is over and waits for the threads of its loop (`asyncio.to_thread`) to end."""
    closes = frame.file.endswith("asyncio/runners.py") and frame.function.rpartition(".")[2] == "close"
    runner = frame.variable("self") if closes else None
    loop = runner.get("_loop") if runner is not None else None
    called, pool = (loop.get(f"_{each}") if loop else None for each in ("executor_shutdown_called", "default_executor"))
    return called is not None and bool(called.number()) and is_a(pool, "ThreadPoolExecutor")


def _connection(frame: Frame, looking: Looking) -> Wait:
    found = kernel_wait(looking)
    return found if found is not None else {"kind": "pipe", "file": {}}


def _waiting_method(frame: Frame, looking: Looking) -> Wait:
    owner = frame.function.rpartition(".")[0]
    if not owner and frame in looking.frames:
        # Before Python 3.11 frames do not know their class; an event waits in a condition, a barrier in `_wait`.
        inner = [each.function for each in looking.frames[: list(looking.frames).index(frame)]]
        owner = "Barrier" if "_wait" in inner else "Event" if "wait" in inner else ""
    return _WAITS.get(owner, _condition)(frame, looking)


def _between_processes(frame: Frame, looking: Looking) -> Wait:
    return _waiting_method(frame, looking) | {"between": "processes"}


_WAITS: dict[str, WaitRule] = {"Event": _event, "Condition": _condition, "Barrier": _barrier}

_RULES: WaitRules = (
    ("ray/util/debugpy.py", frozenset({"set_trace", "_debugpy_breakpoint", "_debugpy_excepthook"}), _debugger),
    ("ray/util/rpdb.py", frozenset({"set_trace", "_post_mortem", "post_mortem"}), _debugger),
    ("/pdb.py", frozenset({"set_trace", "interaction", "post_mortem"}), _debugger),
    ("threading.py", frozenset({"wait", "wait_for"}), _waiting_method),
    ("/queue.py", frozenset({"get", "put", "join"}), _queue),
    ("multiprocessing/queues.py", frozenset({"get", "put", "join"}), _process_queue),
    ("threading.py", frozenset({"_shutdown"}), _exit),
    ("multiprocessing/queues.py", frozenset({"_finalize_join"}), _undrained),
    ("threading.py", frozenset({"join", "_wait_for_tstate_lock"}), _thread),
    ("concurrent/futures/_base.py", frozenset({"result", "exception"}), _future),
    ("concurrent/futures/_base.py", frozenset({"wait", "as_completed", "result_iterator"}), _futures),
    ("multiprocessing/synchronize.py", frozenset({"__enter__", "acquire"}), _process_lock),
    ("<string>", frozenset({"getvalue", "setvalue"}), _shared_value),
    ("multiprocessing/synchronize.py", frozenset({"wait", "wait_for"}), _between_processes),
    ("multiprocessing/managers.py", frozenset({"_callmethod"}), _managed),
    ("multiprocessing/process.py", frozenset({"join"}), _child),
    ("multiprocessing/pool.py", frozenset({"get", "wait", "next", "map", "apply", "starmap"}), _pool_result),
    ("multiprocessing/connection.py", frozenset({"recv", "recv_bytes", "accept", "poll", "wait"}), _connection),
    ("subprocess.py", frozenset({"wait", "communicate", "run", "check_output", "call", "check_call"}), _child),
    ("ray/_private/worker.py", frozenset({"main_loop"}), _idle),
    ("importlib._bootstrap>", frozenset({"acquire"}), _import),
    ("asyncio/base_events.py", frozenset({"run_forever", "run_until_complete"}), _loop),
    ("asyncio/runners.py", frozenset({"run"}), _loop),
    ("threading.py", frozenset({"acquire", "__enter__"}), _semaphore),
)
