"""Functions of torch and Ray that wait: collectives, process groups, data loaders, devices, and tasks of Ray."""

import ast
from collections.abc import Sequence

from ..code.called import calls_ahead
from ..code.origins import given_to, last_name, own_nodes
from ..code.places import is_users
from ..code.resolving import resolve, texts_of
from ..code.source import SETTING, Sources, without_options
from ..reading.kernel import Facts
from ..reading.objects import Frame, Object, is_a
from .looking import DEFAULT_GROUP, Looking, Wait, WaitRules, has_timeout, ray_id, ray_queue_wait
from .system_calls import kernel_wait

_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "barrier", "all_to_all", "gather", "scatter")
_TRANSFERS = ("send", "recv", "isend", "irecv", "batch_isend_irecv", "reduce", "monitored_barrier")


_MAKES_GROUP = "_new_process_group_helper"
_RANKS = ("global_ranks_in_group", "ranks")
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


def objects_tried(frame: Frame, sources: Sources) -> list[str]:
    """The objects of Ray that the loop around the line tries to get, by the ids of the tasks that made them."""
    loops = sources.loops_around(frame)
    calls = [node for node in own_nodes(loops[-1]) if isinstance(node, ast.Call) and node.args] if loops else []
    asked = [call.args[0] for call in calls if ast.unparse(call.func) in ("ray.get", "ray.wait")]
    values = [value for each in asked if (value := resolve(each, frame)) is not None]
    refs = [ref for value in values for ref in value.elements() or [value] if is_a(ref, "ObjectRef")]
    return [task for ref in refs if (task := ray_task(ref))]


def given_results(frames: Sequence[Frame], sources: Sources) -> list[Wait]:
    """Per call of Ray in the user's functions, the tasks whose results are its arguments: by their ids, or by their
    names where the call is written in place. Only arguments themselves are waited for, not what is in them."""
    found = []
    for frame in (frame for frame in frames if is_users(frame.file)):
        function = sources.function(frame)
        for call in own_nodes(function) if function is not None else ():
            if not (name := _called_by_ray(call)) or not isinstance(call, ast.Call) or function is None:
                continue
            arguments = [*call.args, *(each.value for each in call.keywords)]
            inline = [made for each in arguments if (made := _called_by_ray(each))]
            values = [value for each in arguments for value in _values(each, frame, function)]
            refs = [task for value in values if is_a(value, "ObjectRef") and (task := ray_task(value))]
            if inline or refs:
                found.append({"name": name, "tasks": refs, "inline": inline})
    return found


def _called_by_ray(node: ast.AST) -> str:
    """The method or function that `.remote(...)` calls."""
    function = node.func if isinstance(node, ast.Call) else None
    if not isinstance(function, ast.Attribute) or function.attr != "remote":
        return ""
    return last_name(without_options(function.value))


def _values(argument: ast.expr, frame: Frame, function: ast.AST) -> list[Object]:
    """What an argument stands for; a variable of a loop, for all that the loop goes through."""
    if isinstance(argument, ast.Starred):
        value = resolve(argument.value, frame)
        return value.elements() if value is not None else []
    tables = given_to(argument.id, function) if isinstance(argument, ast.Name) else ()
    looped = [table for each in tables if (table := resolve(each, frame)) is not None]
    own = resolve(argument, frame)
    return [*([own] if own is not None else []), *(each for table in looped for each in table.elements())]


def _collective(frame: Frame, looking: Looking) -> Wait:
    peer, number = (_first_number(frame, *names) for names in (("dst", "src"), ("group_dst", "group_src")))
    name, tag = frame.variable("group_name"), frame.variable("tag")
    wait = {"kind": "collective", "op": frame.function.rpartition(".")[2], "peer": peer}
    # Who sends to all may be told by its number in the group.
    wait |= {
        "group": _group(frame.variable("group")),
        "number": number,
        "group_name": name.text() if name is not None else None,
    }
    return wait | {"tag": tag.number() if tag is not None else None}


def _first_number(frame: Frame, *names: str) -> int | None:
    values = [value for name in names if (value := frame.variable(name)) is not None]
    return next((number for value in values if (number := value.number()) is not None), None)


