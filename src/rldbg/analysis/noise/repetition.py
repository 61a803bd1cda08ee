"""A clean repetition of A as the reference: differences no larger, and no more frequent, than its own are noise.

Compared are distributions of |a - b| over the elements beyond tolerance, because noise has tails: the largest of them
alone would excuse a bug that moves everything by less. Elements of twice a size may be as many as the repetition has of
that size, and three standard deviations of that count; none may be twice as large as its largest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rldbg.analysis.measured import Measured
from rldbg.analysis.side import Side
from rldbg.analysis.tolerances import Tolerances
from rldbg.analysis.units import Unit, UnitResult, UnitWorker, units_of


def judge_by_repetitions(
    a: Side,
    b: Side,
    repetitions: Sequence[Side],
    steps: Sequence[int],
    kinds: Sequence[str] | None,
    tolerances: Tolerances,
    result: UnitResult,
) -> None:
    """Marks fields as noise that differ as A and its repetitions do, update by update."""
    suspects = {key for key, field in result.fields.items() if field.first is not None}
    fresh = UnitResult()
    worker = UnitWorker(a, b, tolerances)
    others = [UnitWorker(a, side, tolerances) for side in repetitions]
    for step in steps if suspects else ():
        units = [unit for unit in units_of(a, b, [step], kinds) if any(unit.kinds[0] == kind for kind, _ in suspects)]
        for update in sorted({update for unit in units for update in a.updates(unit.kinds[0], step)}):
            found = _measured(worker, units, update)
            for side, other in zip(repetitions, others, strict=True):
                _excuse(found, _measured(other, units, update), side.title)
            fresh.merge(found)
    for key in suspects & fresh.fields.keys():
        result.fields[key] = fresh.fields[key]


def _measured(worker: UnitWorker, units: Sequence[Unit], update: tuple[int, int]) -> UnitResult:
    total = UnitResult()
    for unit in units:
        total.merge(worker.run(unit, update))
    return total


def _excuse(found: UnitResult, repeated: UnitResult, title: str) -> None:
    for key, field in found.fields.items():
        other = repeated.fields.get(key)
        if field.first is None or other is None or not _is_no_larger(field.measured, other.measured):
            continue
        field.first = field.worst = None
        field.measured.allowed += field.measured.beyond
        field.measured.beyond = 0
        field.notes.add(f"within the noise measured against {title}")


def _is_no_larger(found: Measured, noise: Measured) -> bool:
    odd = [getattr(one, name) for one in (found, noise) for name in ("nan_a", "nan_b", "inf_a", "inf_b")]
    if any(odd) or not math.isfinite(found.max_abs) or found.max_abs > 2 * noise.max_abs:
        return False
    if found.histogram is None or noise.histogram is None:
        return False
    # Counts from each power of two upwards; the found ones from the next power on.
    sizes, allowed = np.cumsum(found.histogram[::-1])[::-1], np.cumsum(noise.histogram[::-1])[::-1]
    expected = allowed[:-1] * (found.compared / max(noise.compared, 1))
    return bool((sizes[1:] <= expected + 3 * np.sqrt(expected) + 3).all())
