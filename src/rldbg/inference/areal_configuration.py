"""What `serve up --config FILE` takes from an AReaL configuration: allocation mode, model, and the engine's own block.

Everything else in the file is for training and is left alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rldbg.core import UsageError, load_recipe
from rldbg.inference.allocation import parse_allocation

# Where configurations of the guide's time and of today name the model.
_MODEL_KEYS = (("actor", "path"), ("sglang", "model_path"), ("vllm", "model"), ("rollout", "model_path"))


@dataclass(frozen=True, slots=True)
class ArealConfiguration:
    allocation_mode: str
    model: str | None
    settings: Mapping[str, Any] = field(default_factory=dict)


def read_areal_configuration(file: Path, overrides: Sequence[str]) -> ArealConfiguration:
    """The file with overrides of the guide's form, key=value, whether or not the file has the key."""
    data = load_recipe(file, [item if item.startswith("+") else f"++{item}" for item in overrides])
    rollout = data.get("rollout")
    mode = data.get("allocation_mode") or (rollout.get("backend") if isinstance(rollout, Mapping) else None)
    if not isinstance(mode, str) or not mode:
        raise UsageError(f"{file} has no allocation_mode", "write allocation_mode=sglang.d4p1t1")
    engine = parse_allocation(mode).engine
    if engine is None:
        raise UsageError(
            f"allocation_mode {mode!r} has no inference part: nothing is to be served",
            "write allocation_mode=sglang.d4p1t1",
        )
    block = data.get(engine)
    return ArealConfiguration(mode, _model(data), block if isinstance(block, Mapping) else {})


def _model(data: Mapping[str, Any]) -> str | None:
    for block, key in _MODEL_KEYS:
        part = data.get(block)
        path = part.get(key) if isinstance(part, Mapping) else None
        if isinstance(path, str) and path:
            return path
    return None
