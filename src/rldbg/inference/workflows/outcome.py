"""What came of each episode, and of a whole rollout."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, Literal

from rldbg.inference.workflows.completions import Trained
from rldbg.inference.workflows.data import EpisodeSpec
from rldbg.inference.workflows.timeline import Timeline

_MOST_ALIKE_NAMED = 8


@dataclass(frozen=True, slots=True)
class Failure:
    """An episode that raised, hung or returned nonsense: where, on which sample, and how to run just that one."""

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

    def to_text(self, alike: Sequence[Failure] = ()) -> str:
        title = f"sample {self.sample}: {self.error}"
        if alike:
            named = ", ".join(item.sample for item in alike[:_MOST_ALIKE_NAMED])
            more = " ..." if len(alike) > _MOST_ALIKE_NAMED else ""
            title += f"   (and {len(alike)} more like it: {named}{more})"
        parts = [title, self.traceback or f"{self.error}: {self.message}", f"  sample: {self.data}"]
        if self.hint:
            parts.append(f"  try: {self.hint}")
        return "\n".join([*parts, f"  run just this one (--pdb stops there): {self.command}"])


@dataclass(frozen=True, slots=True)
class Outcome:
    """One episode: its rows, or its failure, or neither when the workflow rejected it or it never ran."""

    spec: EpisodeSpec
    rows: tuple[Trained, ...] = ()
    failure: Failure | None = None
    rejected: bool = False
    timeline: Timeline | None = None


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
    failures: tuple[Failure, ...] = ()
    notes: tuple[str, ...] = ()
    traces: str | None = None
    interrupted: bool = False
    hung: bool = field(default=False)

    @property
    def ok(self) -> bool:
        return not self.failures and not self.not_run and self.rows > 0

    def failures_by_likeness(self) -> list[list[Failure]]:
        """Equal failures together, in the order of the data."""
        groups: dict[tuple[str, str, str], list[Failure]] = defaultdict(list)
        for failure in self.failures:
            groups[failure.likeness].append(failure)
        return list(groups.values())

    def to_dict(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in self.__slots__}
        return plain | {"ok": self.ok, "failures": [failure.to_dict() for failure in self.failures]}

    def summary(self) -> str:
        done = self.episodes - len(self.failures) - len(self.rejected) - len(self.not_run)
        parts = [f"{done} of {self.episodes} episodes", f"{self.rows} rows", f"{self.tokens} tokens trained on"]
        if self.mean_reward is not None:
            parts.append(f"mean reward {self.mean_reward:.3f}")
        if self.rejected:
            parts.append(f"{len(self.rejected)} rejected by the workflow")
        if self.failures:
            parts.append(f"{len(self.failures)} failed")
        if self.not_run:
            parts.append(f"{len(self.not_run)} not run")
        return ", ".join(parts) + f" in {self.seconds:.1f} s"

    def _repr_html_(self) -> str:
        shown = "".join(f"<pre>{escape(group[0].to_text(group[1:]))}</pre>" for group in self.failures_by_likeness())
        return f"<p>{escape(self.summary())}</p>{shown}"
