"""Memory that grows from step to step: since when, by how much, and which phase keeps it.

Host memory is what malloc has in use, where the processes wrote that down. Resident memory alone says that a process
grows, but hardly where: what one phase frees stays resident for the next phase that allocates.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rldbg.profiling.series import FEWEST_STEPS, OUTSIDE, MemoryPlaces, Series, rate, series_of
from rldbg.profiling.tracks import Track

_KIB_PER_MIB = 1024
_LEAST_KIB_PER_STEP = 256.0
# Of all pairs of steps, the later one holds more in at least this share.
_RISING = 0.9
_RESIDENT, _GPU = MemoryPlaces(0, 2, peak=1), MemoryPlaces(3, 5)
_MALLOC, _BLOCKS = MemoryPlaces(6, 7, counted=True), MemoryPlaces(8, 9, counted=True)
_LARGEST_BLOCK_KIB = 0.5
# A phase that gains at least half as much as is lost, and at most half as much again.
_FITS = (0.5, 1.5)


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
    is_hidden: bool = False
    """Only the phase grows in nearly every step: what the others keep goes up and down by more than that."""

    @property
    def text(self) -> str:
        amount = f"{self.mib_per_step:.2f} MiB of {self.memory} memory"
        if self.is_hidden:
            return (
                f"{self.process} keeps {amount} more per step since step {self.first_step}, in phase {self.phase} "
                "(what other phases keep goes up and down by more than that; they do not seem to return it)"
            )
        where = f"in phase {self.phase}" if self.phase else "outside every phase"
        if self.phase is None:
            where = "in a phase that is not clear (several gain and return as much, or take and free more than that)"
        return f"{self.process} gains {amount} per step since step {self.first_step}, {where}"


class _Growth(NamedTuple):
    first_step: int
    per_step: float
    steps: int


def leaks_of(title: str, track: Track) -> list[Leak]:
    found = [_host_leak(title, track), _gpu_leak(title, track)]
    return [leak for leak in found if leak is not None]


def _gpu_leak(title: str, track: Track) -> Leak | None:
    held = series_of(track, _GPU)
    if held is None:
        return None
    growth = _growth(held.levels)
    return _leak(title, "GPU", growth, held) if growth else _hidden(title, "GPU", held)


def _host_leak(title: str, track: Track) -> Leak | None:
    resident = series_of(track, _RESIDENT)
    if resident is None:
        return None
    used, grows = series_of(track, _MALLOC), _growth(resident.levels)
    kept = _growth(used.levels) if used is not None else None
    if grows is not None and (kept is None or kept.per_step < grows.per_step / 2):
        blocks = series_of(track, _BLOCKS)
        objects = _growth(blocks.levels, grows.per_step / 2 / _LARGEST_BLOCK_KIB) if blocks is not None else None
        if blocks is not None and objects is not None:
            phase = _phase_that_gains(blocks, objects)
            return Leak(title, "host", phase, objects.first_step, grows.per_step / _KIB_PER_MIB, objects.steps)
    if used is not None and kept is not None:
        return _leak(title, "host", kept, used)
    if grows is None:
        return _hidden(title, "host", used) if used is not None else None
    return _leak(title, "host", grows, resident)


def _leak(title: str, memory: str, growth: _Growth, held: Series) -> Leak:
    phase = _phase_that_gains(held, growth)
    if phase and held.temporary.get(phase, 0.0) > growth.per_step:
        phase = None  # What it frees stays resident: what others keep then shows as what this phase takes anew.
    return Leak(title, memory, phase, growth.first_step, growth.per_step / _KIB_PER_MIB, growth.steps)


def _hidden(title: str, memory: str, held: Series) -> Leak | None:
    """A phase that keeps more at nearly every step, in a process that goes up and down by more than that."""
    for phase, gains in held.gains.items():
        if phase == OUTSIDE:
            continue
        kept = dict(zip(held.levels, np.cumsum([0.0, *gains.values()]).tolist(), strict=True))
        growth = _growth(kept)
        if growth is not None and _stays(held.levels, growth):
            mib = growth.per_step / _KIB_PER_MIB
            return Leak(title, memory, phase, growth.first_step, mib, growth.steps, is_hidden=True)
    return None


def _stays(levels: Mapping[int, float], growth: _Growth) -> bool:
    """Whether the whole process holds more by at least half of what one phase keeps: by the trend, from the first step
    to the last, and from the earlier half to the later one."""
    before = max(step for step in levels if step < growth.first_step)
    steps = [step for step in levels if step >= before]
    held = [levels[step] for step in steps]
    half, least = len(steps) // 2, growth.per_step / 2
    halves = (np.mean(held[-half:]) - np.mean(held[:half])) / (len(steps) - half)
    ends = (held[-1] - held[0]) / (len(steps) - 1)
    return min(float(halves), ends, rate(steps, held)) >= least


def _growth(levels: Mapping[int, float], least: float = _LEAST_KIB_PER_STEP) -> _Growth | None:
    """Growth that lasts to the end of the run; `levels` also have the last step of the warm-up, if there is one."""
    before, *steps = levels
    if len(steps) < FEWEST_STEPS:
        return None
    bend = _bend(steps, [levels[step] for step in steps])
    since = steps[bend:]
    held = [levels[step] for step in since]
    per_step = rate(since, held)
    if per_step < least or not _rises(since, held, per_step):
        return None
    # Growth is measured from the end of the step before.
    grew_before = bend == 0 and levels[since[0]] - levels[before] >= per_step / 2
    return _Growth(since[0] if grew_before else since[1], per_step, len(since))


def _bend(steps: Sequence[int], held: Sequence[float]) -> int:
    """Where a level line that bends upwards fits best: the index of the last step before the growth."""
    at, values = np.asarray(steps, np.float64), np.asarray(held, np.float64)
    centred = values - values.mean()
    explained = []
    for bend in range(len(steps) - FEWEST_STEPS + 1):
        grown = np.maximum(at - at[bend], 0.0)
        grown -= grown.mean()
        explained.append(max(float(grown @ centred), 0.0) ** 2 / float(grown @ grown))
    return int(np.argmax(explained))


def _rises(steps: Sequence[int], held: Sequence[float], per_step: float) -> bool:
    """Whether the later of two steps nearly always holds more, and the last steps grow as those before them did."""
    values = np.asarray(held, np.float64)
    earlier, later = np.triu_indices(len(values), 1)
    # Allocators take memory in portions: steps that hold the same speak neither for growth nor against it.
    rising = np.mean(np.sign(values[later] - values[earlier]) / 2 + 0.5)
    return bool(rising >= _RISING) and rate(steps[-FEWEST_STEPS:], held[-FEWEST_STEPS:]) >= per_step / 2


def _phase_that_gains(held: Series, growth: _Growth) -> str | None:
    """The only phase whose own gain is what is lost, without what it gained before the growth.

    Phases also gain what a later one returns (activations, until the backward pass): a leak that was there from the
    first step is not told from a phase that keeps as much for another."""
    fitting, certain, unsteady, larger = [], [], set(), False
    for phase, gains in held.gains.items():
        since = [gain for step, gain in gains.items() if step >= growth.first_step]
        usual = [gain for step, gain in gains.items() if step < growth.first_step]
        gain = float(np.mean(since)) - (float(np.mean(usual)) if usual else 0.0)
        larger = larger or gain > _FITS[1] * growth.per_step
        if _FITS[0] <= gain / growth.per_step <= _FITS[1]:
            fitting.append(phase)
            if float(np.std(since)) > growth.per_step / 2:
                unsteady.add(phase)
            if abs(gain) >= 2 * float(np.std(since)) / len(since) ** 0.5:
                certain.append(phase)
    # By chance, what goes up and down may also gain as much.
    named = certain or fitting
    if len(named) != 1 or (larger and named[0] in unsteady):
        # A phase that gains more, of which others return a part, may as well keep what is lost.
        return None
    return named[0]
