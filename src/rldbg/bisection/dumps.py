"""Tensors that other tools dumped, as one side: SGLang's dumper, and msprobe.

SGLang's dumper writes one file per tensor, its facts in the name: `forward_pass_id=1___rank=0___name=NAME___...pt`.
msprobe writes `Module.NAME.CLASS.forward.N.output.M.pt` below `stepS/rankR/dump_tensor_data` (`procPID` without ranks),
and the order of all calls to `dump.json` beside it. What it calls the input of a backward pass is the gradient of the
module's output.
"""

from __future__ import annotations

import json
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


def read_dump(path: Path) -> Capture:
    """The first forward pass of rank 0."""
    found = Capture(str(path))
    files = [(facts, file) for file in path.rglob("*.pt") if (facts := _facts(file)) is not None]
    passes = {facts[1] for facts, _ in files if facts[2] == 0}
    if not passes:
        raise IncompleteDataError(f"{path} has no dumped outputs of rank 0", "see docs/bisect.md for what is read")
    first = min(passes)
    chosen = [(facts, file) for facts, file in files if facts[1] == first and facts[2] == 0]
    # Of several steps or processes the first: files of SGLang's dumper lie in one folder.
    folder = min((file.parent for _, file in chosen), key=_by_step)
    order = _calls(folder)
    for facts, file in sorted(chosen, key=lambda item: (item[0][3], order.get(_call(item[1]), 0), item[0][0])):
        name, _, _, _, kind, way = facts
        if file.parent == folder:
            side = found.forward if way == "forward" else found.backward
            side.extend(_outputs(name, kind, file))
    return found


def _by_step(folder: Path) -> tuple[int, str]:
    steps = [int(found[1]) for part in folder.parts if (found := re.fullmatch(r"step_?(\d+)", part))]
    return (steps[-1] if steps else 0, str(folder))


def _calls(folder: Path) -> dict[str, int]:
    """The place of each call in the order in which msprobe saw them; empty where nothing says it."""
    file = folder.parent / "dump.json"
    if not file.is_file():
        return {}
    calls = json.loads(file.read_text(encoding="utf-8")).get("data", {})
    return {name: number for number, name in enumerate(calls)}


def _call(file: Path) -> str:
    """`Module.NAME.CLASS.forward.N` of a file's name."""
    return file.name.rsplit(".", 3)[0]


DumpName = tuple[str, int, int, int, str, str]  # name, pass, rank, order, kind, way


def _facts(file: Path) -> DumpName | None:
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
    if match is None or (match["way"], match["part"]) not in (("forward", "output"), ("backward", "input")):
        return None
    rank = next((int(found[1]) for parent in file.parents if (found := re.fullmatch(r"rank_?(\d+)", parent.name))), 0)
    return match["name"], int(match["call"]), rank, 0, match["kind"], match["way"]


def _outputs(name: str, kind: str, file: Path) -> Iterator[ModuleOutput]:
    import torch

    content = torch.load(file, map_location="cpu", weights_only=True)
    tensor = first_tensor(content.get("value", content) if isinstance(content, dict) else content)
    if tensor is not None:
        yield ModuleOutput(name, kind, tuple(tensor.shape), sampled_values(tensor))
