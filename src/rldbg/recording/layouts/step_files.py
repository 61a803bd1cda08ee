"""Names of the files of a recording, as they are given and as they are read. docs/recording.md is the contract.

<kind>/step_<step>[_epoch<e>_mini<m>][_rank<r>][_micro<m>][_part<n>].<format>
"""

import re
from functools import lru_cache
from typing import Literal, NamedTuple

from rldbg.recording.kinds import KINDS, Scope
from rldbg.recording.records import RecordKey

Format = Literal["safetensors", "pt", "jsonl"]
"""What a recorder writes; parquet is written by conversion only."""
_FOLDER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_NAME = re.compile(
    r"^(?:[^/]+/)?(?P<kind>[^/]+)/step_(?P<step>-?\d+)(?:_epoch(?P<epoch>\d+)_mini(?P<mini_batch>\d+))?"
    r"(?:_rank(?P<rank>\d+))?(?:_micro(?P<micro>\d+))?(?:_part(?P<part>\d+))?\.(?P<format>safetensors|pt|jsonl|parquet)$"
)


@lru_cache(maxsize=256)
def is_kind_name(kind: str) -> bool:
    """Whether a kind can be a folder of a recording; `journal` is taken."""
    return kind != "journal" and _FOLDER.fullmatch(kind) is not None


def scope_of(kind: str, has_micro: bool) -> Scope:
    """A user's own kind is per micro-batch when it is given one, else per rank."""
    if kind in KINDS:
        return KINDS[kind].scope
    return Scope.MICRO if has_micro else Scope.RANK


def stem(key: RecordKey, scope: Scope, format: Format) -> str:
    """The file's path in the recording, without part and suffix."""
    name = f"{key.kind}/step_{key.step:06d}"
    if key.epoch or key.mini_batch:
        name += f"_epoch{key.epoch}_mini{key.mini_batch}"
    if scope is not Scope.STEP or key.rank:
        name += f"_rank{key.rank}"
    if scope is Scope.MICRO and format != "safetensors":
        name += f"_micro{key.micro}"
    return name


def part(stem: str, number: int, format: str) -> str:
    """The file's path; the first file of a name has no part number."""
    return f"{stem}_part{number}.{format}" if number else f"{stem}.{format}"


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
