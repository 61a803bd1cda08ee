"""How coarsely logits are computed, read from log probs where no gradient was recorded.

The log probs of two tokens that follow the same context differ by their logits: log p(x) - log p(y) = z(x) - z(y). Of
logits that were rounded to bfloat16 or float16 that difference is a multiple of the spacing of such numbers, however
fine the dtype is in which the log probs were recorded; of float32 logits it is one by chance only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from rldbg.analysis.explain import contexts
from rldbg.analysis.side import Side
from rldbg.analysis.tokens import read_tokens
from rldbg.analysis.tolerances import roundoff_of

# The spacing of bfloat16 from 1/64 on and of float16 from 1/8 on; a difference of recorded log probs may be off from a
# multiple by a few roundings to float32. One in 32 lies as close to one by chance.
_SPACING, _OFF = 2.0**-13, 2.0**-19
# The spacing of bfloat16 from 1/8 on, which most logits are beyond; that of float16 only from 1 on.
_WIDE_SPACING = 2.0**-10
_FEWEST, _SHARE = 8, 0.9
_STEPS = 3


def logits_roundoff(a: Side, b: Side, steps: Sequence[int]) -> float:
    """The unit roundoff of both sides' logits, of the finer ones where they differ; 0 where one side's are float32."""
    return min(_of_side(side, steps[:_STEPS]) for side in (a, b))


def _of_side(side: Side, steps: Sequence[int]) -> float:
    gaps = np.asarray([gap for step in steps for gap in _differences(side, step)])
    if len(gaps) < _FEWEST or _share(gaps, _SPACING) < _SHARE:
        return 0.0
    return roundoff_of("bfloat16" if _share(gaps, _WIDE_SPACING) > 0.5 else "float16")


def _share(gaps: np.ndarray, spacing: float) -> float:
    """The share of them that are multiples of a spacing."""
    return float(np.mean(np.abs(gaps - spacing * np.round(gaps / spacing)) <= _OFF))


def _differences(side: Side, step: int) -> Iterator[float]:
    # Of one state of the weights only.
    samples = read_tokens(side, step, (0, 0)).values()
    # The trainer's come first: an engine may be the coarser one.
    for name in ("old_log_probs", "log_probs", "rollout_log_probs"):
        draws = contexts.within(samples, name, name)
        for drawn in draws.values():
            first, *others = (value for value, _ in drawn.values())
            yield from (other - first for other in others if other != first)
        if draws:
            return
