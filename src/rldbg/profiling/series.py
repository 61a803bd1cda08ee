"""One measure of a process's memory over its steps: the level at the end of each, and what each phase gains itself."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import numpy as np

from rldbg.profiling.tracks import PhaseSpan, Track, with_inner

OUTSIDE = ""
"""What a process gains between its phases."""
FEWEST_STEPS = 8
# The first steps allocate what stays: caches, buffers, states of the optimizer.
_WARM_UP = 3
# All pairs of steps are compared.
_MOST_STEPS = 500


class MemoryPlaces(NamedTuple):
    """Where a measure is among the numbers of a span."""

    entry: int
    end: int
    peak: int | None = None
    counted: bool = False
    """Left out of a span where counting would have cost too much."""

    def of(self, span: PhaseSpan) -> tuple[int, int] | None:
        if len(span.memory_kib) <= self.end:
            return None
        entry, end = span.memory_kib[self.entry], span.memory_kib[self.end]
        return None if entry is None or end is None else (entry, end)


@dataclass(frozen=True, slots=True)
class Series:
    """By step, in order. What is gained is without what the phases inside gain."""

    levels: Mapping[int, float]
    """With the last step before those that are judged."""
    gains: Mapping[str, Mapping[int, float]]
    """By phase, in the judged steps: also 0 where a phase did not run."""
    temporary: Mapping[str, float]
    """What each phase takes and frees again, as far as peaks are known."""


def series_of(track: Track, places: MemoryPlaces) -> Series | None:
    """None if there are too few steps, or a phase in them was too expensive to count."""
    spans = [span for span in track.spans if span.step >= 0 and places.of(span) is not None]
    spans.sort(key=lambda each: each.end_ns)
    steps = sorted({span.step for span in spans})
    judged = steps[_WARM_UP:][-_MOST_STEPS:]
    if len(judged) < FEWEST_STEPS:
        return None
    before = steps[steps.index(judged[0]) - 1]
    chosen = [span for span in spans if span.step >= before]
    if places.counted and any(
        span.memory_kib and places.of(span) is None for span in track.spans if span.step >= before
    ):
        return None
    levels = {span.step: float(span.memory_kib[places.end] or 0) for span in chosen}
    levels = {step: levels[step] for step in sorted(levels)}
    return Series(levels, _gains(chosen, places, levels), _temporary(chosen, places))


def _gains(
    spans: Sequence[PhaseSpan], places: MemoryPlaces, levels: Mapping[int, float]
) -> dict[str, dict[int, float]]:
    before, *judged = levels
    gains: dict[str, dict[int, float]] = defaultdict(lambda: dict.fromkeys(judged, 0.0))
    outside = {step: levels[step] - levels[last] for last, step in zip(levels, judged, strict=False)}
    for span, inner in with_inner(spans):
        if span.step != before:
            own = _gain(span, places) - sum(_gain(each, places) for each in inner)
            gains[span.phase][span.step] += own
            outside[span.step] -= own
    return {**gains, OUTSIDE: outside}


def _temporary(spans: Sequence[PhaseSpan], places: MemoryPlaces) -> dict[str, float]:
    if places.peak is None:
        return {}
    taken: dict[str, list[float]] = defaultdict(list)
    for span in spans:
        peak = span.memory_kib[places.peak] or 0
        taken[span.phase].append(peak - max(places.of(span) or (peak, peak)))
    return {phase: median(each) for phase, each in taken.items()}


def _gain(span: PhaseSpan, places: MemoryPlaces) -> int:
    entry, end = places.of(span) or (0, 0)
    return end - entry


def rate(steps: Sequence[int], held: Sequence[float]) -> float:
    """The change per step: the median over all pairs of steps (Theil and Sen's)."""
    earlier, later = np.triu_indices(len(steps), 1)
    at, values = np.asarray(steps, np.float64), np.asarray(held, np.float64)
    return float(np.median((values[later] - values[earlier]) / (at[later] - at[earlier])))
