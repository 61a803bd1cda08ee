"""What Ray knows about this process, read from the Ray that is already imported."""

import re
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from .stacks import chain

_WORD_AFTER_ACRONYM = re.compile(r"([A-Z]{2,})([A-Z][a-z])")
_WORD_START = re.compile(r"([a-z0-9])([A-Z])")
_WORKER_MODE = 1
_NODES_EVERY_S = 0.5
_HERE = str(Path(__file__).parent)


@dataclass(frozen=True)
class RayFacts:
    """`kind` is driver, actor, task or process (no Ray here); `idle` is a pooled worker with nothing to do."""

    kind: str = "process"
    role: str = ""
    rank: int | None = None
    idle: bool = False
    actor_name: str = ""
    actor_class: str = ""
    task: str = ""
    cluster: str = ""
    dashboard: str = ""

    def to_dict(self) -> dict[str, str]:
        facts = {"actor": self.actor_name, "class": self.actor_class, "task": self.task}
        facts |= {"cluster": self.cluster, "dashboard": self.dashboard}
        return {name: value for name, value in facts.items() if value}


def snake_case(name: str) -> str:
    """A class as a worker's name, acronyms kept whole: DTensorPolicyWorker is dtensor_policy_worker."""
    return _WORD_START.sub(r"\1_\2", _WORD_AFTER_ACRONYM.sub(r"\1_\2", name)).lower()


def is_ray_worker() -> bool:
    return any(argument.endswith("default_worker.py") for argument in sys.orig_argv)


def ray_facts() -> RayFacts:
    module = sys.modules.get("ray._private.worker")
    worker: Any = getattr(module, "global_worker", None)
    if worker is None or not getattr(worker, "connected", False):
        return RayFacts(kind="task", role="ray_worker", idle=True) if is_ray_worker() else RayFacts()
    if getattr(worker, "mode", None) != _WORKER_MODE:
        cluster, dashboard = _of_node(module, "gcs_address"), _of_node(module, "webui_url")
        if dashboard and "://" not in dashboard:
            dashboard = f"http://{dashboard}"
        return RayFacts(kind="driver", role="driver", cluster=cluster, dashboard=dashboard)
    actor = next(iter(getattr(worker, "actors", {}).values()), None)
    if actor is not None:
        return _actor_facts(worker, actor)
    if (loading := _loading_actor(worker)) is not None:
        return loading
    function = _running_task()
    return RayFacts(kind="task", role=function or "ray_worker", idle=not function, task=function)


def _actor_name(worker: Any) -> str:
    try:
        return str(worker.actor_name or "")
    except (AttributeError, RuntimeError, UnicodeDecodeError):
        # Older Ray has no actor_name on the worker; the class name is a good name too.
        return ""


def _actor_facts(worker: Any, actor: Any) -> RayFacts:
    name = _actor_name(worker)
    rank = getattr(actor, "rank", getattr(actor, "_rank", None))
    if type(rank) is not int:
        rank = _given_rank()
    class_name = type(actor).__name__
    return RayFacts(
        kind="actor",
        role=name or snake_case(class_name),
        rank=rank,
        actor_name=name,
        actor_class=class_name,
        task=_running_task(),
    )


def _main_frames() -> list[FrameType]:
    """The frames of the worker's main thread, outermost first."""
    return chain(sys._current_frames().get(threading.main_thread().ident or 0))[::-1]


def _loading_actor(worker: Any) -> RayFacts | None:
    """The actor whose class is being imported, which may take minutes: the process has that identity from the start."""
    for frame in _main_frames():
        if frame.f_code.co_name == "load_actor_class" and is_rays_own(frame.f_code.co_filename):
            descriptor = frame.f_locals.get("actor_creation_function_descriptor")
            class_name = str(getattr(descriptor, "class_name", "")).rpartition(".")[2]
            name = _actor_name(worker)
            if name or class_name:
                role = name or snake_case(class_name)
                return RayFacts(kind="actor", role=role, actor_name=name, actor_class=class_name, task="__init__")
    return None


def _given_rank() -> int | None:
    """The `rank` that an actor's constructor was called with, while it has not returned."""
    frames = (frame for frame in _main_frames() if frame.f_code.co_name == "__init__")
    given = next((frame.f_locals["rank"] for frame in frames if "rank" in frame.f_locals), None)
    return given if type(given) is int else None


def _running_task() -> str:
    """The function that the worker's main thread executes for Ray: the outermost frame that is not Ray's own. While
    Ray loads it, what is imported for it has frames instead."""
    inside, loading = False, ""
    for frame in _main_frames():
        rays_own = is_rays_own(frame.f_code.co_filename)
        if rays_own and frame.f_code.co_name == "get_execution_info":
            descriptor = frame.f_locals.get("function_descriptor")
            loading = str(getattr(descriptor, "function_name", "")).rpartition(".")[2]
        if inside and (loading or not rays_own):
            return loading or _failed_task(frame) or frame.f_code.co_name
        inside = inside or frame.f_code.co_name == "main_loop"
    return ""


def is_rays_own(file: str) -> bool:
    """Whether a file belongs to the imported Ray; the user's folders may be called `ray` too."""
    ray = getattr(sys.modules.get("ray"), "__file__", None)
    return file.startswith("python/ray/") or bool(ray and file.startswith(str(Path(ray).parent) + "/"))


def _failed_task(frame: FrameType) -> str:
    """After an exception the task's own frames are gone; our hook's frame has the error."""
    error = frame.f_locals.get("error") if frame.f_code.co_filename.startswith(_HERE) else None
    trace = getattr(error, "__traceback__", None)
    while trace is not None:
        code = trace.tb_frame.f_code
        if not is_rays_own(code.co_filename):
            return str(code.co_name)
        trace = trace.tb_next
    return ""


def is_async_actor() -> bool:
    """Whether the calling code runs in an actor with an event loop: all its methods share one thread."""
    worker: Any = getattr(sys.modules.get("ray._private.worker"), "global_worker", None)
    asks = getattr(getattr(worker, "core_worker", None), "current_actor_is_asyncio", None)
    return bool(asks and asks())


def wait_for_far_node(found: Callable[[str], None]) -> None:
    """In a driver: calls back with this node's address once the cluster has another node; ends with the process."""
    while True:
        time.sleep(_NODES_EVERY_S)
        worker: Any = getattr(sys.modules.get("ray._private.worker"), "global_worker", None)
        if worker is None or not getattr(worker, "connected", False):
            continue
        try:
            own = str(worker.node_ip_address)
            addresses = {str(n["NodeManagerAddress"]) for n in sys.modules["ray"].nodes() if n.get("Alive")}
        except Exception:  # noqa: BLE001 - the cluster may go away at any moment, with any error of Ray's
            continue
        if addresses - {own}:
            found(own)
            return


def _of_node(module: Any, name: str) -> str:
    """The address of the cluster's own tables, which is always there, or that of its dashboard, which need not be."""
    try:
        return str(getattr(getattr(module, "_global_node", None), name, "") or "")
    except (AttributeError, RuntimeError):
        return ""
