"""The stages of a re-executed step in causal order, each compared with its recording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from rldbg.lazy import shown_by


class StageVerdict(StrEnum):
    """How a stage compares with its recording."""

    EXACT = "exact"
    WITHIN = "within tolerance"
    DIFFERS = "differs"
    NOT_COMPARED = "not compared"  # executed, but the recording has nothing to compare it with
    NOT_EXECUTED = "not executed"  # the recording lacks what it needs


@dataclass(frozen=True, slots=True)
class StageTolerance:
    """|recomputed - recorded| <= absolute + relative * |recorded|."""

    absolute: float
    relative: float

    def __str__(self) -> str:
        return f"{self.absolute:g} + {self.relative:g} * |recorded|"


@dataclass(frozen=True, slots=True)
class StageMeasured:
    """One quantity compared with its record."""

    name: str
    values: int
    differing: int
    max_abs: float
    first_place: str
    within: bool

    @property
    def exact(self) -> bool:
        return self.differing == 0


@dataclass(frozen=True, slots=True)
class RerunStage:
    """One stage: its verdict, and the quantities behind it."""

    name: str
    verdict: StageVerdict
    note: str = ""
    measured: tuple[StageMeasured, ...] = ()
    tolerance: StageTolerance | None = None

    @property
    def worst(self) -> StageMeasured | None:
        differing = [item for item in self.measured if not item.exact]
        return max(differing, key=lambda item: (not item.within, item.max_abs), default=None)

    def to_dict(self) -> dict[str, Any]:
        worst = self.worst
        return {
            "stage": self.name,
            "verdict": self.verdict.value,
            "note": self.note,
            "values": sum(item.values for item in self.measured),
            "differing": sum(item.differing for item in self.measured),
            "max_abs": worst.max_abs if worst else 0.0,
            "first": f"{worst.name} {worst.first_place}".strip() if worst else "",
            "tolerance": str(self.tolerance) if self.tolerance else "",
        }


@shown_by("rerun")
@dataclass(frozen=True, slots=True)
class RerunReport:
    """A re-executed step compared with its recording."""

    recording: str
    step: int
    ranks: tuple[int, ...]
    stages: tuple[RerunStage, ...]
    changes: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def first_difference(self) -> RerunStage | None:
        return next((stage for stage in self.stages if stage.verdict is StageVerdict.DIFFERS), None)

    @property
    def reproduced(self) -> bool:
        """Whether something was compared and nothing was beyond its tolerance."""
        compared = any(stage.verdict in (StageVerdict.EXACT, StageVerdict.WITHIN) for stage in self.stages)
        return compared and self.first_difference is None

    def to_dict(self) -> dict[str, Any]:
        first = self.first_difference
        return {
            "recording": self.recording,
            "step": self.step,
            "ranks": list(self.ranks),
            "changes": dict(self.changes),
            "reproduced": self.reproduced,
            "first_difference": first.name if first else None,
            "stages": [stage.to_dict() for stage in self.stages],
            "metrics": dict(self.metrics),
        }


def measure(
    name: str, recomputed: Any, recorded: Any, tolerance: StageTolerance, places: Sequence[str] = ()
) -> StageMeasured:
    """Compares an array with its record, bit by bit first. NaN equals NaN: it was reproduced."""
    ours, theirs = np.asarray(recomputed), np.asarray(recorded)
    if ours.shape != theirs.shape:
        place = f"shape {list(ours.shape)}, recorded {list(theirs.shape)}"
        return StageMeasured(name, theirs.size, max(theirs.size, 1), float("inf"), place, within=False)
    same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    wrong = np.flatnonzero(~same)
    if not len(wrong):
        return StageMeasured(name, theirs.size, 0, 0.0, "", within=True)
    ours_wrong, theirs_wrong = ours.reshape(-1)[wrong].astype(np.float64), theirs.reshape(-1)[wrong].astype(np.float64)
    distance = np.abs(ours_wrong - theirs_wrong)
    within = bool((distance <= tolerance.absolute + tolerance.relative * np.abs(theirs_wrong)).all())
    first = int(wrong[0])
    place = places[first] if places else f"at {list(map(int, np.unravel_index(first, theirs.shape)))}"
    largest = float("inf") if np.isnan(distance).any() else float(distance.max())
    return StageMeasured(name, theirs.size, len(wrong), largest, place, within)


def judge(name: str, measured: Sequence[StageMeasured], tolerance: StageTolerance, note: str = "") -> RerunStage:
    """The verdict on a stage from all its quantities; without any it was executed but not compared."""
    if not measured:
        return RerunStage(name, StageVerdict.NOT_COMPARED, note)
    if all(item.exact for item in measured):
        verdict = StageVerdict.EXACT
    else:
        verdict = StageVerdict.WITHIN if all(item.within for item in measured) else StageVerdict.DIFFERS
    return RerunStage(name, verdict, note, tuple(measured), tolerance)
