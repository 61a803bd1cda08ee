"""Who made a record and which samples its rows are: the keys by which data is aligned, never file order."""

import os
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple

from rldbg.core.environment import Environment
from rldbg.core.errors import UsageError


class SampleId(NamedTuple):
    """One trajectory: the group it was sampled in and which of the group's samples it is."""

    group_id: str
    run_id: int

    def __str__(self) -> str:
        return f"{self.group_id}/{self.run_id}"

    @classmethod
    def parse(cls, text: str) -> "SampleId":
        """The inverse of str(); a group id may itself contain slashes."""
        group_id, separator, run_id = text.rpartition("/")
        if not separator or not run_id.lstrip("-").isdigit():
            raise UsageError(f"not a sample id: {text!r} (expected GROUP/RUN, for example g0/3)")
        return cls(group_id, int(run_id))


def _host_name() -> str:
    import socket  # readers of recordings never ask

    return socket.gethostname()


@dataclass(frozen=True, slots=True)
class Identity:
    """One process of a job: its role, rank, place in each parallel dimension, and host."""

    role: str = "trainer"
    rank: int = 0
    world_size: int = 1
    coordinates: dict[str, int] = field(default_factory=dict)
    host: str = field(default_factory=_host_name)
    pid: int = field(default_factory=os.getpid)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_environment(cls, environment: Environment, role: str = "trainer") -> "Identity":
        """What torchrun, SLURM or rldbg's launcher say about this process."""
        return cls(
            role=environment.text("RLDBG_ROLE") or role,
            rank=environment.integer("RANK", environment.integer("SLURM_PROCID", 0)),
            world_size=environment.integer("WORLD_SIZE", environment.integer("SLURM_NTASKS", 1)),
        )


def prompt_hash(prompt_tokens: bytes) -> str:
    """A short stable name of a prompt, from its token ids as little-endian int64 bytes."""
    return blake2b(prompt_tokens, digest_size=8).hexdigest()
