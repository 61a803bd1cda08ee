"""Whether two recordings count their steps from different numbers: one framework begins with 0, another with 1."""

from __future__ import annotations

import numpy as np

from rldbg.analysis.samples import StepSamples
from rldbg.analysis.side import Side


def other_numbering(a: Side, b: Side) -> int | None:
    """What to add to the steps of B so that they mean those of A; None when the numbers agree or it cannot be known.

    The samples decide: the first steps of both sides hold the same sequences, and equal numbers do not.
    """
    steps_a, steps_b = sorted(a.steps("trajectory")), sorted(b.steps("trajectory"))
    if not steps_a or not steps_b or steps_a[0] == steps_b[0]:
        return None
    first_a = _sequences(a, steps_a[0])
    later = steps_a[0] if steps_a[0] in steps_b else None
    if not first_a or not first_a & _sequences(b, steps_b[0]):
        return None
    if later is not None and first_a & _sequences(b, later):
        return None
    return steps_a[0] - steps_b[0]


def _sequences(side: Side, step: int) -> set[bytes]:
    tokens = StepSamples(side, step).tokens
    return {np.asarray(row, dtype="<i8").tobytes() for row in tokens.values()}
