"""Functions of torch and Ray that wait: collectives, process groups, data loaders, devices, and tasks of Ray."""

from collections.abc import Sequence

from .looking import Looking, Wait, WaitRules, has_timeout, ray_id, ray_queue_wait
from .objects import Frame, Object, is_a
from .resolving import resolve
from .system_calls import kernel_wait

_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "barrier", "all_to_all", "gather", "scatter")
_TRANSFERS = ("send", "recv", "isend", "irecv", "batch_isend_irecv", "reduce", "monitored_barrier")


_RAY_WORKER = "ray/_private/worker.py"


def _ray_get(frame: Frame, looking: Looking) -> Wait:
    refs = frame.variable("object_refs") or frame.variable("ray_waitables") or frame.variable("refs")
    each = refs.elements() or [refs] if refs is not None else []
    tasks = [task for ref in each if (task := ray_task(ref))]
    place = looking.place
    calls = looking.sources.calls_at(place) if place is not None else []
    wait = {"kind": "ray_get", "tasks": tasks, "count": len(each), "methods": [call.method for call in calls]}
    named = [resolve(call.receiver, place) for call in calls if call.method == "ready"] if place is not None else []
    return wait | {
        "asked_in": looking.sources.polled(place) if place is not None else "",
        "timeout": has_timeout(frame),
        "groups": [ray_id(group.get("id")) for group in named if group is not None],
    }


def _ray_queue(frame: Frame, looking: Looking) -> Wait:
    asking = next((each for each in looking.frames if each.file.endswith(_RAY_WORKER)), None)
    tasks = _ray_get(asking, looking)["tasks"] if asking is not None else []
    return ray_queue_wait(frame, looking.name(frame.variable("self"), frame.function.rpartition(".")[2]), tasks)


def _placement_group(frame: Frame, looking: Looking) -> Wait:
    group = frame.variable("self")
    ids = [ray_id(group.get("id"))] if group is not None else []
    return {"kind": "ray_get", "tasks": [], "count": 1, "methods": ["ready"], "groups": ids, "timeout": True}


def ray_task(ref: Object) -> str:
    """The task that makes an object, as Ray says in the process itself; elsewhere the bytes that hold its id."""
    value, raw = getattr(ref, "value", None), getattr(ref, "raw", None)
    if raw is not None and is_a(ref, "ObjectRef"):
        return ray_id(ref)
    try:
        return str(value.task_id().hex()) if value is not None else ""
    except (AttributeError, TypeError, RuntimeError):
        return ""


def _collective(frame: Frame, looking: Looking) -> Wait:
    peer = frame.variable("dst") or frame.variable("src")
    number = peer.number() if peer is not None else None
    group = frame.variable("group")
    named = f"{group.address:#x}" if group is not None and group.kind != "NoneType" else ""
    tag = frame.variable("tag")
    wait = {"kind": "collective", "op": frame.function.rpartition(".")[2], "peer": number, "group": named}
    return wait | {"tag": tag.number() if tag is not None else None}


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
    return {"kind": "data_loader", "workers": found, "next": _next_worker(value, found), "timeout": has_timeout(frame)}


def _next_worker(loader: Object | None, workers: Sequence[Wait]) -> int | None:
    """The process that has the batch which comes next; batches are given out in order."""
    number = loader.get("_rcvd_idx") if loader is not None else None
    tasks = loader.get("_task_info") if loader is not None else None
    if number is None or tasks is None:
        return None
    task = dict(tasks.items()).get(str(number.number()))
    first = next(iter(task.elements()), None) if task is not None else None
    return next((each["pid"] for each in workers if first is not None and each["number"] == first.number()), None)


def _cuda(frame: Frame, looking: Looking) -> Wait:
    return {"kind": "cuda"}


def _collective_names() -> frozenset[str]:
    endings = ("", "_single", "_tensor", "_into_tensor", "_object", "_object_list", "_coalesced")
    return frozenset(name + ending for name in _COLLECTIVES + _TRANSFERS for ending in endings)


DISTRIBUTED_RULES: WaitRules = (
    ("torch/distributed/distributed_c10d.py", _collective_names(), _collective),
    ("torch/distributed/_functional_collectives.py", _collective_names() | {"wait_tensor"}, _collective),
    ("torch/distributed/utils.py", frozenset({"_sync_params_and_buffers", "_sync_module_states"}), _parameters),
    ("torch/distributed/utils.py", frozenset({"_verify_param_shape_across_processes"}), _parameters),
    ("torch/nn/parallel/distributed.py", frozenset({"_distributed_broadcast_coalesced"}), _parameters),
    ("ray/util/placement_group.py", frozenset({"wait"}), _placement_group),
    ("ray/util/queue.py", frozenset({"get", "put"}), _ray_queue),
    ("torch/utils/data/dataloader.py", frozenset({"_try_get_data", "_get_data", "_next_data"}), _data_loader),
    (_RAY_WORKER, frozenset({"get", "wait", "get_objects"}), _ray_get),
    ("torch/cuda/__init__.py", frozenset({"synchronize"}), _cuda),
    ("torch/cuda/streams.py", frozenset({"synchronize", "wait"}), _cuda),
    ("torch/distributed/rendezvous.py", frozenset({"_env_rendezvous_handler", "_tcp_rendezvous_handler"}), _rendezvous),
    ("torch/distributed/distributed_c10d.py", frozenset({"init_process_group", "new_group"}), _rendezvous),
    ("torch/autograd/graph.py", frozenset({"_engine_run_backward"}), _backward),
)
