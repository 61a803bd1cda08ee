"""Time and memory per role, process and phase, and what an engine keeps while it sleeps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from rldbg.agent.profiling import SLEEPS
from rldbg.profiling.tracks import PhaseSpan, Track, self_times

_KIB_PER_MIB = 1024


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


def residues_of(title: str, track: Track) -> list[Residue]:
    """The memory still in use after each engine's last sleep."""
    last = {span.phase: span for span in track.spans if span.phase in SLEEPS and _exit(span, 3) is not None}
    return [Residue(title, phase, (_exit(span, 3) or 0) / _KIB_PER_MIB) for phase, span in last.items()]


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
