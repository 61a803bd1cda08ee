"""What Ray says about the process it runs us in, read from the Ray that is already imported."""

import re
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

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
    dashboard: str = ""

    def to_dict(self) -> dict[str, str]:
        facts = {"actor": self.actor_name, "class": self.actor_class, "task": self.task, "dashboard": self.dashboard}
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
        return RayFacts(kind="driver", role="driver", dashboard=_dashboard(module))
    actor = next(iter(getattr(worker, "actors", {}).values()), None)
    if actor is not None:
        return _actor_facts(worker, actor)
    function = _running_task()
    return RayFacts(kind="task", role=function or "ray_worker", idle=not function, task=function)


def _actor_facts(worker: Any, actor: Any) -> RayFacts:
    try:
        name = worker.actor_name or ""
    except (AttributeError, RuntimeError, UnicodeDecodeError):
        # Older Ray has no actor_name on the worker; the class name is a good name too.
        name = ""
    rank = getattr(actor, "rank", getattr(actor, "_rank", None))
    class_name = type(actor).__name__
    return RayFacts(
        kind="actor",
        role=name or snake_case(class_name),
        rank=rank if type(rank) is int else None,
        actor_name=name,
        actor_class=class_name,
        task=_running_task(),
    )


def _running_task() -> str:
    """The function that the worker's main thread executes for Ray: the outermost frame that is not Ray's own."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    frames: list[FrameType] = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    inside = False
    for frame in reversed(frames):
        if inside and "/ray/" not in frame.f_code.co_filename:
            return _failed_task(frame) or frame.f_code.co_name
        inside = inside or frame.f_code.co_name == "main_loop"
    return ""


def _failed_task(frame: FrameType) -> str:
    """After an exception the task's own frames are gone, and our hook stands in their place with the error."""
    error = frame.f_locals.get("error") if frame.f_code.co_filename.startswith(_HERE) else None
    trace = getattr(error, "__traceback__", None)
    while trace is not None:
        code = trace.tb_frame.f_code
        if "/ray/" not in code.co_filename:
            return str(code.co_name)
        trace = trace.tb_next
    return ""


def is_async_actor() -> bool:
    """Whether the code that calls this stands in an actor with an event loop: all its methods share one thread."""
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


def _dashboard(module: Any) -> str:
    node = getattr(module, "_global_node", None)
    try:
        url = getattr(node, "webui_url", "") or ""
    except (AttributeError, RuntimeError):
        return ""
    return url if "://" in url or not url else f"http://{url}"
