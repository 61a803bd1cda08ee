"""Causes that look like noise: one side's numbers depend on their batch, or are computed or stored coarsely."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from rldbg.analysis import NOISE, context_of, has_both_signs, round_to
from rldbg.mismatch.claims import Claim, Unexplained

_FEWEST = 8
_DTYPES = (("bfloat16", 8), ("float16", 11))
# Of nine tokens in ten, mixed precision leaves no more than this; an unbiased gap beyond it is something else.
_SCATTER = 0.25
# How often noise may be taken for something else because of its largest tokens.
_FALSE_ALARMS = 1e-3


def rounded(state: Unexplained) -> Iterator[Claim]:
    """One side's values are representable in a coarse dtype, and the other side's are not."""
    table = state.table
    finite = state.open & np.isfinite(table.gap)
    if finite.sum() < _FEWEST:
        return
    for name, coarse, fine in (("rollout", table.rollout, table.trainer), ("trainer", table.trainer, table.rollout)):
        for dtype, bits in _DTYPES:
            step = np.ldexp(1.0, -bits) * np.maximum(np.abs(coarse), np.ldexp(1.0, -10))
            stored = np.array_equal(coarse[finite], round_to(coarse[finite], bits))
            if stored and not np.array_equal(fine[finite], round_to(fine[finite], bits)):
                rows = np.flatnonzero(finite & (state.size <= step + NOISE))
                if len(rows) >= 0.5 * finite.sum():
                    text = f"the {name}'s log probs are stored in {dtype}"
                    yield Claim("precision", text, rows, np.zeros(len(rows)), {"side": name, "dtype": dtype})
                    return
                if _is_small(table.gap[finite]):
                    rows = np.flatnonzero(finite)
                    text = (
                        f"the {name}'s log probs are {dtype} numbers and differ by more than storing them would do: "
                        "logits or softmax were not in float32"
                    )
                    yield Claim("softmax-precision", text, rows, np.zeros(len(rows)), {"side": name, "dtype": dtype})
                    return


def batch_variance(state: Unexplained) -> Iterator[Claim]:
    """The same token in the same context with the same weights has several log probs on one side only."""
    table = state.table
    groups: dict[tuple[int, str, bytes], list[int]] = defaultdict(list)
    for row in np.flatnonzero(state.open & np.isfinite(table.gap)).tolist():
        place = table.places[int(table.place[row])]
        context = context_of(place.tokens, int(table.position[row]) + 1)
        groups[int(table.version[row]) if table.version[row] >= 0 else place.step, place.replica or "", context].append(
            row
        )
    several = [np.asarray(rows) for rows in groups.values() if len(rows) > 1]
    if sum(map(len, several)) < _FEWEST:
        return
    rows = np.concatenate(several)
    spread = {
        name: np.concatenate([values[part] - values[part].mean() for part in several])
        for name, values in (("rollout", table.rollout), ("trainer", table.trainer))
    }
    rms = {name: float(np.sqrt(np.mean(part**2))) for name, part in spread.items()}
    whole = float(np.sqrt(np.mean(table.gap[rows] ** 2)))
    name = max(rms, key=lambda side: rms[side])
    if rms[name] > 5 * NOISE and rms[name] >= 0.5 * whole and rms[name] >= 3 * min(rms.values()):
        text = (
            f"the {name} gives one token in one context log probs that scatter by {rms[name]:.2g} "
            f"({len(rows)} tokens): its numbers depend on what else is in the batch"
        )
        chosen = np.flatnonzero(state.open)
        left = np.maximum(state.size[chosen] - 4 * rms[name], 0.0)
        yield Claim("batch-variance", text, chosen, left, {"side": name, "scatter": rms[name]})


def low_precision(state: Unexplained) -> Iterator[Claim]:
    """What is left scatters around 0 without bias."""
    rows = np.flatnonzero(state.open & np.isfinite(state.table.gap))
    gap = state.table.gap[rows]
    if len(gap) < 2 * _FEWEST or not (np.abs(gap) > NOISE).any():
        return
    if _scatters(gap):
        spread = float(gap.std())
        text = (
            f"the rest scatters around 0 by {spread:.2g} without bias, as another precision, kernel or batch makes it, "
            "or weights that differ a little; --probe tells these apart"
        )
        yield Claim("precision", text, rows, np.zeros(len(rows)), {"scatter": spread})


def _scatters(gap: np.ndarray) -> bool:
    """Around 0, nine tokens in ten by no more than mixed precision does; unlikely tokens may differ by more.

    Tokens that one side sampled have there, on average, a log prob that is larger by half the variance. The largest of
    them may be as far out as the largest of so many whose tail falls off as slowly as that of these tokens does.
    """
    spread = float(gap.std())
    unbiased = abs(float(gap.mean())) <= 4 * spread / np.sqrt(len(gap)) + spread**2 and has_both_signs(gap)
    most, tail, largest = np.quantile(np.abs(gap), [0.9, 0.99, 1.0])
    # An exponential tail: a tenth of the tokens is beyond `most`, a hundredth beyond `tail`.
    scale = max(tail - most, most) / np.log(10)
    return bool(unbiased and most <= _SCATTER and largest <= most + scale * np.log(0.1 * len(gap) / _FALSE_ALARMS))


def _is_small(gap: np.ndarray) -> bool:
    """Whether the gap is what a softmax in a coarse dtype leaves: at most the spacing of large logits."""
    return bool(float(np.abs(gap).max()) <= _SCATTER)


RULES = (rounded, batch_variance, low_precision)
