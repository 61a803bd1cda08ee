"""Functions of the standard library, torch, Ray and others that wait, and what each of them waits for."""

from collections.abc import Callable
from typing import Any

from .looking import Looking, Wait, lock_key
from .objects import Frame, Object, exception_text, is_a
from .system_calls import kernel_wait

Rule = Callable[[Frame, Looking], Wait]
_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "barrier", "all_to_all", "gather", "scatter")
_REFERENCE_BYTES = 64
_LOCK_FILES = ("canonical", "lock_filename")
_TRANSFERS = ("send", "recv", "isend", "irecv", "batch_isend_irecv", "reduce", "monitored_barrier")


def library_wait(frame: Frame, looking: Looking) -> Wait | None:
    """The wait of a frame of a known function."""
    function = frame.function.rpartition(".")[2]
    for suffix, names, rule in _RULES:
        if frame.file.endswith(suffix) and function in names:
            return rule(frame, looking)
    return None


def _own(frame: Frame, kind: str, looking: Looking, *methods: str, **facts: Any) -> Wait:
    """A wait for the object whose method this is."""
    value = frame.variable("self")
    return {
        "kind": kind,
        "type": value.kind if value is not None else "",
        "name": looking.name(value, *methods),
        "key": f"{value.address:#x}" if value is not None else "",
        "timeout": _timeout(frame),
    } | facts


def _timeout(frame: Frame) -> bool:
    value = frame.variable("timeout")
    return value is not None and value.kind != "NoneType"


def _queue(frame: Frame, looking: Looking) -> Wait:
    value = frame.variable("self")
    action = frame.function.rpartition(".")[2]
    items, size = (
        (value.get("queue") or value.get("_queue"), value.get("maxsize")) if value is not None else (None, None)
    )
    facts = {
        "size": items.length() if items is not None else None,
        "limit": size.number() if size is not None else None,
    }
    return _own(frame, f"queue_{action}", looking, action, **facts)


def _process_queue(frame: Frame, looking: Looking) -> Wait:
    action = frame.function.rpartition(".")[2]
    wait = _own(frame, f"queue_{action}", looking, action, between="processes")
    value = frame.variable("self")
    pipe = value.get("_reader" if action == "get" else "_writer") if value is not None else None
    handle = pipe.get("_handle") if pipe is not None else None
    return wait | {"descriptor": handle.number() if handle is not None else None}


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
    return _own(frame, kinds.get(called, "managed"), looking, called, between="processes", method=called)


def _event(frame: Frame, looking: Looking) -> Wait:
    return _own(frame, "event", looking, "wait")


def _condition(frame: Frame, looking: Looking) -> Wait:
    value = frame.variable("self")
    lock = value.get("_lock") if value is not None else None
    return _own(frame, "condition", looking, "wait", "wait_for", lock=f"{lock.address:#x}" if lock is not None else "")


def _semaphore(frame: Frame, looking: Looking) -> Wait:
    wait = _own(frame, "semaphore", looking, "acquire", "__enter__")
    return wait | {"choices": [{"name": wait["name"], "key": wait["key"], "owner": None}]}


def _barrier(frame: Frame, looking: Looking) -> Wait:
    value = frame.variable("self")
    numbers = {name: value.get(f"_{name}") if value is not None else None for name in ("parties", "count")}
    counts = {name: each.number() if each is not None else None for name, each in numbers.items()}
    return _own(frame, "barrier", looking, "wait", **counts)


def _thread(frame: Frame, looking: Looking) -> Wait:
    value = frame.variable("self")
    name, ident = (value.get("_name"), value.get("_ident")) if value is not None else (None, None)
    return _own(frame, "thread", looking, "join") | {
        "thread": name.text() if name is not None else "",
        "ident": ident.number() if ident is not None else None,
    }


def _exit(frame: Frame, looking: Looking) -> Wait:
    return {"kind": "exit"}


