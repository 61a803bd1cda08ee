"""What a comparison found: fields, stages, the first difference, and the verdict."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rldbg.analysis.configuration import ConfigurationDifference
from rldbg.analysis.fields import FieldDifference, Place
from rldbg.analysis.measured import BINS, LOWEST_EXPONENT, Measured
from rldbg.analysis.stages import Stage
from rldbg.core import Finding, Severity, worst
from rldbg.lazy import html_by
from rldbg.recording import RecordKey

if TYPE_CHECKING:
    from rldbg.analysis.explain import Explanation
    from rldbg.analysis.noise.levels import NoiseLevel
    from rldbg.analysis.structure import NoiseStatistics, Structure

# Within its own tolerance but not bit for bit; within what upstream differences allow; beyond that.
FieldVerdict = Literal["equal", "equal within noise", "drift", "different"]
Verdict = Literal["equal", "equal within noise", "drift", "different", "incomplete"]
# Of a whole comparison, the worst first.
VERDICTS: tuple[Verdict, ...] = ("different", "incomplete", "drift", "equal within noise", "equal")
_BY_SEVERITY: tuple[FieldVerdict, ...] = ("different", "drift", "equal within noise", "equal")
# Every id of a finding that a comparison may hold: what `--fail-on` takes besides verdicts and stages.
COMPARISON_FINDINGS = (
    "aligned-by-place",
    "aligned-with-care",
    "cannot-place",
    "kind-on-one-side",
    "loss-difference",
    "metrics-diverge",
    "metrics-unreadable",
    "noise-unknown",
    "not-explained",
    "resampled",
    "shape-mismatch",
    "step-on-one-side",
    "tokenizers-differ",
    "unaligned",
    "undecided",
    "unreadable",
)
_PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


_MASKS = frozenset(("response_mask", "effective_valid"))
_OF_PASSES = frozenset(("forward_data", "is_loss_debug"))


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """Where two recordings first diverge, in causal order."""

    stage: Stage
    kind: str
    field: str
    step: int
    place: Place
    epoch: int = 0
    mini_batch: int = 0

    def to_dict(self) -> dict[str, Any]:
        place = self.place
        return {
            "stage": self.stage.value,
            "kind": self.kind,
            "field": self.field,
            "step": self.step,
            "epoch": self.epoch,
            "mini_batch": self.mini_batch,
            "rank": place.rank,
            "micro": place.micro,
            "sample": place.sample,
            "row": place.row,
            "token": place.token,
            "index": None if place.index is None else list(place.index),
            "name": place.name or None,
            "a": place.a,
            "b": place.b,
        }

    @property
    def update(self) -> tuple[int, int, int]:
        """Which optimizer step of the run."""
        return (self.step, self.epoch, self.mini_batch)

    @property
    def is_lack_of_a_token(self) -> bool:
        """Whether one side's pass has fewer tokens of a sample, and all before agree."""
        return self.kind in _OF_PASSES and self.field not in _MASKS and (self.place.a is None or self.place.b is None)

    @property
    def order(self) -> tuple[int, ...]:
        place = self.place
        return (*self.update, place.rank, place.micro, place.row or 0, place.token or 0)


