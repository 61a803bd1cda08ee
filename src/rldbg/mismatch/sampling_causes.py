"""Causes in what a log prob means: renormalised over fewer tokens, of another temperature, with penalties.

Tokens sampled in one context share its logits, so the three leave different traces there: a filter raises all tokens of
a context by one amount, a temperature stretches the differences between them, a penalty lowers tokens seen before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from rldbg.analysis import NOISE, context_of, fit_factor
from rldbg.mismatch.claims import Claim, Unexplained, whole

_FEWEST = 8
_FEWEST_CONTEXTS = 2
# A rule must leave at most this part of the difference it is tried on.
_LEFT = 0.25
_UNIT = 0.01


def sampling_filter(state: Unexplained) -> Iterator[Claim]:
    groups = _contexts(state)
    several = [rows for rows in groups if len(set(state.table.token[rows].tolist())) > 1]
    if len(several) < _FEWEST_CONTEXTS:
        return
    gap = state.table.gap
    spread = np.concatenate([gap[rows] - np.median(gap[rows]) for rows in several])
    known = np.concatenate([gap[rows] for rows in several])
    chosen = state.open & (gap >= -4 * NOISE) & (gap <= -state.table.trainer + 4 * NOISE)
    raised = chosen & (gap > NOISE)
    varies = np.ptp(known) > 10 * NOISE
    if (
        varies
        and _rms(spread) <= _LEFT * _rms(known)
        and raised.sum() >= _FEWEST
        and chosen.sum() >= 0.98 * state.open.sum()
    ):
        largest = float(gap[raised].max())
        text = (
            f"the rollout's log probs are up to {largest:.3g} above the trainer's, by the same amount for all tokens "
            "of a context: renormalised over a part of the vocabulary (top-k, top-p or min-p)"
        )
        yield _with_floor("sampling-filter", text, chosen, _rms(spread), largest=largest)


def temperature(state: Unexplained) -> Iterator[Claim]:
    """The rollout's log probs are those of logits divided by another temperature."""
    table = state.table
    fit = _by_contexts(state) or _by_entropy(state)
    if fit is None or abs(fit[0] - 1) <= _UNIT or fit[0] <= 0:
        return
    factor, left, how = fit
    ratio = 1 / factor
    asked = {place.temperature for place in table.places}
    text = f"the rollout's log probs are those of logits divided by {ratio:.4g} times the trainer's temperature ({how})"
    if len(asked) == 1 and (wanted := asked.pop()) and abs(wanted * ratio - 1) <= 2 * _UNIT and abs(wanted - 1) > _UNIT:
        text += f": the engine ignores the temperature of {wanted:g}, or reports raw log probs"
    yield _with_floor("temperature", text, state.open, left, ratio=ratio)


def penalty(state: Unexplained) -> Iterator[Claim]:
    """Tokens that occurred before are less likely in the rollout; no others are."""
    table = state.table
    repeated = np.zeros(len(table), dtype=bool)
    for number, place in enumerate(table.places):
        rows = table.rows(number)
        first = place.tokens.prompt_length
        for row, position in zip(range(rows.start, rows.stop), table.position[rows].tolist(), strict=True):
            repeated[row] = place.tokens.tokens[position] in place.tokens.tokens[first:position]
    again, new = state.open & repeated, state.open & ~repeated
    if again.sum() < _FEWEST or new.sum() < _FEWEST:
        return
    lowered = (table.gap[again] < -10 * NOISE).mean()
    untouched = (table.gap[new] > -10 * NOISE).mean()
    if lowered >= 0.9 and untouched >= 0.98:
        mean = -float(table.gap[again].mean())
        text = f"tokens that occurred before in their answer are {mean:.3g} less likely in the rollout: a penalty"
        yield whole("penalty", text, state.open & (state.size > NOISE), mean=mean)


def stop_token(state: Unexplained) -> Iterator[Claim]:
    """Nothing but the last token of answers differs."""
    table = state.table
    last = np.append(np.diff(table.place) != 0, True)
    apart = state.apart
    if apart.sum() >= _FEWEST and (apart & ~last).sum() == 0 and (state.open & ~last).sum() >= _FEWEST:
        mean = float(state.size[apart].mean())
        text = (
            f"only the last token of {apart.sum()} answers differs, by {mean:.3g} on average: the engine masks or "
            "replaces stop tokens (a least number of tokens, ignore_eos, another end token)"
        )
        yield whole("stop-token", text, apart, mean=mean)


def _contexts(state: Unexplained) -> list[np.ndarray]:
    """The open rows of each context."""
    found: dict[tuple[int, bytes], list[int]] = defaultdict(list)
    table = state.table
    for row in np.flatnonzero(state.open).tolist():
        place = table.places[int(table.place[row])]
        found[int(table.version[row]), context_of(place.tokens, int(table.position[row]))].append(row)
    return [np.asarray(rows) for rows in found.values()]


def _by_contexts(state: Unexplained) -> tuple[float, float, str] | None:
    ours, theirs = [], []
    for rows in _contexts(state):
        _, first = np.unique(state.table.token[rows], return_index=True)
        if len(first) > 1:
            chosen = rows[first]
            ours.append(state.table.rollout[chosen[1:]] - state.table.rollout[chosen[0]])
            theirs.append(state.table.trainer[chosen[1:]] - state.table.trainer[chosen[0]])
    if sum(map(len, ours)) < _FEWEST:
        return None
    one, other = np.concatenate(ours), np.concatenate(theirs)
    factor = fit_factor(other, one)
    rest, before = _rms(one - factor * other), _rms(one - other)
    return (factor, rest, f"{len(one)} pairs of tokens in one context") if rest <= _LEFT * before else None


def _by_entropy(state: Unexplained) -> tuple[float, float, str] | None:
    """Without shared contexts: d log p / d beta = log p + entropy, where beta is the inverse temperature."""
    slope = state.table.trainer + state.table.values("entropy")
    told = state.open & np.isfinite(slope) & np.isfinite(state.table.gap)
    if told.sum() < 4 * _FEWEST:
        return None
    gap, slope = state.table.gap[told], slope[told]
    change = fit_factor(slope, gap)
    rest = _rms(gap - change * slope)
    # Only first order in the change, so what is left is larger than where logits cancel.
    return (1 + change, rest, "by entropy, to first order") if rest <= 2 * _LEFT * _rms(gap) else None


def _with_floor(id: str, text: str, chosen: np.ndarray, floor: float, **parameters: float) -> Claim:
    rows = np.flatnonzero(chosen)
    return Claim(id, text, rows, np.full(len(rows), floor), parameters)


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(values**2))) if values.size else 0.0


RULES = (stop_token, sampling_filter, temperature, penalty)
