"""How each backend of `rldbg serve up` is started."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rldbg.cli.output import print_note
from rldbg.core import Environment, Run, UsageError, as_flags

if TYPE_CHECKING:
    from rldbg.inference import Allocation, Listening, Registry, Server


@dataclass(frozen=True, slots=True)
class Up:
    """What the options of `serve up` say."""

    backend: str | None
    model: str | None
    run: str | None
    replicas: int | None
    allocation_mode: str | None
    name: str | None
    listening: "Listening"
    upstream: str | None = None
    nearest: bool = False
    out: str | None = None
    alias: tuple[str, ...] = ()
    dtype: str | None = None
    device: str = "auto"
    threads: int = 0
    max_running: int = 256
    logprobs: str = "temperature"
    deterministic: bool = False
    timeout_s: float = 120.0
    extra: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)


def home() -> Path:
    return Path(Environment().text("RLDBG_HOME"))


def _start_transformers(up: Up, registry: "Registry", allocation: "Allocation | None") -> "Server":
    from rldbg.inference import devices_of, replica_command, replica_count, require

    require(("starlette", "uvicorn", "torch", "transformers"), "the embedded backend", "rldbg[serve,train]")
    _refuse_run(up)
    if allocation is not None and allocation.devices > 1:
        print_note(f"t{allocation.tensor} and p{allocation.pipeline} are ignored: an embedded replica uses one device")
    count = replica_count(up.replicas, allocation)
    folder = model_folder(up.model or "tiny")
    name = up.model or "tiny"
    settings: dict[str, Any] = {
        "model": folder,
        "name": model_name(name),
        "dtype": up.dtype or "float32",
        "device": up.device,
        "threads": up.threads or _threads(count, name),
        "max_running": up.max_running,
        "logprobs": up.logprobs,
    }
    return registry.start(
        up.name or registry.free_name("transformers"),
        backend="transformers",
        model=name,
        command=lambda number, ready: replica_command(number, ready, up.listening, settings),
        count=count,
        environment=lambda number: {} if up.device == "cpu" else devices_of(number, 1, shared=True),
    )


def model_folder(model: str, *, with_weights: bool = True) -> Path:
    """The folder of a model; that of `tiny` is made when it is first asked for."""
    if model == "tiny":
        from rldbg.trainer import tiny_folder

        return tiny_folder(home().absolute() / "models" / "tiny")
    from rldbg.inference import model_path

    return model_path(model, with_weights=with_weights)


def model_name(model: str) -> str:
    """What clients call it: a hub id as it is, a folder by its own name."""
    return Path(model).name if model == "tiny" or Path(model).exists() else model


def _threads(replicas: int, model: str) -> int:
    """A share of the cores each; the tiny model's matrices are too small to be shared by threads."""
    return 1 if model == "tiny" else max(1, (os.cpu_count() or 1) // replicas)


def _refuse_run(up: Up) -> None:
    if up.run:
        raise UsageError(
            f"{up.run!r} is not an argument of this backend", "did you mean --backend recording, or --model?"
        )


def _refuse_replicas(up: Up, allocation: "Allocation | None", why: str, hint: str) -> None:
    if up.replicas not in (None, 1) or allocation is not None:
        raise UsageError(why, hint)


def _start_training_service(up: Up, registry: "Registry", allocation: "Allocation | None") -> "Server":
    from rldbg.inference import require

    require(
        ("starlette", "uvicorn", "torch", "transformers", "zstandard"), "the training service", "rldbg[serve,train]"
    )
    _refuse_run(up)
    _refuse_replicas(up, allocation, "a training service is one process", "remove --replicas and --allocation-mode")
    model = up.model or "tiny"
    folder = model if model == "tiny" else str(model_folder(model))
    aliases = [*up.alias, *([] if model == "tiny" or Path(model).exists() else [model])]
    settings: dict[str, Any] = {
        "model": folder,
        "port": up.listening.port,
        "dtype": up.dtype or "float32",
        "device": up.device,
        "threads": up.threads,
        "alias": tuple(aliases),
        "deterministic": up.deterministic,
    }

    def command(_number: int, ready: Path) -> Sequence[str]:
        from rldbg.training_service import ServiceSettings

        words = as_flags(ServiceSettings(folder=ready.parent, announce=ready, **settings))
        return [sys.executable, "-m", "rldbg.training_service", *words]

    name = up.name or registry.free_name("train")
    return registry.start(name, backend="train", model=model, command=command, health="/api/v1/healthz")


def _start_recording(up: Up, registry: "Registry", allocation: "Allocation | None") -> "Server":
    from rldbg.inference import replica_command, require
    from rldbg.recording import open as open_recording

    require(("starlette", "uvicorn"), "the recording backend", "rldbg[serve]")
    if not up.run:
        raise UsageError("no recording given", "rldbg serve up --backend recording RUN")
    _refuse_replicas(up, allocation, "a recording is served by one process", "remove --replicas")
    recording = open_recording(up.run)
    model = up.model or _recorded_model(recording.run_facts())
    settings: dict[str, Any] = {
        "backend": "recording",
        "recording": Path(up.run).absolute(),
        "name": Path(model or up.run).name,
        "model": model_folder(model, with_weights=False) if model else None,
        "nearest": up.nearest,
    }
    return registry.start(
        up.name or registry.free_name("recording"),
        backend="recording",
        model=str(up.run),
        command=lambda number, ready: replica_command(number, ready, up.listening, settings),
    )


def _recorded_model(facts: dict[str, object]) -> str | None:
    """The model of the recorded run, for its tokenizer; None where that is not known or not here."""
    config = facts.get("config")
    model = config.get("model") if isinstance(config, dict) else None
    path = model.get("path", "tiny") if isinstance(model, dict) else None
    return path if path == "tiny" or (path and (Path(path) / "config.json").is_file()) else None


def _start_proxy(up: Up, registry: "Registry", allocation: "Allocation | None") -> "Server":
    from rldbg.inference import PROXY_HEALTH, replica_command, require

    require(("starlette", "uvicorn", "httpx"), "the proxy", "rldbg[serve] httpx")
    _refuse_run(up)
    if not up.upstream or not up.upstream.startswith(("http://", "https://")):
        raise UsageError("--upstream is missing", "rldbg serve up --backend proxy --upstream http://HOST:PORT")
    _refuse_replicas(up, allocation, "a proxy is one process", "start one proxy per engine")
    run = Run.create(name="proxy", path=up.out)
    run.start(command=sys.argv, name="proxy", upstream=up.upstream)
    recording = run.folder("recording").absolute()
    run.update(recording=str(recording))
    settings: dict[str, Any] = {"backend": "proxy", "name": "proxy", "upstream": up.upstream, "recording": recording}
    print_note(f"run folder: {run.path}")
    return registry.start(
        up.name or registry.free_name("proxy"),
        backend="proxy",
        model=up.upstream,
        command=lambda number, ready: replica_command(number, ready, up.listening, settings),
        health=PROXY_HEALTH,
    )


def _start_engine(engine: str) -> "Starter":
    """A real engine's own server, one process per replica, each on its own devices."""

    def start(up: Up, registry: "Registry", allocation: "Allocation | None") -> "Server":
        from rldbg.inference import Allocation, EngineCommand, announce_engine, devices_of, replica_count

        _refuse_run(up)
        if allocation is not None and allocation.engine not in (None, engine):
            raise UsageError(
                f"--backend {engine} and {allocation.engine} of the allocation mode disagree", "give one of them"
            )
        shape = allocation or Allocation(engine, 1)
        count = replica_count(up.replicas, allocation)
        # An engine may fetch a model by its name; a folder is given as it is.
        known = up.model in (None, "tiny") or Path(str(up.model)).exists()
        model = str(model_folder(up.model or "tiny")) if known else str(up.model)
        dtype = up.dtype or "auto"
        command = EngineCommand(engine, model, shape.tensor, shape.pipeline, dtype, up.settings, up.extra)
        command.check()

        def build(number: int, ready: Path) -> Sequence[str]:
            arguments = command.arguments(number, up.listening)
            announce_engine(ready, arguments)
            return arguments

        return registry.start(
            up.name or registry.free_name(engine),
            backend=engine,
            model=up.model or "tiny",
            command=build,
            count=count,
            environment=lambda number: {
                **devices_of(number, shape.devices, shared=False),
                **command.environment(up.listening),
            },
        )

    return start


Starter = Callable[[Up, "Registry", "Allocation | None"], "Server"]
STARTERS: dict[str, Starter] = {
    "transformers": _start_transformers,
    "sglang": _start_engine("sglang"),
    "vllm": _start_engine("vllm"),
    "recording": _start_recording,
    "proxy": _start_proxy,
    "train": _start_training_service,
}