def _future(frame: Frame, looking: Looking) -> Wait:
    return _own(frame, "future", looking, "result", "exception")


def _futures(frame: Frame, looking: Looking) -> Wait:
    return {"kind": "future", "name": "", "key": "", "timeout": _timeout(frame)}


def _process_lock(frame: Frame, looking: Looking) -> Wait:
    value = frame.variable("self")
    name = looking.name(value, "acquire", "__enter__")
    choice = {"name": name, "key": lock_key(value, name), "owner": None}
    return {"kind": "lock", "choices": [choice], "name": name, "key": choice["key"]}


def _child(frame: Frame, looking: Looking) -> Wait:
    value = frame.variable("self") or frame.variable("process")
    if frame.file.endswith("subprocess.py") and not is_a(value, "Popen"):
        value = next((v for v in frame.locals().values() if is_a(v, "Popen")), value)
    if is_a(value, "Popen") and value is not None and looking.ended(value):
        # It has ended, and somebody that it started keeps its output open.
        found = kernel_wait(looking)
        if found is not None and found["kind"] in ("pipe", "poll"):
            return found
    popen = (value.get("_popen") if value is not None else None) or value
    pid = popen.get("pid") if popen is not None else None
    name = value.get("_name") if value is not None else None
    return _own(frame, "child", looking, "wait", "join", "communicate") | {
        "pid": pid.number() if pid is not None else None,
        "process": name.text() if name is not None else "",
    }


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


def _ray_get(frame: Frame, looking: Looking) -> Wait:
    refs = frame.variable("object_refs") or frame.variable("ray_waitables") or frame.variable("refs")
    each = refs.elements() or [refs] if refs is not None else []
    tasks = [task for ref in each if (task := _ray_task(ref))]
    calls = [call.method for call in looking.sources.calls_at(looking.place)] if looking.place is not None else []
    wait = {"kind": "ray_get", "tasks": tasks, "count": len(each), "methods": calls}
    return wait | {"timeout": _timeout(frame)}


def _ray_task(ref: Object) -> str:
    """The task that makes an object, as Ray says in the process itself; elsewhere the bytes that hold its id."""
    value, raw = getattr(ref, "value", None), getattr(ref, "raw", None)
    if raw is not None and is_a(ref, "ObjectRef"):
        return str(raw(_REFERENCE_BYTES).hex())
    try:
        return str(value.task_id().hex()) if value is not None else ""
    except (AttributeError, TypeError, RuntimeError):
        return ""


def _debugger(frame: Frame, looking: Looking) -> Wait:
    return {"kind": "debugger"}


def _collective(frame: Frame, looking: Looking) -> Wait:
    peer = frame.variable("dst") or frame.variable("src")
    number = peer.number() if peer is not None else None
    group = frame.variable("group")
    named = f"{group.address:#x}" if group is not None and group.kind != "NoneType" else ""
    return {"kind": "collective", "op": frame.function.rpartition(".")[2], "peer": number, "group": named}


def _backward(frame: Frame, looking: Looking) -> Wait:
    """The autograd engine waits in C for the collectives of DDP; where nothing is distributed, it computes."""
    found = kernel_wait(looking) or {"kind": "unknown"}
    if frame is looking.frames[0] and looking.kernel.get("state") == "sleeping" and found["kind"] == "unknown":
        return {"kind": "collective", "op": "backward", "peer": None, "group": ""}
    return found


def _parameters(frame: Frame, looking: Looking) -> Wait:
    return {"kind": "collective", "op": "parameters", "peer": None, "group": ""}


def _rendezvous(frame: Frame, looking: Looking) -> Wait:
    told: dict[str, int | None] = {}
    for name in ("rank", "world_size"):
        values = (each.variable(name) for each in looking.frames[: looking.user])
        numbers = [value.number() for value in values if value is not None]
        told[name] = next((number for number in numbers if number is not None and number >= 0), None)
    return {"kind": "rendezvous", "call": frame.function.rpartition(".")[2]} | told


