"""The commands of real engines: SGLang's and vLLM's own servers, with the flags that correspond to ours. They do not
report which port they got, so a free one is chosen for them; they are healthy when GET /health answers 200.
"""

import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rldbg.core import PrerequisiteError, UsageError
from rldbg.inference.deployment import Listening

# Settings of a framework's configuration that say where its server runs; here the command line says that.
_OURS = frozenset({"model_path", "model", "host", "port", "tp_size", "pp_size", "tensor_parallel_size", "api_key"})


@dataclass(frozen=True, slots=True)
class EngineCommand:
    """How one replica of an engine is started. `settings` are the engine's own, by the names of its flags."""

    engine: str
    model: str
    tensor: int = 1
    pipeline: int = 1
    dtype: str = "auto"
    settings: Mapping[str, Any] | None = None
    extra: Sequence[str] = ()

    def check(self) -> None:
        if importlib.util.find_spec(self.engine) is None:
            raise PrerequisiteError(
                f"{self.engine} is not installed here", f"pip install {self.engine}, or use --backend transformers"
            )

    def arguments(self, number: int, listening: Listening) -> list[str]:
        place = ["--host", listening.host, "--port", str(listening.fixed_port_of(number))]
        # SGLang takes its key by the command line alone, where others on the machine can read it.
        secret = ["--api-key", listening.token] if listening.token and self.engine == "sglang" else []
        return [sys.executable, "-m", *self._own(), *place, *secret, *flags(self.settings or {}), *self.extra]

    def environment(self, listening: Listening) -> dict[str, str]:
        return {"VLLM_API_KEY": listening.token} if listening.token and self.engine == "vllm" else {}

    def _own(self) -> list[str]:
        if self.engine == "sglang":
            own = ["sglang.launch_server", "--model-path", self.model, "--tp-size", str(self.tensor)]
            own += ["--pp-size", str(self.pipeline)] if self.pipeline > 1 else []
            return [*own, "--dtype", self.dtype, "--skip-server-warmup"]
        assert self.engine == "vllm"
        own = ["vllm.entrypoints.openai.api_server", "--model", self.model, "--tensor-parallel-size", str(self.tensor)]
        own += ["--pipeline-parallel-size", str(self.pipeline)] if self.pipeline > 1 else []
        return [*own, "--dtype", self.dtype]


def flags(settings: Mapping[str, Any]) -> list[str]:
    """Settings as flags: true is the flag alone, false, null and empty ones are left out, lists give several words."""
    words: list[str] = []
    for name, value in settings.items():
        if name in _OURS or value is None or value is False or value == [] or value == {} or value == "":
            continue
        words.append("--" + name.replace("_", "-"))
        if isinstance(value, Mapping):
            words.append(json.dumps(value))
        elif isinstance(value, Sequence) and not isinstance(value, str):
            words += [str(item) for item in value]
        elif value is not True:
            words.append(str(value))
    return words


def announce_engine(ready: Path, command: Sequence[str]) -> None:
    """Writes the announcement for an engine that writes none, from its own command."""
    words = list(command)
    try:
        host, port = words[words.index("--host") + 1], words[words.index("--port") + 1]
    except (ValueError, IndexError):
        raise UsageError("the command sets --host or --port", "leave them to rldbg") from None
    reachable = "127.0.0.1" if host == "0.0.0.0" else host
    ready.write_text(json.dumps({"address": f"{reachable}:{port}"}), encoding="utf-8")
