"""File names of the NexRL document and of our own recordings: <kind>/step_000000[_rank0][_micro0].<format>."""

import re
from typing import NamedTuple

_NAME = re.compile(
    r"^(?:[^/]+/)?(?P<kind>[^/]+)/step_(?P<step>-?\d+)(?:_epoch(?P<epoch>\d+)_mini(?P<mini_batch>\d+))?"
    r"(?:_rank(?P<rank>\d+))?(?:_micro(?P<micro>\d+))?(?:_part(?P<part>\d+))?\.(?P<format>safetensors|pt|jsonl|parquet)$"
)


class StepFile(NamedTuple):
    """What a file's name says about the record in it."""

    kind: str
    step: int
    rank: int
    micro: int
    epoch: int
    mini_batch: int
    format: str


def parse(folder: str, name: str) -> StepFile | None:
    """The parts of a name below a root folder (which is the kind, when the file lies directly in it)."""
    found = _NAME.match(f"{folder}/{name}")
    if found is None:
        return None
    rank, micro, epoch, mini_batch = (int(found[part] or 0) for part in ("rank", "micro", "epoch", "mini_batch"))
    return StepFile(found["kind"], int(found["step"]), rank, micro, epoch, mini_batch, found["format"])
