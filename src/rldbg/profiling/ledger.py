"""Time and memory per role, process and phase; memory that grows from step to step, and what an engine keeps while it
sleeps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from rldbg.agent.profiling import SLEEPS
from rldbg.profiling.tracks import PhaseSpan, Track

_KIB_PER_MIB = 1024
# The first steps allocate what stays: caches, buffers, states of the optimizer.
_WARM_UP = 3
_FEWEST_STEPS = 8
_LEAST_MIB_PER_STEP = 0.25
# Of all pairs of steps, the later one holds more in at least this share.
_RISING = 0.9


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One phase of one process: seconds per step; memory at entry, peak and exit in MiB (median, highest, median)."""

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
    phase: str
    """The phase that gains most; empty when it grows outside every phase."""
    first_step: int
    mib_per_step: float
    steps: int

    @property
    def text(self) -> str:
        where = f"in phase {self.phase}" if self.phase else "outside every phase"
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
            for span in track.spans:
                by_phase[span.phase].append(span)
            for phase, spans in by_phase.items():
                seconds = sum(span.length_ns for span in spans) / 1e9 / max(steps, 1)
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
    first = _first_rising(steps, [ends[step] for step in steps])
    if first is None:
        return None
    since = steps[first:]
    slope = _slope(since, [ends[step] for step in since]) / _KIB_PER_MIB
    before = [step for step in ends if step < since[0]][-1:]
    grew = bool(before) and ends[since[0]] - ends[before[0]] >= slope * _KIB_PER_MIB / 2
    begins = since[0] if grew or not before else since[1]  # growth is measured from the end of the step before
    return Leak(title, name, _phase_that_gains(track, begins, at, slope), begins, slope, len(since))


def _first_rising(steps: Sequence[int], held: Sequence[int]) -> int | None:
    """The step after which the growth begins that lasts to the end; None when the end does not grow."""
    last = len(steps) - _FEWEST_STEPS
    if last < 0 or not _rises(steps[last:], held[last:]):
        return None
    rate = _slope(steps[last:], held[last:])
    first = last
    while first > 0 and held[first] - held[first - 1] >= rate / 2 * (steps[first] - steps[first - 1]):
        first -= 1
    return first


def _rises(steps: Sequence[int], held: Sequence[int]) -> bool:
    pairs = list(combinations(range(len(steps)), 2))
    rising = sum(held[later] > held[earlier] for earlier, later in pairs)
    return rising >= _RISING * len(pairs) and _slope(steps, held) >= _LEAST_MIB_PER_STEP * _KIB_PER_MIB


def _slope(steps: Sequence[int], held: Sequence[int]) -> float:
    pairs = combinations(range(len(steps)), 2)
    return median((held[b] - held[a]) / (steps[b] - steps[a]) for a, b in pairs)


def _phase_that_gains(track: Track, first_step: int, at: int, slope_mib: float) -> str:
    """The phase whose own gain, without the phases inside it, makes up most of the growth."""
    gains: dict[str, float] = defaultdict(float)
    steps = set()
    for span, gain in _own_gains(span for span in track.spans if span.step >= first_step):
        if gain[at // 3] is not None:
            gains[span.phase] += gain[at // 3] or 0.0
            steps.add(span.step)
    if not gains:
        return ""
    phase = max(gains, key=lambda name: gains[name])
    return phase if gains[phase] / _KIB_PER_MIB >= 0.5 * slope_mib * max(len(steps), 1) else ""


def _own_gains(spans: Iterable[PhaseSpan]) -> list[tuple[PhaseSpan, tuple[float | None, float | None]]]:
    answer: list[tuple[PhaseSpan, tuple[float | None, float | None]]] = []
    by_thread: dict[int, list[PhaseSpan]] = defaultdict(list)
    for span in spans:
        by_thread[span.thread].append(span)
    for members in by_thread.values():
        open_spans: list[tuple[PhaseSpan, list[float | None]]] = []
        for span in sorted(members, key=lambda each: (each.start_ns, -each.length_ns)):
            while open_spans and open_spans[-1][0].end_ns <= span.start_ns:
                answer.append(_closed(open_spans.pop()))
            gain = [_gain(span, 0), _gain(span, 3)]
            if open_spans:
                outer = open_spans[-1][1]
                for place, value in enumerate(gain):
                    before = outer[place]
                    outer[place] = None if before is None else before - (value or 0.0)
            open_spans.append((span, gain))
        answer += map(_closed, open_spans)
    return answer


def _closed(item: tuple[PhaseSpan, list[float | None]]) -> tuple[PhaseSpan, tuple[float | None, float | None]]:
    return item[0], (item[1][0], item[1][1])


def _gain(span: PhaseSpan, at: int) -> float | None:
    entry, end = _number(span, at), _exit(span, at)
    return None if entry is None or end is None else float(end - entry)


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