def _data_loader(frame: Frame, looking: Looking) -> Wait:
    value = frame.variable("self")
    workers = value.get("_workers") if value is not None else None
    found = []
    for number, worker in enumerate(workers.elements() if workers is not None else ()):
        popen = worker.get("_popen")
        pid = popen.get("pid") if popen is not None else None
        found.append(
            {"number": number, "pid": pid.number() if pid is not None else None, "ended": looking.ended(worker)}
        )
    return {"kind": "data_loader", "workers": found, "timeout": _timeout(frame)}


def _message(frame: Frame, looking: Looking) -> Wait:
    return {"kind": "message", "name": looking.name(frame.variable("self"), frame.function.rpartition(".")[2])}


def _cuda(frame: Frame, looking: Looking) -> Wait:
    return {"kind": "cuda"}


def _loop(frame: Frame, looking: Looking) -> Wait:
    value = frame.variable("self")
    return {"kind": "event_loop", "key": f"{value.address:#x}" if value is not None else ""}


def _connection(frame: Frame, looking: Looking) -> Wait:
    found = kernel_wait(looking)
    return found if found is not None else {"kind": "pipe", "file": {}}


def _file_lock(frame: Frame, looking: Looking) -> Wait:
    value = frame.variable("self")
    path = value.get("lock_file") or value.get("_lock_file") if value is not None else None
    context = value.get("_context") if value is not None else None
    if context is not None:
        path = context.get("lock_file")
    locals_of = (each.variable(name) for each in looking.frames[: looking.user] for name in _LOCK_FILES)
    texts = (value.text() for value in (path, *locals_of) if value is not None)
    return {
        "kind": "file_lock",
        "path": next(filter(None, texts), ""),
        "name": looking.name(value, "acquire"),
    }


def _urllib3_retry(frame: Frame, looking: Looking) -> Wait:
    value = frame.variable("self")
    history = value.get("history") if value is not None else None
    tries = history.elements() if history is not None else []
    last = tries[-1].elements() if tries else []
    url, status = (last[1].text() or "", last[3].number()) if len(last) > 3 else ("", None)
    answers = f": {len(tries)} times so far" + (f", the last answer was status {status}" if status else "")
    return {"kind": "sleep", "polls": f"in urllib3 that asks {url or 'a server'} again{answers}"}


def _tenacity(frame: Frame, looking: Looking) -> Wait:
    state = frame.variable("retry_state")
    number, outcome = (state.get("attempt_number"), state.get("outcome")) if state is not None else (None, None)
    error = outcome.get("_exception") if outcome is not None else None
    raised = f", the last time it raised {exception_text(error)}" if is_a(error, "BaseException") and error else ""
    times = f": {number.number()} times so far" if number is not None else ""
    return {"kind": "sleep", "polls": f"in tenacity that tries again{times}{raised}"}


def _waiting_method(frame: Frame, looking: Looking) -> Wait:
    owner = frame.function.rpartition(".")[0]
    if not owner and frame in looking.frames:
        # Before Python 3.11 frames do not know their class; an event waits in a condition, a barrier in `_wait`.
        inner = [each.function for each in looking.frames[: list(looking.frames).index(frame)]]
        owner = "Barrier" if "_wait" in inner else "Event" if "wait" in inner else ""
    return _WAITS.get(owner, _condition)(frame, looking)


def _between_processes(frame: Frame, looking: Looking) -> Wait:
    return _waiting_method(frame, looking) | {"between": "processes"}


def _collective_names() -> frozenset[str]:
    endings = ("", "_single", "_tensor", "_into_tensor", "_object", "_object_list", "_coalesced")
    return frozenset(name + ending for name in _COLLECTIVES + _TRANSFERS for ending in endings)


_WAITS: dict[str, Rule] = {"Event": _event, "Condition": _condition, "Barrier": _barrier}

