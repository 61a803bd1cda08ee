"""Time and memory per role, process and phase; memory that grows from step to step, and what an engine keeps while it
sleeps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

import numpy as np

from rldbg.agent.profiling import SLEEPS
from rldbg.profiling.tracks import PhaseSpan, Track, self_times, with_inner

_KIB_PER_MIB = 1024
# The first steps allocate what stays: caches, buffers, states of the optimizer.
_WARM_UP = 3
_FEWEST_STEPS = 8
# All pairs of steps are compared.
_MOST_STEPS = 500
_LEAST_MIB_PER_STEP = 0.25
# Of all pairs of steps, the later one holds more in at least this share.
_RISING = 0.9


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One phase of one process: its own seconds per step; memory at entry, peak and exit in MiB (median, highest,
    median)."""

    role: str
    process: str
    phase: str
    seconds: float
    host_mib: tuple[float, float, float] | None
    gpu_mib: tuple[float, float, float] | None


@dataclass(frozen=True, slots=True)
class Leak:
    """Memory of a process that grows from step to step."""

    process: str
    memory: str
    phase: str | None
    """The phase that gains it; empty when it grows outside every phase, None when that is not clear."""
    first_step: int
    mib_per_step: float
    steps: int

    @property
    def text(self) -> str:
        where = f"in phase {self.phase}" if self.phase else "outside every phase"
        if self.phase is None:
            where = "in a phase that is not clear (they gain and return more than that)"
        return (
            f"{self.process} gains {self.mib_per_step:.2f} MiB of {self.memory} memory per step since step "
            f"{self.first_step}, {where}"
        )


@dataclass(frozen=True, slots=True)
class Residue:
    """GPU memory that is still in use on its device after an engine went to sleep, in MiB."""

    process: str
    phase: str
    mib: float


def ledger_of(groups: dict[str, list[tuple[str, Track]]], steps: int) -> list[LedgerRow]:
    """By role; each process under the name it has in reports."""
    rows = []
    for role, members in groups.items():
        for title, track in members:
            by_phase: dict[str, list[PhaseSpan]] = defaultdict(list)
            own_ns: dict[str, int] = defaultdict(int)
            for span, own in self_times(track.spans):
                by_phase[span.phase].append(span)
                own_ns[span.phase] += own
            for phase, spans in by_phase.items():
                seconds = own_ns[phase] / 1e9 / max(steps, 1)
                rows.append(LedgerRow(role, title, phase, seconds, _memory(spans, 0), _memory(spans, 3)))
    return rows


def leaks_of(title: str, track: Track) -> list[Leak]:
    found = []
    for name, at in (("host", 0), ("GPU", 3)):
        if (leak := _leak(title, track, name, at)) is not None:
            found.append(leak)
    return found


def residues_of(title: str, track: Track) -> list[Residue]:
    """The memory still in use after each engine's last sleep."""
    last = {span.phase: span for span in track.spans if span.phase in SLEEPS and _exit(span, 3) is not None}
    return [Residue(title, phase, (_exit(span, 3) or 0) / _KIB_PER_MIB) for phase, span in last.items()]


def _leak(title: str, track: Track, name: str, at: int) -> Leak | None:
    """Growth of the memory at the end of each step that lasts to the end of the run."""
    ends: dict[int, int] = {}
    for span in sorted(track.spans, key=lambda each: each.end_ns):
        held = _exit(span, at)
        if span.step >= 0 and held is not None:
            ends[span.step] = held
    steps = sorted(ends)
    warm, steps = steps[:_WARM_UP], steps[_WARM_UP:][-_MOST_STEPS:]
    if len(steps) < _FEWEST_STEPS:
        return None
    bend = _bend(steps, [ends[step] for step in steps])
    since = steps[bend:]
    held_since = [ends[step] for step in since]
    if not _rises(since, held_since):
        return None
    slope = _slope(since, held_since)
    # Growth is measured from the end of the step before.
    grew_before = bend == 0 and warm and ends[since[0]] - ends[warm[-1]] >= slope / 2
    begins = since[0] if grew_before else since[1]
    mib = slope / _KIB_PER_MIB
    return Leak(title, name, _phase_that_gains(track, begins, at, mib), begins, mib, len(since))


