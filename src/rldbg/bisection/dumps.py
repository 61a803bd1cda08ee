"""Tensors that other tools dumped, as one side: SGLang's dumper, and msprobe.

SGLang's dumper writes one file per tensor, its facts in the name: `forward_pass_id=1___rank=0___name=NAME___...pt`.
msprobe writes `Module.NAME.CLASS.forward.N.output.M.pt` below `dump_tensor_data`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from rldbg.bisection.module_outputs import Capture, ModuleOutput, first_tensor, sampled_values
from rldbg.core import IncompleteDataError

_MSPROBE = re.compile(
    r"Module\.(?P<name>.+)\.(?P<kind>\w+)\.(?P<way>forward|backward)\.(?P<call>\d+)\.(?P<part>\w+)\.0\.pt$"
)
_PASS, _RANK, _INDEX = "forward_pass_id", "rank", "dump_index"


def is_dump(path: Path) -> bool:
    """Whether a folder holds dumps of one of these tools."""
    return path.is_dir() and any(_facts(file) is not None for file in sorted(path.rglob("*.pt"))[:50])


def read_dump(path: Path, *, rank: int = 0) -> Capture:
    """The first forward pass of one rank."""
    found = Capture(str(path))
    files = [(facts, file) for file in path.rglob("*.pt") if (facts := _facts(file)) is not None]
    passes = {facts[1] for facts, _ in files if facts[2] == rank}
    if not passes:
        raise IncompleteDataError(f"{path} has no dumped outputs of rank {rank}", "see docs/bisect.md for what is read")
    first = min(passes)
    for facts, file in sorted(files, key=lambda item: (item[0][3], item[0][0])):
        name, number, owner, _, kind, way = facts
        if number == first and owner == rank:
            side = found.forward if way == "forward" else found.backward
            side.extend(_outputs(name, kind, file))
    return found


Facts = tuple[str, int, int, int, str, str]  # name, pass, rank, order, kind, way


def _facts(file: Path) -> Facts | None:
    if "___" in file.name:
        parts = dict(part.partition("=")[::2] for part in file.name.removesuffix(".pt").split("___"))
        if "name" not in parts:
            return None
        return (
            parts["name"],
            int(parts.get(_PASS, 0)),
            int(parts.get(_RANK, 0)),
            int(parts.get(_INDEX, 0)),
            "",
            "forward",
        )
    match = _MSPROBE.match(file.name)
    if match is None or (match["way"], match["part"]) not in (("forward", "output"), ("backward", "output")):
        return None
    rank = next((int(found[1]) for parent in file.parents if (found := re.fullmatch(r"rank_?(\d+)", parent.name))), 0)
    return match["name"], int(match["call"]), rank, 0, match["kind"], match["way"]


def _outputs(name: str, kind: str, file: Path) -> Iterator[ModuleOutput]:
    import torch

    content = torch.load(file, map_location="cpu", weights_only=True)
    tensor = first_tensor(content.get("value", content) if isinstance(content, dict) else content)
    if tensor is not None:
        yield ModuleOutput(name, kind, tuple(tensor.shape), sampled_values(tensor))
