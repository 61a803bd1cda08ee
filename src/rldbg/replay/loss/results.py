"""The result of a user's loss on a saved batch: its values and gradients, compared with the references."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import isnan
from typing import Any, Literal

from rldbg.core import Finding, Severity
from rldbg.lazy import shown_by

LossVerdict = Literal["equal", "proportional", "opposite", "differs"]


@dataclass(frozen=True, slots=True)
class LossComparison:
    """The loss against one reference at one point."""

    reference: str
    loss: float
    gradient_norm: float
    gradient_difference: float
    cosine: float
    factor: float
    verdict: LossVerdict


@dataclass(frozen=True, slots=True)
class Point:
    """The loss at some log probs: those recorded, those of a model, or moved away from them."""

    name: str
    meaning: str
    loss: float
    loss_of_ranks: tuple[float, ...]
    gradient_norm: float
    comparisons: tuple[LossComparison, ...]


@dataclass(frozen=True, slots=True)
class ModelGradients:
    """Norms of the parameters' gradient: the user's, the references', and the parameters with the largest."""

    norm: float
    references: Mapping[str, float]
    cosines: Mapping[str, float]
    largest: Mapping[str, float]
    largest_log_prob_difference: float


@shown_by("loss")
@dataclass(frozen=True, slots=True)
class LossReport:
    loss: str
    recording: str
    step: int
    rows: int
    tokens: int
    ranks: int
    device: str
    model: str
    points: tuple[Point, ...]
    gradients: ModelGradients | None = None
    findings: tuple[Finding, ...] = ()
    references: Mapping[str, str] = field(default_factory=dict)

    @property
    def equal_to(self) -> tuple[str, ...]:
        """The references it equals at every point."""
        return self._everywhere("equal")

    @property
    def opposite_of(self) -> tuple[str, ...]:
        """The references whose gradient it turns around at every point."""
        return self._everywhere("opposite")

    def _everywhere(self, verdict: LossVerdict) -> tuple[str, ...]:
        found = [{item.reference for item in point.comparisons if item.verdict == verdict} for point in self.points]
        return tuple(name for name in self.references if all(name in names for names in found))

    @property
    def ok(self) -> bool:
        return not any(finding.severity is Severity.ERROR for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        plain = asdict(self)
        plain["findings"] = [finding.to_dict() for finding in self.findings]
        return plain | {"equal_to": list(self.equal_to), "ok": self.ok}

    def conclusion(self) -> str:
        if self.equal_to:
            return f"{self.loss} equals {' and '.join(self.references[name] for name in self.equal_to)}"
        if self.opposite_of:
            return f"{self.loss} is the opposite of {self.references[self.opposite_of[0]]}"
        comparisons = self.points[-1].comparisons
        nearest = max(comparisons, key=lambda item: (item.verdict == "proportional", item.cosine))
        named = self.references[nearest.reference]
        if nearest.verdict == "proportional":
            return f"{self.loss} is {nearest.factor:.6g} times {named}"
        near = "" if isnan(nearest.cosine) else f"; the nearest is {named}, cosine {nearest.cosine:.6f}"
        return f"{self.loss} equals none of the references{near}"