@dataclass(slots=True)
class FieldResult:
    """One field of one kind over all compared steps."""

    kind: str
    field: str
    stage: Stage
    measured: Measured = dataclasses.field(default_factory=Measured)
    first: FirstDifference | None = None
    worst: FirstDifference | None = None
    odd: FirstDifference | None = None
    worst_excess: float = float("-inf")
    notes: set[str] = dataclasses.field(default_factory=set)
    # Largest |a - b| and the number of elements beyond tolerance, by (step, rank, micro) of A.
    cells: dict[tuple[int, int, int], tuple[float, int]] = dataclasses.field(default_factory=dict)

    @property
    def equal(self) -> bool:
        return self.first is None

    @property
    def verdict(self) -> FieldVerdict:
        if self.first is not None:
            return "different"
        if self.measured.allowed:
            return "drift"
        return "equal within noise" if self.measured.max_abs > 0 else "equal"

    def add(self, step: int, key: RecordKey, difference: FieldDifference) -> None:
        found = difference.measured
        one = FieldResult(self.kind, self.field, self.stage, found)
        one.cells[step, key.rank, key.micro] = (found.max_abs, found.beyond)
        one.notes = {difference.note} if difference.note else set()
        for name in ("first", "worst", "odd"):
            place = getattr(difference, name)
            if place is not None:
                where = FirstDifference(self.stage, self.kind, self.field, step, place, key.epoch, key.mini_batch)
                setattr(one, name, where)
        one.worst_excess = max(found.worst_excess, found.max_abs) if difference.worst is not None else float("-inf")
        self.merge(one)

    def merge(self, other: FieldResult) -> None:
        """Adds what another part of the same field found; the first place is the lowest, in whatever part it is."""
        self.measured.add(other.measured)
        self.notes |= other.notes
        for cell, (size, count) in other.cells.items():
            known_size, known_count = self.cells.get(cell, (0.0, 0))
            self.cells[cell] = (max(size, known_size), count + known_count)
        for name in ("first", "odd"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if theirs is not None and (mine is None or theirs.order < mine.order):
                setattr(self, name, theirs)
        if other.worst is not None and other.worst_excess > self.worst_excess:
            self.worst, self.worst_excess = other.worst, other.worst_excess

    def to_dict(self) -> dict[str, Any]:
        measured = self.measured
        return {
            "kind": self.kind,
            "field": self.field,
            "verdict": self.verdict,
            "compared": measured.compared,
            "beyond": measured.beyond,
            "allowed": measured.allowed,
            "max_abs": measured.max_abs,
            "mean_abs": measured.mean_abs,
            "max_rel": measured.max_rel,
            "max_ulp": measured.max_ulp,
            "cosine": measured.cosine,
            "percentiles": {name: measured.percentile(share) for name, share in _PERCENTILES.items()},
            "nan": [measured.nan_a, measured.nan_b],
            "inf": [measured.inf_a, measured.inf_b],
            "first_nan_or_inf": None if self.odd is None else self.odd.to_dict(),
            "first": None if self.first is None else self.first.to_dict(),
            "worst": None if self.worst is None else self.worst.to_dict(),
            "cells": [
                {"step": step, "rank": rank, "micro": micro, "max_abs": size, "beyond": count}
                for (step, rank, micro), (size, count) in sorted(self.cells.items())
            ],
            "notes": sorted(self.notes),
        }

    def distribution(self) -> list[tuple[float, float]]:
        """Elements beyond tolerance by size: the lower edge of each power of two, and how many."""
        if self.measured.histogram is None:
            return []
        return [
            (2.0 ** (number + LOWEST_EXPONENT), float(self.measured.histogram[number]))
            for number in range(BINS)
            if self.measured.histogram[number]
        ]


@html_by("comparison", "one_to_terminal")
@dataclass(slots=True)
class Comparison:
    """The result: a verdict, the first difference, every field, and what could not be compared."""

    fields: list[FieldResult]
    findings: list[Finding]
    steps: list[int]
    titles: tuple[str, str] = ("A", "B")
    shift: int = 0
    explanations: list[Explanation] = dataclasses.field(default_factory=list)
    # Only when the recordings do not decide between several explanations, or only say where the fault lies.
    candidates: list[Explanation] = dataclasses.field(default_factory=list)
    # Only when nothing fits: hypotheses that account for part of the difference, and so are not its cause.
    nearest: list[Explanation] = dataclasses.field(default_factory=list)
    configuration: ConfigurationDifference | None = None
    mismatch: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    # After each optimizer step, where differences had to be judged by what came in.
    noise: list[NoiseLevel] = dataclasses.field(default_factory=list)

    # With repetitions: what log probs differ by, and the shapes of it that noise does not have.
    noise_statistics: list[NoiseStatistics] = dataclasses.field(default_factory=list)
    structures: list[Structure] = dataclasses.field(default_factory=list)

    @property
    def compared(self) -> int:
        return sum(result.measured.compared for result in self.fields)

    @property
    def first_difference(self) -> FirstDifference | None:
        """The earliest optimizer step decides, then the causal order of the stages, then the place.

        What differs after one optimizer step differs in every stage of the next one: stages are ordered within one.
        """
        return first_of(self.fields)

    @property
    def verdict(self) -> Verdict:
        found = "different" if self.structures else worst_verdict(result.verdict for result in self.fields)
        return "incomplete" if found != "different" and worst(self.findings) is Severity.ERROR else found

    def stage_names(self) -> list[str]:
        """The stages that differ; including `config`, which does not affect the verdict."""
        return [row["stage"] for row in self.stages() if row["verdict"] == "different"]

    def stages(self) -> list[dict[str, Any]]:
        """One row per compared stage, in causal order."""
        rows = [] if self.configuration is None else [self.configuration.to_dict()]
        for stage in Stage:
            results = [result for result in self.fields if result.stage is stage]
            if results:
                rows.append(_stage_row(stage, results) | {"follows": self._follows(stage, results)})
        return rows

    def _follows(self, stage: Stage, results: Sequence[FieldResult]) -> bool:
        """Whether a stage may differ because another one did first: nothing in it says otherwise."""
        first = self.first_difference
        if first is None or stage is first.stage:
            return False
        return worst_verdict(result.verdict for result in results) in ("drift", "different")

    def to_dict(self) -> dict[str, Any]:
        first = self.first_difference
        return {
            "verdict": self.verdict,
            "a": self.titles[0],
            "b": self.titles[1],
            "compared": self.compared,
            "first_difference": None if first is None else first.to_dict(),
            "steps": self.steps,
            "stages": self.stages(),
            "noise": [level.to_dict() for level in self.noise],
            "mismatch": self.mismatch,
            "noise_statistics": [item.to_dict() for item in self.noise_statistics],
            "structures": [item.to_dict() for item in self.structures],
            "explanations": [item.to_dict() for item in self.explanations],
            "candidates": [item.to_dict() for item in self.candidates],
            "nearest": [item.to_dict() for item in self.nearest],
            "findings": [finding.to_dict() for finding in self.findings],
        }


def worst_verdict(verdicts: Iterable[str]) -> FieldVerdict:
    """The worst of several verdicts; equal when there are none."""
    seen = set(verdicts)
    return next((verdict for verdict in _BY_SEVERITY if verdict in seen), "equal")


def first_of(fields: Iterable[FieldResult]) -> FirstDifference | None:
    found = [result.first for result in fields if result.first is not None]
    masked = {item.update for item in found if item.field in _MASKS}
    # Where masks differ, tokens that only one side has follow from them.
    found = [item for item in found if item.update not in masked or not item.is_lack_of_a_token]
    return min(found, key=lambda item: (item.update, item.stage.order, item.order), default=None)


def _stage_row(stage: Stage, results: Sequence[FieldResult]) -> dict[str, Any]:
    total = Measured()
    for result in results:
        total.add(result.measured)
    return {
        "stage": stage.value,
        "verdict": worst_verdict(result.verdict for result in results),
        "compared": total.compared,
        "beyond": total.beyond,
        "allowed": total.allowed,
        "max_abs": total.max_abs,
        "mean_abs": total.mean_abs,
        "max_rel": total.max_rel,
        "nan": [total.nan_a, total.nan_b],
        "inf": [total.inf_a, total.inf_b],
        "fields": [result.to_dict() for result in results],
    }
