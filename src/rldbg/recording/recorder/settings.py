"""The settings of a recorder, in one frozen value that pickles and travels to workers."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from rldbg.core import Identity, SampleId, UsageError, check_values, setting, unknown_key
from rldbg.recording.layouts.step_files import Format
from rldbg.recording.recorder.sample_ids import as_sample_id

ParameterMode = Literal["full", "hash"]
WhenFull = Literal["block", "drop"]

_MIB = 2**20
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # a Path has already made one slash of two


def is_url(place: Path | str) -> bool:
    """Whether a place to write to is a URL and not a folder."""
    return _URL.match(str(place)) is not None


@dataclass(frozen=True, slots=True)
class RecorderSettings:
    """What is recorded, where to, and how much memory and disk it may take.

    A filter that is None lets everything through. Bytes are per process.
    """

    directory: Path
    """The recording's folder; made when the first record comes."""
    enabled: bool = True
    """Enable recording; a disabled recorder touches nothing."""
    format: Format = "safetensors"
    """safetensors is ours; pt and jsonl are the NexRL document's files."""
    every_n_steps: int = setting(1, at_least=1)
    """Record every n-th step: those that n divides."""
    kinds: frozenset[str] | None = None
    """Only these kinds."""
    ranks: frozenset[int] | None = None
    """Only these ranks."""
    roles: frozenset[str] | None = None
    """Only roles that match one of these shell patterns."""
    samples: frozenset[SampleId] | None = None
    """Only the rows of these samples; records without sample ids are kept whole."""
    parameter_patterns: tuple[str, ...] = ()
    """Regular expressions searched in parameter names; every match is recorded."""
    parameter_mode: ParameterMode = "full"
    """Whole parameters and gradients, or only their hash and statistics."""
    gather_shards: bool = False
    """Gather sharded parameters (a collective: all ranks must record them) instead of recording the local shard."""
    buffer_bytes: int = setting(2048 * _MIB, at_least=_MIB)
    """Host memory for what is not yet on disk; only what is used is ever resident."""
    warm_bytes: int = setting(16 * _MIB, at_least=0)
    """How much of that memory is touched beforehand, so that the first records do not pay for page faults."""
    device_buffer_bytes: int = setting(1024 * _MIB, at_least=0)
    """GPU memory for clones that have not left the device; beyond it the caller's stream waits for the copy."""
    when_full: WhenFull = "block"
    """A full buffer makes the trainer wait, or drops the record and counts it in the journal."""
    budget_bytes: int | None = setting(None, at_least=1)
    """The recording stops itself before it takes more disk than this."""
    keep_last: int | None = setting(None, at_least=1)
    """Only the newest n recorded steps stay on disk, and the pinned ones."""
    pinned_steps: frozenset[int] = field(default_factory=frozenset)
    """Steps that retention never removes."""
    gather_s: float = setting(10.0, at_least=0)
    """Micro-batches wait at most this long for others of their file."""
    threads: int = setting(2, at_least=1)
    """Writer threads."""
    exit_flush_s: float = setting(15.0, at_least=0)
    """Seconds that the end of the process, or SIGTERM, waits for what is not yet written, smallest files first. Half
    of the 30 s that SLURM and Kubernetes grant between SIGTERM and SIGKILL, so the trainer's own handler has time."""

    def __post_init__(self) -> None:
        if is_url(self.directory):
            raise UsageError(
                f"cannot record to {self.directory}: a recorder writes to a local or mounted folder",
                "record to a folder and copy it, or mount the store",
            )
        check_values(self)
        for pattern in self.parameter_patterns:
            _compile(pattern)

    @classmethod
    def make(cls, directory: Path | str, **given: Any) -> "RecorderSettings":
        """Settings from plain lists, strings and numbers, as keywords and configuration files give them."""
        unknown = sorted(set(given) - set(cls.__slots__))
        if unknown:
            raise unknown_key(unknown[0], cls.__slots__, "Recorder")
        for name in ("kinds", "ranks", "roles", "pinned_steps"):
            if given.get(name) is not None:
                given[name] = frozenset(_many(given[name]))
        if given.get("samples") is not None:
            given["samples"] = frozenset(as_sample_id(item) for item in _many(given["samples"]))
        if "parameter_patterns" in given:
            given["parameter_patterns"] = tuple(pattern for pattern in _many(given["parameter_patterns"]) if pattern)
        return cls(directory=Path(directory), **given)

    def admits(self, identity: Identity) -> bool:
        """Whether this process records at all."""
        if not self.enabled:
            return False
        if self.ranks is not None and identity.rank not in self.ranks:
            return False
        return self.roles is None or any(fnmatchcase(identity.role, pattern) for pattern in self.roles)


def _many(value: Any) -> Iterable[Any]:
    return [value] if isinstance(value, str | int | SampleId) else value


def _compile(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise UsageError(
            f"the parameter pattern {pattern!r} is not a regular expression: {error}", "escape dots as \\."
        ) from error