_RULES: tuple[tuple[str, frozenset[str], Rule], ...] = (
    ("ray/util/debugpy.py", frozenset({"set_trace", "_debugpy_breakpoint", "_debugpy_excepthook"}), _debugger),
    ("ray/util/rpdb.py", frozenset({"set_trace", "_post_mortem", "post_mortem"}), _debugger),
    ("/pdb.py", frozenset({"set_trace", "interaction", "post_mortem"}), _debugger),
    ("torch/distributed/distributed_c10d.py", _collective_names(), _collective),
    ("torch/distributed/_functional_collectives.py", _collective_names() | {"wait_tensor"}, _collective),
    ("torch/distributed/utils.py", frozenset({"_sync_params_and_buffers", "_sync_module_states"}), _parameters),
    ("torch/distributed/utils.py", frozenset({"_verify_param_shape_across_processes"}), _parameters),
    ("torch/nn/parallel/distributed.py", frozenset({"_distributed_broadcast_coalesced"}), _parameters),
    ("threading.py", frozenset({"wait", "wait_for"}), _waiting_method),
    ("ray/util/queue.py", frozenset({"get", "put"}), _ray_get),
    ("/queue.py", frozenset({"get", "put", "join"}), _queue),
    ("multiprocessing/queues.py", frozenset({"get", "put", "join"}), _process_queue),
    ("threading.py", frozenset({"_shutdown"}), _exit),
    ("threading.py", frozenset({"join", "_wait_for_tstate_lock"}), _thread),
    ("concurrent/futures/_base.py", frozenset({"result", "exception"}), _future),
    ("concurrent/futures/_base.py", frozenset({"wait", "as_completed", "result_iterator"}), _futures),
    ("torch/utils/data/dataloader.py", frozenset({"_try_get_data", "_get_data", "_next_data"}), _data_loader),
    ("multiprocessing/synchronize.py", frozenset({"__enter__", "acquire"}), _process_lock),
    ("multiprocessing/synchronize.py", frozenset({"wait", "wait_for"}), _between_processes),
    ("multiprocessing/managers.py", frozenset({"_callmethod"}), _managed),
    ("multiprocessing/process.py", frozenset({"join"}), _child),
    ("multiprocessing/pool.py", frozenset({"get", "wait", "next", "map", "apply", "starmap"}), _future),
    ("multiprocessing/connection.py", frozenset({"recv", "recv_bytes", "accept", "poll", "wait"}), _connection),
    ("subprocess.py", frozenset({"wait", "communicate", "run", "check_output", "call", "check_call"}), _child),
    ("ray/_private/worker.py", frozenset({"get", "wait", "get_objects"}), _ray_get),
    ("importlib._bootstrap>", frozenset({"acquire"}), _import),
    ("zmq/sugar/socket.py", frozenset({"recv", "recv_multipart", "recv_pyobj", "recv_json", "poll"}), _message),
    ("zmq/sugar/poll.py", frozenset({"poll"}), _message),
    ("filelock/_api.py", frozenset({"acquire", "__enter__"}), _file_lock),
    ("urllib3/util/retry.py", frozenset({"sleep"}), _urllib3_retry),
    ("tenacity/__init__.py", frozenset({"__call__"}), _tenacity),
    ("torch/cuda/__init__.py", frozenset({"synchronize"}), _cuda),
    ("torch/cuda/streams.py", frozenset({"synchronize", "wait"}), _cuda),
    ("torch/distributed/rendezvous.py", frozenset({"_env_rendezvous_handler", "_tcp_rendezvous_handler"}), _rendezvous),
    ("torch/distributed/distributed_c10d.py", frozenset({"init_process_group", "new_group"}), _rendezvous),
    ("asyncio/base_events.py", frozenset({"run_forever", "run_until_complete"}), _loop),
    ("threading.py", frozenset({"acquire", "__enter__"}), _semaphore),
    ("torch/autograd/graph.py", frozenset({"_engine_run_backward"}), _backward),
)