def _group(group: Object | None) -> str:
    return f"{group.address:#x}" if group is not None and group.kind != "NoneType" else DEFAULT_GROUP


def _backward(frame: Frame, looking: Looking) -> Wait:
    """The autograd engine waits in C for the collectives of DDP; where nothing is distributed, it computes."""
    found = kernel_wait(looking) or {"kind": "unknown"}
    if frame is looking.frames[0] and looking.kernel.get("state") == "sleeping" and found["kind"] == "unknown":
        return {"kind": "collective", "op": "backward", "peer": None, "group": ""}
    return found


def _parameters(frame: Frame, looking: Looking) -> Wait:
    model = frame.variable("self")
    group = frame.variable("process_group") or (model.get("process_group") if model is not None else None)
    return {"kind": "collective", "op": "parameters", "peer": None, "group": _group(group) if group is not None else ""}


def _rendezvous(frame: Frame, looking: Looking) -> Wait:
    frames, call = looking.frames[: looking.user], frame.function.rpartition(".")[2]
    told: dict[str, int | None] = {}
    for name, own in (("rank", "group_rank"), ("world_size", "group_size")):
        names = (name, own) if call == _MAKES_GROUP else (name,)
        numbers = [number for each in frames if (number := _first_number(each, *names)) is not None]
        told[name] = next((number for number in numbers if number >= 0), None)
    wait = {"kind": "rendezvous", "call": call} | told
    if call == _MAKES_GROUP:
        # Libraries that name groups themselves give their ranks numbers of their own.
        group = _made_group(frames)["group"]
        return wait | {"call": f"group {group}" if group else call, "group": group}
    return wait | (_made_group(frames) if call == "new_group" else {"meets_at": _meeting_place(frames)})


def _meeting_place(frames: Sequence[Frame]) -> str:
    """HOST:PORT of the store where the ranks of a job look for each other; empty where it is not seen."""
    for frame in (frame for frame in frames if frame.file.endswith("torch/distributed/rendezvous.py")):
        host, port = frame.variable("hostname"), _first_number(frame, "port")
        if host is not None and host.text() and port is not None:
            return f"{host.text()}:{port}"
    return ""


def _made_group(frames: Sequence[Frame]) -> Wait:
    """The name of a group that is made, and the ranks that it takes to make it; None where these are not seen."""
    names = [value.text() for frame in frames if (value := frame.variable("group_name")) is not None]
    given = [value for frame in frames for each in _RANKS if (value := frame.variable(each)) is not None]
    ranks = [number for each in (given[0].elements() if given else ()) if (number := each.number()) is not None]
    counts = [count for frame in frames if (count := _first_number(frame, "rendezvous_count")) is not None]
    # At last all ranks of the job may have to meet, also those outside of the group.
    members = list(range(counts[0])) if counts and counts[0] != len(ranks) else ranks
    return {"group": next(filter(None, names), None), "members": members or None}


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


# What can be begun and waited for later: with one other rank, or with all.
TRANSFERS = frozenset({"isend", "irecv"})
BEGUN = (_collective_names() | TRANSFERS) - {"send", "recv", "monitored_barrier", "batch_isend_irecv"}

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
    (
        "torch/distributed/distributed_c10d.py",
        frozenset({"init_process_group", "new_group", _MAKES_GROUP}),
        _rendezvous,
    ),
    ("torch/autograd/graph.py", frozenset({"_engine_run_backward"}), _backward),
)


def keys_ahead(frames: Sequence[Frame], sources: Sources) -> dict[str, Facts]:
    """Where the current functions, or those that they call, will set each key of a torch.distributed store; of one that
    is not known yet, how it is written (`f'weights/{step}'`)."""
    own = [frame for frame in frames if is_users(frame.file)]
    found: dict[str, Facts] = {}
    for frame, inner in zip(own, (None, *own), strict=False):
        for place, call in calls_ahead(frame, inner, sources):
            setter = call.func if isinstance(call.func, ast.Attribute) and call.args else None
            if setter is None or setter.attr not in SETTING or not is_a(resolve(setter.value, place), "Store"):
                continue
            line = {"file": place.file, "line": call.lineno, "function": place.function}
            found |= {key: line for key in texts_of(call.args[0], place) if key not in found}
    return found
