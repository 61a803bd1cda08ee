"""Two passes of the same weights over the same tokens that disagree unsystematically: rounding, or noise."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from rldbg.analysis.explain.contexts import NOISE, context_of
from rldbg.analysis.explain.evidence import Evidence, Explanation, largest
from rldbg.analysis.explain.passes import SideStep

# Sixteen roundings to bfloat16 of a number of the size of 1.
_ROUNDED = 16 * 2.0**-8
_FEWEST = 16
_FEWEST_REPEATED = 3

Gaps = dict[tuple[bytes, int], list[float]]


def scatter(evidence: Evidence) -> Iterator[Explanation]:
    """On one side only, old log probs and those of the first training pass scatter around each other without bias.

    Rounding does the same whenever the same token follows the same context; noise does not. Without tokens that occur
    twice nothing is reported.
    """
    found = [_between_passes(side) for _, side in evidence.sides]
    gaps = [np.asarray([gap for same in one.values() for gap in same]) for one in found]
    for (label, _), table, mine, other in zip(evidence.sides, found, gaps, reversed(gaps), strict=True):
        if len(mine) < _FEWEST or len(other) < _FEWEST or largest(other) > NOISE or largest(mine) <= NOISE:
            continue
        # Rounding and noise reach all tokens.
        if np.mean(mine != 0) < 0.5:
            continue
        spread = float(mine.std())
        repeated = [max(same) - min(same) for same in table.values() if len(same) > 1]
        if abs(float(mine.mean())) > 4 * spread / np.sqrt(len(mine)) or len(repeated) < _FEWEST_REPEATED:
            continue
        text = f"{label}'s old log probs and its first training pass scatter around each other by {spread:.2g}, "
        facts = {"side": label, "scatter": spread}
        if max(repeated) <= NOISE and largest(mine) <= _ROUNDED:
            text += "the same way wherever a token follows the same context: lower precision in one of the two"
            yield Explanation("precision", text, largest(mine), _ROUNDED, facts, 0.7)
        elif max(repeated) > NOISE:
            text += "differently each time a token follows the same context: noise in one of the two, such as dropout"
            yield Explanation("noise", text, parameters=facts, share=0.55)


def _between_passes(side: SideStep) -> Gaps:
    """Old minus new log prob in the first optimizer step, when nothing has been learned yet, by context and token."""
    gaps: Gaps = defaultdict(list)
    for sample in side.samples_at((0, 0)).values():
        values = sample.trained("old_log_probs", "log_probs")
        for old, new, position in zip(*values, strict=True) if values else ():
            gaps[context_of(sample, position), int(sample.tokens[position])].append(float(old) - float(new))
    return gaps
