"""Time and memory per role, process and phase; memory that grows from step to step, and what an engine keeps while it
sleeps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import mean, median

from rldbg.agent.profiling import SLEEPS
from rldbg.profiling.tracks import PhaseSpan, Track, self_times, with_inner

_KIB_PER_MIB = 1024
# The first steps allocate what stays: caches, buffers, states of the optimizer.
_WARM_UP = 3
_FEWEST_STEPS = 8
_LEAST_MIB_PER_STEP = 0.25
# Steps over which growth is seen although allocators take memory in lumps.
_LUMP = 4
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
    """Theil and Sen's slope of the memory at the end of each step, if it really rises."""
    ends: dict[int, int] = {}
    for span in sorted(track.spans, key=lambda each: each.end_ns):
        held = _exit(span, at)
        if span.step >= 0 and held is not None:
            ends[span.step] = held
    steps = sorted(ends)[_WARM_UP:]
    flat = _last_flat(steps, [ends[step] for step in steps])
    if flat is None:
        return None
    since = steps[flat:]
    slope = _slope(since, [ends[step] for step in since]) / _KIB_PER_MIB
    before = [step for step in ends if step < since[0]][-1:]
    grew = flat == 0 and bool(before) and ends[since[0]] - ends[before[0]] >= slope * _KIB_PER_MIB / 2
    begins = since[0] if grew else since[1]
    return Leak(title, name, _phase_that_gains(track, begins, at, slope), begins, slope, len(since))


def _last_flat(steps: Sequence[int], held: Sequence[int]) -> int | None:
    """The step after which the growth begins that lasts to the end; None when the end does not grow. Allocators grow in
    lumps and sometimes return a little, so single steps do not count."""
    last = len(steps) - _FEWEST_STEPS
    if last < 0 or not _rises(steps[last:], held[last:]):
        return None
    rate = _slope(steps[last:], held[last:])
    first = last
    while first >= _LUMP and held[first] - held[first - _LUMP] >= rate / 2 * (steps[first] - steps[first - _LUMP]):
        first -= 1
    near = range(max(first - 2 * _LUMP, 0), min(first + 2 * _LUMP, last) + 1)
    begin = near[0]
    return min(near, key=lambda flat: _misfit(steps[begin:], held[begin:], steps[flat]))


def _misfit(steps: Sequence[int], held: Sequence[int], flat: int) -> float:
    """Squared distance to the nearest line that is level up to a step and rises from there on."""
    risen = [max(step - flat, 0) for step in steps]
    middle, centre = mean(risen), mean(held)
    spread = sum((x - middle) ** 2 for x in risen)
    slope = sum((x - middle) * (y - centre) for x, y in zip(risen, held, strict=True)) / spread if spread else 0.0
    return sum((y - centre - slope * (x - middle)) ** 2 for x, y in zip(risen, held, strict=True))


def _rises(steps: Sequence[int], held: Sequence[int]) -> bool:
    pairs = list(combinations(range(len(steps)), 2))
    rising = sum(held[later] > held[earlier] for earlier, later in pairs)
    return rising >= _RISING * len(pairs) and _slope(steps, held) >= _LEAST_MIB_PER_STEP * _KIB_PER_MIB


def _slope(steps: Sequence[int], held: Sequence[int]) -> float:
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
