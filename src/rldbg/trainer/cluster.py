"""A Ray cluster for a run: joined, or started for it and stopped with it. Workers are named actors.

Only this module and `actors` import Ray.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from rldbg.core import Environment, ExitCode, PrerequisiteError, RldbgError, explained_as, join_ray
from rldbg.trainer.settings import ClusterSettings

_STOP_S = 10.0
_OTHERS_S = 5.0
_WITHOUT = "omit cluster.address to start a new one"


class WorkerLostError(RldbgError):
    """A worker's process died."""

    kind = "worker_lost"
    exit_code = ExitCode.UNREACHABLE

    def __init__(self, message: str, hint: str = "", worker: str = "") -> None:
        super().__init__(message, hint)
        self.args = (message, hint, worker)
        self.worker = worker


class WorkerFailedError(RldbgError):
    """A worker raised an error that is not an RldbgError."""

    kind = "worker_failed"


class Cluster:
    """Ray while the `with` block lasts. A cluster that was joined keeps running; our actors in it do not."""

    def __init__(self, settings: ClusterSettings, *, name: str = "rldbg") -> None:
        self._settings = settings
        self.namespace = f"{name}-{os.getpid()}-{secrets.token_hex(3)}"
        self._temporary: Path | None = None
        self._actors: dict[str, Any] = {}
        self._breakpoint = Environment().text("PYTHONBREAKPOINT")

    def __enter__(self) -> Self:
        ray = _import_ray()
        if ray.is_initialized():
            raise PrerequisiteError("this process already uses a Ray cluster", "call ray.shutdown() first")
        try:
            self._start(ray) if self._settings.address is None else self._join(self._settings.address)
        except BaseException:
            self._clean_up()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        for name in list(self._actors):
            self.kill(name)
        _import_ray().shutdown()
        self._clean_up()

    def _start(self, ray: Any) -> None:
        # Ray puts sockets under its folder, whose paths may not be longer than about 100 characters.
        self._temporary = Path(tempfile.mkdtemp(prefix="rldbg-ray-"))
        self._own_token()
        ray.init(
            include_dashboard=self._settings.dashboard,
            namespace=self.namespace,
            logging_level="error",
            _temp_dir=str(self._temporary),
        )

    def _join(self, address: str) -> None:
        join_ray(address, otherwise=_WITHOUT, namespace=self.namespace, logging_level="error")

    def _own_token(self) -> None:
        """Ray would leave a token in the user's home; clusters of this process share one that ends with it.

        It stays in the environment because Ray reads it once per process.
        """
        environment = Environment()
        if not any(environment.is_set(name) for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")):
            environment.export("RAY_AUTH_TOKEN", secrets.token_hex(32))

    def _clean_up(self) -> None:
        # Ray leaves its own there, and breakpoint() would go to a cluster that is gone.
        Environment().put_back("PYTHONBREAKPOINT", self._breakpoint)
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    @property
    def facts(self) -> dict[str, Any]:
        """The description of the cluster for run.json."""
        ray = _import_ray()
        return {
            "address": ray.get_runtime_context().gcs_address,
            "namespace": self.namespace,
            "nodes": sorted({node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]}),
        }

    def spawn(self, name: str, actor_class: type, *, gpus: float = 0.0, **arguments: Any) -> Any:
        """An actor of that name. Actors ask for no CPU, so that they fit on any machine."""
        ray = _import_ray()
        remote = ray.remote(actor_class).options(name=name, num_cpus=0, num_gpus=gpus, max_concurrency=1)
        deadline = time.monotonic() + _STOP_S
        while True:
            try:
                self._actors[name] = remote.remote(**arguments)
            except ValueError:
                # The name of a killed actor is free only when the cluster has noticed.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                return self._actors[name]

    def kill(self, name: str) -> None:
        actor = self._actors.pop(name, None)
        if actor is not None:
            _import_ray().kill(actor)

    def gpus(self) -> float:
        return float(_import_ray().cluster_resources().get("GPU", 0.0))

    def results(self, calls: Mapping[str, Any], *, timeout_s: float | None = None) -> dict[str, Any]:
        """Waits for one call per worker. Raises the first failure; a lost worker before the failures it caused."""
        ray = _import_ray()
        pending = {reference: name for name, reference in calls.items()}
        results: dict[str, Any] = {}
        while pending:
            done, _ = ray.wait(list(pending), num_returns=1, timeout=timeout_s)
            if not done:
                late = ", ".join(pending.values())
                raise WorkerFailedError(f"no answer from {late} in {timeout_s:g} s", "check what it is waiting for")
            (reference,) = done
            name = pending.pop(reference)
            try:
                results[name] = ray.get(reference)
            except ray.exceptions.RayError as error:
                raise self._root_cause(explain(name, error), pending) from error
        return {name: results[name] for name in calls}

    def _root_cause(self, first: RldbgError, pending: Mapping[Any, str]) -> RldbgError:
        """Ranks that lose their neighbour fail too, and often earlier: report the lost one."""
        ray = _import_ray()
        deadline = time.monotonic() + _OTHERS_S
        for reference, name in pending.items():
            if isinstance(first, WorkerLostError):
                break
            try:
                ray.get(reference, timeout=max(deadline - time.monotonic(), 0.1))
            except ray.exceptions.GetTimeoutError:
                continue
            except ray.exceptions.RayError as error:
                other = explain(name, error)
                first = other if isinstance(other, WorkerLostError) else first
        return first


def explain(name: str, error: Any) -> RldbgError:
    """A failed call as an error of ours that names the worker."""
    ray = _import_ray()
    cause = getattr(error, "cause", None)
    if isinstance(cause, RldbgError):
        return cause
    if isinstance(error, ray.exceptions.ActorDiedError | ray.exceptions.ActorUnavailableError):
        why = str(error).strip().splitlines()[-1].strip()
        return WorkerLostError(
            f"the worker {name} is gone: {why}",
            "look for an out-of-memory kill on its machine (`dmesg`), then run again with --resume",
            name,
        )
    text = f"{type(cause).__name__}: {cause}" if cause is not None else str(error)
    trace = str(getattr(error, "traceback_str", ""))
    return WorkerFailedError(f"the worker {name} failed: {text}", f"its traceback:\n{trace}" if trace else "")


def _import_ray() -> Any:
    with explained_as(PrerequisiteError, ImportError, "training on a cluster needs Ray", "pip install 'rldbg[ray]'"):
        import ray
    return ray
