"""Everything about a record except its data."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rldbg.core import SampleId
from rldbg.recording.kinds import Scope
from rldbg.recording.records import RecordKey


@dataclass(frozen=True, slots=True)
class Ticket:
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
    complete: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    """Work on the fields that a writer thread does before they are written."""