def _bend(steps: Sequence[int], held: Sequence[int]) -> int:
    """Where a level line that bends upwards fits best: the index of the last step before the growth."""
    at, values = np.asarray(steps, np.float64), np.asarray(held, np.float64)
    centred = values - values.mean()
    explained = []
    for bend in range(len(steps) - _FEWEST_STEPS + 1):
        grown = np.maximum(at - at[bend], 0.0)
        grown -= grown.mean()
        explained.append(max(float(grown @ centred), 0.0) ** 2 / float(grown @ grown))
    return int(np.argmax(explained))


def _rises(steps: Sequence[int], held: Sequence[int]) -> bool:
    """Whether the later of two steps nearly always holds more, and the last steps grow as those before them did."""
    pairs = list(combinations(held, 2))
    # Allocators take memory in portions: steps that hold the same speak neither for growth nor against it.
    rising = sum(1.0 if later > earlier else 0.5 if later == earlier else 0.0 for earlier, later in pairs)
    slope, last = _slope(steps, held), _slope(steps[-_FEWEST_STEPS:], held[-_FEWEST_STEPS:])
    return rising >= _RISING * len(pairs) and slope >= _LEAST_MIB_PER_STEP * _KIB_PER_MIB and last >= slope / 2


def _slope(steps: Sequence[int], held: Sequence[int]) -> float:
    """Theil and Sen's."""
    pairs = combinations(range(len(steps)), 2)
    return median((held[b] - held[a]) / (steps[b] - steps[a]) for a, b in pairs)


def _phase_that_gains(track: Track, first_step: int, at: int, slope_mib: float) -> str | None:
    """The phase that gains as much as is lost, without the phases inside it and what it gained before the growth.

    Phases also gain what a later one returns (activations, until the backward pass): a leak that was there from the
    first step is not told from that."""
    gains = _mean_gains(track, at, lambda step: step >= first_step)
    usual = _mean_gains(track, at, lambda step: _WARM_UP < step < first_step)
    rises = {phase: (gain - usual.get(phase, 0.0)) / slope_mib for phase, gain in gains.items()}
    if fitting := {phase: rise for phase, rise in rises.items() if 0.5 <= rise <= 1.5}:
        return min(fitting, key=lambda phase: abs(fitting[phase] - 1))
    return None if any(rise > 1.5 for rise in rises.values()) else ""


def _mean_gains(track: Track, at: int, wanted: Callable[[int], bool]) -> dict[str, float]:
    """MiB per step and phase."""
    spans = [span for span in track.spans if span.step >= 0 and wanted(span.step)]
    gains: dict[str, float] = defaultdict(float)
    for span, inner in with_inner(spans):
        gains[span.phase] += (_gain(span, at) - sum(_gain(each, at) for each in inner)) / _KIB_PER_MIB
    steps = len({span.step for span in spans})
    return {phase: gain / steps for phase, gain in gains.items()}


def _gain(span: PhaseSpan, at: int) -> int:
    entry, end = _number(span, at), _exit(span, at)
    return 0 if entry is None or end is None else end - entry


def _exit(span: PhaseSpan, at: int) -> int | None:
    return _number(span, at + 2)


def _number(span: PhaseSpan, place: int) -> int | None:
    return span.memory_kib[place] if len(span.memory_kib) > place else None


def _memory(spans: Sequence[PhaseSpan], at: int) -> tuple[float, float, float] | None:
    known = [span.memory_kib[at : at + 3] for span in spans if _exit(span, at) is not None]
    numbers = [(float(entry or 0), float(peak or 0), float(end or 0)) for entry, peak, end in known]
    if not numbers:
        return None
    entries, peaks, ends = zip(*numbers, strict=True)
    return median(entries) / _KIB_PER_MIB, max(peaks) / _KIB_PER_MIB, median(ends) / _KIB_PER_MIB
