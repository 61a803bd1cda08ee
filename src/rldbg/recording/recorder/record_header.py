"""Everything about a record except its data; a model's parameters, one record each, share a header."""

from collections.abc import Callable
from typing import Any, NamedTuple

from rldbg.core import SampleId
from rldbg.recording.kinds import Scope
from rldbg.recording.records import RecordKey


class RecordHeader(NamedTuple):
    """Where a record belongs, whose rows it holds, and how it shares a file."""

    key: RecordKey
    scope: Scope
    rows: int
    alone: bool = True
    """Whether it has a file of its own; otherwise it waits for others."""
    last: bool = False
    """Whether nothing more will come for its file."""
    samples: tuple[SampleId, ...] = ()
    prompt_hashes: tuple[str, ...] = ()
    policy_version: int | None = None
    records: int = 1
    """How many records it stands for; their micro-batch numbers follow that of the key."""
    unfold: Callable[[dict[str, Any]], list[dict[str, Any]]] | None = None
    """What a writer thread makes of the fields handed over: the fields of each record. None: they are one record's."""

    @property
    def keys(self) -> list[RecordKey]:
        return [self.key._replace(micro=self.key.micro + number) for number in range(self.records)]
