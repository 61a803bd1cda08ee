"""How the files of a recording are called. docs/recording.md is the contract."""

import re
from functools import lru_cache

from rldbg.recording.kinds import KINDS, Scope
from rldbg.recording.recorder.settings import Format
from rldbg.recording.records import RecordKey

_FOLDER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


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


def part(stem: str, number: int, format: Format) -> str:
    """The file's path; the first file of a name has no part number."""
    return f"{stem}_part{number}.{format}" if number else f"{stem}.{format}"
