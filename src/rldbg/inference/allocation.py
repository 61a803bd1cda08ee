"""`allocation_mode`: how many inference servers there are, and how many devices each one takes.

The document's grammar (`sglang.d4p1t1`, `d4p1t1`, `sglang.d4p1t1+d4p1t1`) and today's (`sglang:d4t2+fsdp:d8`,
`vllm[rollout]:d2`). Components are separated by + or |; the one of an inference engine counts here, the rest trains.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rldbg.core import UsageError, load_recipe

ENGINES = ("sglang", "vllm")
_COMPONENT = re.compile(r"(?:(?P<backend>[a-z]+)(?:\[\w+\])?[.:])?(?P<dimensions>(?:[a-z]\d+)+)")
_NESTED = re.compile(r"[a-z]+(?:\[\w+\])?[.:]\([^()]*\)")
# Where configurations of the guide's time and of today name the model.
_MODEL_KEYS = (("actor", "path"), ("sglang", "model_path"), ("vllm", "model"), ("rollout", "model_path"))
_HINT = "write it like sglang.d4p1t1 or sglang:d4t2: d replicas, each of t times p devices"


@dataclass(frozen=True, slots=True)
class Allocation:
    """The inference part. `engine` is None where the mode names none."""

    engine: str | None
    replicas: int
    tensor: int = 1
    pipeline: int = 1

    @property
    def devices(self) -> int:
        """Devices of one replica."""
        return self.tensor * self.pipeline


def parse_allocation(mode: str) -> Allocation:
    """The inference part of a mode; a mode without an engine's name is taken as that part if it is alone."""
    flat = _NESTED.sub("train:d1", mode.strip())
    parts = [_COMPONENT.fullmatch(part.strip()) for part in re.split(r"[+|]", flat)]
    if not all(parts):
        raise UsageError(f"allocation_mode {mode!r} is invalid", _HINT)
    found = [(part["backend"], part["dimensions"]) for part in parts if part is not None]
    engines = [item for item in found if item[0] in ENGINES]
    if len(engines) > 1:
        raise UsageError(f"allocation_mode {mode!r} has {len(engines)} inference parts", "serve one of them at a time")
    if not engines and (len(found) > 1 or found[0][0] is not None):
        raise UsageError(
            f"allocation_mode {mode!r} has no inference part: nothing to serve",
            "write sglang.d4p1t1; to debug an algorithm: `rldbg rerun batch.pt --loss module:function`",
        )
    engine, dimensions = (engines or found)[0]
    sizes: dict[str, int] = {}
    for letter, size in re.findall(r"([a-z])(\d+)", dimensions):
        if letter not in "dtp" or letter in sizes or int(size) < 1:
            raise UsageError(f"allocation_mode {mode!r}: {letter}{size} is invalid", _HINT)
        sizes[letter] = int(size)
    return Allocation(engine, sizes.get("d", 1), sizes.get("t", 1), sizes.get("p", 1))


@dataclass(frozen=True, slots=True)
class ArealConfiguration:
    """What `serve up --config FILE` takes from an AReaL configuration; the rest of the file is for training."""

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
            f"allocation_mode {mode!r} has no inference part: nothing to serve",
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
