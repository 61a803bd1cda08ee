"""Causes seen in the values themselves: missing, filled with 0, one position off, of tokens that were not sampled."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rldbg.analysis import NOISE
from rldbg.mismatch.claims import Claim, Unexplained, whole

_FILLED = 1e-2
# The least probability that the tokens kept by a filter have together: one that keeps less, keeps a token by itself.
LEAST_KEPT = 0.2
_FEWEST_SHIFTED = 8


def not_finite(state: Unexplained) -> Iterator[Claim]:
    table = state.table
    for name, values in (("rollout", table.rollout), ("trainer", table.trainer)):
        bad = state.open & ~np.isfinite(values)
        if bad.any():
            yield whole("non-finite", f"the {name}'s log prob is NaN or infinite at {bad.sum()} tokens", bad, side=name)


def not_sampled(state: Unexplained) -> Iterator[Claim]:
    """Trained tokens that carry no version although others do: the environment's, not the policy's."""
    table = state.table
    chosen = state.apart & (table.version < 0) & (table.rollout == 0)
    if chosen.any() and (table.version >= 0).any():
        text = f"{chosen.sum()} trained tokens were not sampled by the policy: the loss mask covers the environment"
        yield whole("environment-in-mask", text, chosen)


def zero_filled(state: Unexplained) -> Iterator[Claim]:
    table = state.table
    pairs = (("rollout", table.rollout, table.trainer), ("trainer", table.trainer, table.rollout))
    for name, holed, other in pairs:
        chosen = state.open & (holed == 0) & (np.abs(other) > _FILLED)
        if chosen.any() and not (name == "rollout" and _may_be_filtered(state, chosen)):
            why = "the engine returned none there" if name == "rollout" else "truncated or padded in the trainer"
            text = f"the {name}'s log prob is exactly 0 at {chosen.sum()} tokens, the other side's is not: {why}"
            yield whole("zero-filled", text, chosen, side=name)


def _may_be_filtered(state: Unexplained, chosen: np.ndarray) -> bool:
    """A filter that leaves one token gives it log prob 0: then others are raised, too, and none is lowered."""
    gap = state.table.gap
    others = state.open & ~chosen
    is_raised = (gap[others] > 4 * NOISE).sum() >= _FEWEST_SHIFTED and (gap[others] >= -4 * NOISE).mean() >= 0.98
    return bool(is_raised and (state.table.trainer[chosen] > np.log(LEAST_KEPT)).all())


def shifted(state: Unexplained) -> Iterator[Claim]:
    """The rollout's values are the trainer's of the token before or after, at every open token of a sample."""
    table = state.table
    follows = (np.diff(table.position) == 1) & (np.diff(table.place) == 0)
    for offset, text in ((1, "one position late"), (-1, "one position early")):
        neighbour = np.full(len(table), np.nan)
        later, earlier = np.flatnonzero(follows) + 1, np.flatnonzero(follows)
        if offset == 1:
            neighbour[later] = table.trainer[earlier]
        else:
            neighbour[earlier] = table.trainer[later]
        told = state.apart & np.isfinite(neighbour)
        fits = told & (np.abs(table.rollout - neighbour) <= NOISE)
        if fits.sum() >= _FEWEST_SHIFTED and fits.sum() >= 0.9 * told.sum():
            edge = state.apart & ~np.isfinite(neighbour)
            yield whole("shift-by-one", f"the rollout's log probs are {text}", fits | edge, shift=offset)
            return


RULES = (not_finite, not_sampled, shifted, zero_filled)
