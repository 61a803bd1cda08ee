"""What later passes may differ by where no parameters were recorded: a share of how far the updates moved log probs.

Gradients of products in bfloat16 are off by up to ten roundoffs (docs/tolerances.md), so an update is off by that share
of itself, and log probs by that share of what updates moved them. Logits of magnitude ten are themselves off by ten
roundoffs. Whether the runs computed in bfloat16 is not recorded either, so that much is never called a difference.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise

import numpy as np

from rldbg.analysis.side import Side
from rldbg.analysis.tolerances import Update, log_prob_error, roundoff_of
from rldbg.core import SampleId

_SHARE = 10 * roundoff_of("bfloat16")
# What passes in bfloat16 may leave a token apart (docs/tolerances.md), as a multiple of that, and how many tokens.
_RARELY, _RARE = 4.0, 0.1
# Old log probs that the first pass repeats are of the same weights; others are an engine's.
_SAME_WEIGHTS = 1e-3


def roundoffs_of_movement(
    a: Side, b: Side, gaps: Mapping[Update, np.ndarray], updates: Iterable[Update]
) -> dict[Update, float]:
    """The unit roundoff that would move log probs as far as the noise of all updates so far, after each update.

    `gaps` are how far the log probs of each pass are apart: a few of them may be farther than most are.
    """
    sides = [_way_before_passes(side) for side in (a, b)]
    passes = sorted({*gaps, *updates})
    found = {}
    for before, after in pairwise(passes):
        usual = _SHARE * max(1.0, min(side.get(after, 0.0) for side in sides))
        apart = gaps.get(after, np.empty(0))
        is_rare = apart.size > 0 and float(np.mean(apart > usual)) <= _RARE
        found[before] = (_RARELY if is_rare else 1.0) * usual / log_prob_error(1.0)
    return found


def _way_before_passes(side: Side) -> dict[Update, float]:
    """How far the most mobile log prob had come before each pass; empty where no sample was seen twice in a step."""
    by_step = {step: _moved(side, step) for step in sorted(side.steps("forward_data"))}
    known = [max(moved.values()) for moved in by_step.values() if any(moved.values())]
    found: dict[Update, float] = {}
    way = 0.0
    for step, moved in by_step.items():
        found |= {(step, *update): way + size for update, size in moved.items()}
        # A step whose samples are seen once goes as far as the others do.
        way += max(moved.values(), default=0.0) or max(known, default=0.0)
    return found if known else {}


def _moved(side: Side, step: int) -> dict[tuple[int, int], float]:
    """The largest change of a trained token's log prob since the step began, by pass."""
    passes: dict[tuple[int, int], dict[SampleId, np.ndarray]] = defaultdict(dict)
    for record in side.records("forward_data", step):
        if {"log_probs", "response_mask"} <= record.fields.keys():
            rows = zip(record.samples, record.rows("log_probs"), record.rows("response_mask"), strict=False)
            for sample, row, mask in rows:
                trained = np.asarray(mask) != 0
                passes[record.key.epoch, record.key.mini_batch][sample] = np.where(trained, row, 0.0)
    first = dict(passes[min(passes)]) if passes else {}
    old = {
        sample: np.asarray(row, np.float64)
        for record in side.records("old_log_probs", step)
        for sample, row in zip(record.samples, record.rows("old_log_probs"), strict=False)
    }
    if first and first.keys() <= old.keys():
        gaps = [_change(row, old[sample]) for sample, row in first.items()]
        if max(gaps) <= _SAME_WEIGHTS:
            first = old
    found = {}
    for update in sorted(passes):
        changes = [_change(row, first[sample]) for sample, row in passes[update].items() if sample in first]
        found[update] = max(changes, default=0.0)
        first = passes[update] | first
    return found


def _change(row: np.ndarray, before: np.ndarray) -> float:
    length = min(len(row), len(before))
    change = np.abs(row[:length] - before[:length])[row[:length] != 0]
    return float(change[np.isfinite(change)].max(initial=0.0))
