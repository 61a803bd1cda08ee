"""What came of each episode, and of a whole rollout."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Literal

from rldbg.inference.workflows.completions import Trained
from rldbg.inference.workflows.data import EpisodeSpec
from rldbg.inference.workflows.faults import FaultOutcome
from rldbg.inference.workflows.timeline import Timeline
from rldbg.lazy import shown_by


@dataclass(frozen=True, slots=True)
class EpisodeFailure:
    """An episode that raised, hung or returned nonsense: where, on which sample, and how to run only that one."""

    sample: str
    kind: Literal["exception", "timeout", "result"]
    error: str
    message: str
    traceback: str
    data: str
    command: str
    hint: str = ""

    @property
    def likeness(self) -> tuple[str, str, str]:
        """Failures with the same are shown once: the same error from the same lines."""
        places = "\n".join(line for line in self.traceback.splitlines() if line.startswith("  File"))
        return self.kind, self.error, places or self.message

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class EpisodeOutcome:
    """One episode: its rows, or its failure, or neither when the workflow rejected it or it never ran."""

    spec: EpisodeSpec
    rows: tuple[Trained, ...] = ()
    failure: EpisodeFailure | None = None
    rejected: bool = False
    timeline: Timeline | None = None


@shown_by("rollout")
@dataclass(frozen=True, slots=True)
class RolloutReport:
    """A rollout's result. `ok` means that every episode came to its end."""

    workflow: str
    shape: str
    addresses: tuple[str, ...]
    run: str
    batch: str | None
    episodes: int
    rows: int
    tokens: int
    seconds: float
    mean_reward: float | None
    rejected: tuple[str, ...] = ()
    not_run: tuple[str, ...] = ()
    failures: tuple[EpisodeFailure, ...] = ()
    notes: tuple[str, ...] = ()
    traces: str | None = None
    faults: tuple[FaultOutcome, ...] = ()
    interrupted: bool = False
    hung: bool = field(default=False)

    @property
    def ok(self) -> bool:
        return not self.failures and not self.not_run and self.rows > 0

    def failures_by_likeness(self) -> list[list[EpisodeFailure]]:
        """Equal failures together, in the order of the data."""
        groups: dict[tuple[str, str, str], list[EpisodeFailure]] = defaultdict(list)
        for failure in self.failures:
            groups[failure.likeness].append(failure)
        return list(groups.values())

    def to_dict(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in self.__slots__}
        lists = {name: [item.to_dict() for item in getattr(self, name)] for name in ("failures", "faults")}
        return plain | {"ok": self.ok} | lists
