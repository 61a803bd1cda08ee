"""Hooks into the creation of Ray actors: selected actors get their worker name through the environment.

The worker's own agent does the rest. The driver also waits for profiles before it kills an actor or shuts Ray down,
because Ray ends workers without letting them finish.
"""

import atexit
import contextlib
import functools
import importlib
import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from ..ray_process import snake_case
from ..settings import say
from .plan import WORKER_VARIABLE, ChosenWorker, Plan

WORKERS = "workers"
# Which Ray cluster the run used: {"address", "nodes"}.
CLUSTER = "ray_cluster.json"


class ActorSelection:
    """`finish_others` asks the processes of the run to write their profiles: of one actor, or of all with ""."""

    def __init__(self, plan: Plan, finish_others: Callable[[str], None]) -> None:
        self._plan = plan
        self._finish_others = finish_others
        self._said: set[str] = set()

    def watch_creation(self, module: ModuleType) -> None:
        """`ray.actor` has just been imported."""
        actor_class: Any = module.ActorClass
        original = actor_class._remote

        @functools.wraps(original)
        def _remote(actor: Any, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
            try:
                options = self.prepared(actor, options)
            except Exception as error:  # noqa: BLE001 - the actor must be created whatever we break
                self._once("prepared", f"selecting an actor failed: {type(error).__name__}: {error}")
            return original(actor, args, kwargs, **options)

        actor_class._remote = _remote

    def prepared(self, actor: Any, options: dict[str, Any]) -> dict[str, Any]:
        """The options of an actor's creation, with the worker's name in its environment when it is chosen."""
        name = str(options.get("name") or "")
        class_name = snake_case(actor.__ray_metadata__.modified_class.__name__)
        self._remember(name or class_name, class_name)
        choice = self._plan.choose_actor(name, class_name) or self._inherited(name or class_name)
        if choice is None:
            return options
        defaults: dict[str, Any] = getattr(actor, "_default_options", {})
        runtime_env = dict(options.get("runtime_env") or defaults.get("runtime_env") or {})
        if self._plan.tool == "nsys" and runtime_env.pop("nsight", None) is not None:
            self._once("nsight", "the runtime environment's own nsight option is ignored: rldbg runs nsys itself")
        variables = dict(runtime_env.get("env_vars") or {}) | {WORKER_VARIABLE: choice.to_variable()}
        runtime_env["env_vars"] = variables
        if self._plan.tool == "nsys":
            self._print(f"Nsight profiling enabled for worker '{choice.name}' (matched pattern '{choice.pattern}')")
        else:
            say(f"{self._plan.tool} profiling enabled for worker '{choice.name}' (matched pattern '{choice.pattern}')")
        made: Any = importlib.import_module("ray.runtime_env").RuntimeEnv(**runtime_env)
        return options | {"runtime_env": made}

    def watch_endings(self, module: ModuleType) -> None:
        """`ray` has just been imported."""
        init, kill, shutdown = module.init, module.kill, module.shutdown

        @functools.wraps(init)
        def init_and_register(*args: Any, **kwargs: Any) -> Any:
            answer = init(*args, **kwargs)
            self._note_cluster(module)
            # Ray also shuts down at exit; handlers run in the opposite order of their registration.
            atexit.unregister(self.before_shutdown)
            atexit.register(self.before_shutdown)
            return answer

        @functools.wraps(kill)
        def kill_after_profiles(actor: Any, *args: Any, **kwargs: Any) -> Any:
            identifier = getattr(actor, "_actor_id", None) or getattr(actor, "_ray_actor_id", None)
            self._finish_others(identifier.hex() if identifier is not None else "")
            return kill(actor, *args, **kwargs)

        @functools.wraps(shutdown)
        def shutdown_after_profiles(*args: Any, **kwargs: Any) -> Any:
            self.before_shutdown()
            return shutdown(*args, **kwargs)

        replaced = {"init": init_and_register, "kill": kill_after_profiles, "shutdown": shutdown_after_profiles}
        for name, function in replaced.items():
            setattr(module, name, function)

    def before_shutdown(self) -> None:
        """In the driver, while Ray still answers: its own timeline, and the profiles of all workers."""
        ray: Any = sys.modules.get("ray")
        worker: Any = getattr(sys.modules.get("ray._private.worker"), "global_worker", None)
        if ray is None or not ray.is_initialized() or getattr(worker, "mode", None) == 1:
            return
        self._finish_others("")
        self._note_cluster(ray)
        with contextlib.suppress(Exception):
            # If Ray does not return its timeline, the job must still end normally; Ray ends a process that queries a
            # cluster which no longer exists.
            host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), timeout=2.0).close()
            ray.timeline(filename=str(Path(self._plan.state_folder) / f"ray_timeline_{os.getpid()}.json"))

    def _note_cluster(self, ray: Any) -> None:
        """For collecting files from nodes that do not see the run folder."""
        with contextlib.suppress(Exception):
            # Without Ray's answer the job continues unchanged.
            alive = sum(1 for node in ray.nodes() if node["Alive"])
            facts = {"address": ray.get_runtime_context().gcs_address, "nodes": alive}
            (Path(self._plan.state_folder) / CLUSTER).write_text(json.dumps(facts), encoding="utf-8")

    def _inherited(self, own: str) -> ChosenWorker | None:
        """An actor that a chosen worker creates is part of it: an engine's inner worker."""
        above = ChosenWorker.from_environment()
        return ChosenWorker(f"{above.name}.{own}", above.pattern) if above is not None else None

    def _remember(self, worker: str, class_name: str) -> None:
        """For the warning about patterns without a match: a file named after each worker, with its class."""
        folder = Path(self._plan.state_folder) / WORKERS
        if worker not in self._said:
            self._said.add(worker)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / worker.replace("/", "%2F")).write_text(class_name)

    def _once(self, key: str, text: str) -> None:
        if key not in self._said:
            self._said.add(key)
            say(text)

    def _print(self, line: str) -> None:
        """Prints the line exactly as documented, without the `rldbg:` prefix."""
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()
