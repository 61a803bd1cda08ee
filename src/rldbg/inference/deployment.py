"""What `rldbg serve up` starts: the model, the command of a replica, its environment, its place on the network."""

import importlib.util
import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rldbg.core import Environment, PrerequisiteError, UsageError, as_flags
from rldbg.inference.allocation import Allocation
from rldbg.inference.settings import ServerSettings

# Where a proxy answers for itself; /health is the engine's.
PROXY_HEALTH = "/rldbg/health"
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


@dataclass(frozen=True, slots=True)
class Listening:
    """Where replicas listen: on loopback, or elsewhere with a token. Replica n has port + n; 0 takes free ones."""

    host: str = "127.0.0.1"
    port: int = 0
    token: str | None = None

    def check(self) -> None:
        if self.host not in _LOOPBACK and not self.token:
            raise UsageError(
                f"{self.host} is reachable from other machines: a server there needs a token",
                "give one with --token SECRET (or RLDBG_SERVE_UP_TOKEN), or remove --host",
            )

    def port_of(self, number: int) -> int:
        return self.port + number if self.port else 0

    def fixed_port_of(self, number: int) -> int:
        """For servers that cannot say which port they got: one that is free now."""
        if self.port:
            return self.port + number
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])


def replica_count(replicas: int | None, allocation: Allocation | None) -> int:
    """How many replicas to start; told twice and differently is an error."""
    if replicas is not None and allocation is not None and replicas != allocation.replicas:
        raise UsageError(
            f"--replicas {replicas} and d{allocation.replicas} of the allocation mode disagree", "give one of the two"
        )
    return replicas or (allocation.replicas if allocation else 1)


def devices_of(number: int, per_replica: int, *, shared: bool) -> Mapping[str, str]:
    """CUDA_VISIBLE_DEVICES of replica n: its share of the devices there are; nothing where there are none.

    With `shared`, replicas beyond the number of devices share them in turn; else there must be enough.
    """
    devices = visible_devices()
    if not devices:
        return {}
    first = number * per_replica
    if first + per_replica <= len(devices):
        own = devices[first : first + per_replica]
    elif shared:
        own = [devices[number % len(devices)]]
    else:
        raise PrerequisiteError(
            f"replica {number} needs devices {first} to {first + per_replica - 1}, and there are {len(devices)}",
            "serve fewer replicas, or less tensor parallelism",
        )
    return {"CUDA_VISIBLE_DEVICES": ",".join(own)}


def visible_devices() -> list[str]:
    """The GPUs this process may use, as CUDA_VISIBLE_DEVICES names them."""
    given = Environment().everything().get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [item.strip() for item in given.split(",") if item.strip() and item.strip() != "-1"]
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    asked = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=30, check=False)
    return [str(number) for number, line in enumerate(asked.stdout.splitlines()) if line.startswith("GPU ")]


def require(packages: Sequence[str], what: str, install: str) -> None:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise PrerequisiteError(f"{what} needs {missing[0]}", f"pip install '{install}'")


def replica_command(number: int, ready: Path, listening: Listening, settings: Mapping[str, Any]) -> list[str]:
    """A process of our own: the embedded backend, a recording or a proxy. `settings` are those of ServerSettings."""
    token_file = write_token(ready.parent, listening.token) if listening.token else None
    place: dict[str, Any] = {"host": listening.host, "port": listening.port_of(number), "token_file": token_file}
    return [
        *(sys.executable, "-m", "rldbg.inference.server"),
        *as_flags(ServerSettings(announce=ready, **place, **settings)),
    ]


def write_token(folder: Path, token: str) -> Path:
    """The token in a private file: command lines are visible to all users."""
    file = folder / "token"
    file.touch(mode=0o600)
    file.write_text(token, encoding="utf-8")
    return file


def model_path(model: str, *, with_weights: bool = True) -> Path:
    """The folder of a model: a path, or a hub id whose snapshot is in the cache (HF_HOME, HF_HUB_CACHE). Nothing is
    fetched."""
    folder = Path(model).expanduser().absolute()
    if (folder / "config.json").is_file():
        return folder
    if folder.exists() or not _HUB_ID.fullmatch(model):
        raise UsageError(f"no model at {model!r}: config.json is missing", "--model tiny, or a Hugging Face folder")
    found = _cached_snapshot(model)
    fetch = f"download it on a machine with network access: hf download {model}"
    if found is None:
        raise UsageError(f"no model {model!r}: neither a folder nor in the cache {_hub_cache()}", fetch)
    # Loading a tokenizer leaves everything else in the cache.
    if with_weights and not _has_weights(found):
        raise UsageError(f"the cache {_hub_cache()} has {model!r} without its weights, or not all of them", fetch)
    return found


def _has_weights(snapshot: Path) -> bool:
    index = snapshot / "model.safetensors.index.json"
    if index.is_file():
        try:
            shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, LookupError, TypeError, AttributeError):  # a download that was cut off
            return False
        return all((snapshot / str(shard)).is_file() for shard in shards)
    return any(snapshot.glob("*.safetensors")) or any(snapshot.glob("*.bin"))


def _hub_cache() -> Path:
    environment = Environment()
    chosen = environment.text("HF_HUB_CACHE")
    home = environment.text("HF_HOME") or str(Path.home() / ".cache" / "huggingface")
    return Path(chosen) if chosen else Path(home) / "hub"


def _cached_snapshot(model: str) -> Path | None:
    """The snapshot that `main` names, else the newest one with a configuration."""
    folder = _hub_cache() / f"models--{model.replace('/', '--')}"
    snapshots = folder / "snapshots"
    if not snapshots.is_dir():
        return None
    main = folder / "refs" / "main"
    named = snapshots / main.read_text(encoding="utf-8").strip() if main.is_file() else None
    newest = sorted(snapshots.iterdir(), key=lambda item: item.stat().st_mtime, reverse=True)
    for snapshot in ([named] if named else []) + newest:
        if (snapshot / "config.json").is_file():
            return snapshot
    return None
