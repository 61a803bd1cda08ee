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
from rldbg.mismatch.token_table import TokenTable
from rldbg.mismatch.value_causes import LEAST_KEPT

_FEWEST = 8
_FEWEST_CONTEXTS = 2
# A rule must leave at most this part of the difference it is tried on.
_LEFT = 0.25
# Temperatures further apart are not used in practice.
_SMALLEST_FACTOR = 0.2
# Log prob of a token that a filter can hardly raise.
_SURE = -0.05
_UNIT = 0.01


def sampling_filter(state: Unexplained) -> Iterator[Claim]:
    """No token is lowered. Where tokens share contexts, all of one are raised by one amount."""
    gap = state.table.gap
    chosen = state.open & (gap >= -4 * NOISE) & (gap <= -state.table.trainer + 4 * NOISE)
    raised = chosen & (gap > NOISE)
    if raised.sum() < _FEWEST or chosen.sum() < 0.98 * state.open.sum():
        return
    several = [rows for rows in _contexts(state) if len(set(state.table.token[rows].tolist())) > 1]
    known = np.concatenate([gap[rows] for rows in several]) if several else np.empty(0)
    spread = np.concatenate([gap[rows] - np.median(gap[rows]) for rows in several]) if several else known
    shared = len(several) >= _FEWEST_CONTEXTS and np.ptp(known) > 10 * NOISE
    is_filter = _rms(spread) <= _LEFT * _rms(known) if shared else _only_raises(state, raised)
    if is_filter:
        largest = float(gap[raised].max())
        how = "by the same amount for all tokens of a context" if shared else "and no token is lowered"
        text = (
            f"the rollout's log probs are up to {largest:.3g} above the trainer's, {how}: renormalised over a part of "
            "the vocabulary (top-k, top-p, min-p, or tokens that are masked)"
        )
        yield _with_floor("sampling-filter", text, chosen, _rms(spread) if shared else 0.0, largest=largest)


def _only_raises(state: Unexplained, raised: np.ndarray) -> bool:
    """Many tokens are raised, by amounts that a filter leaves: unlikely ones more than likely ones."""
    gap, trainer = state.table.gap, state.table.trainer
    sure = state.open & (trainer > _SURE)
    unsure = state.open & (trainer < np.log(0.5))
    return bool(
        raised.sum() >= 4 * _FEWEST
        and float(gap[raised].max()) <= -np.log(LEAST_KEPT)
        and raised[unsure].sum() >= max(_FEWEST, 0.5 * unsure.sum())
        and (gap[sure].mean() if sure.any() else 0.0) < gap[unsure].mean()
    )


def temperature(state: Unexplained) -> Iterator[Claim]:
    """The rollout's log probs are those of logits divided by another temperature."""
    table = state.table
    fits = [fit for fit in (_by_contexts(state), _by_entropy(state)) if fit is not None]
    fit = next((fit for fit in fits if abs(fit[0] - 1) > _UNIT and _is_possible(state, fit[0])), None)
    if fit is None:
        return
    factor, left, how = fit
    ratio = 1 / factor
    asked = {place.temperature for place in table.places}
    text = f"the rollout's log probs are those of logits divided by {ratio:.4g} times the trainer's temperature ({how})"
    if len(asked) == 1 and (wanted := asked.pop()) and abs(wanted * ratio - 1) <= 2 * _UNIT and abs(wanted - 1) > _UNIT:
        text += f": the engine ignores the temperature of {wanted:g}, or reports raw log probs"
    yield _with_floor("temperature", text, state.open, left, ratio=ratio)


def _is_possible(state: Unexplained, factor: float) -> bool:
    """Whether log p' = factor * log p - log sum p^factor can hold: the sum is below 1 for factors above 1, and above 1
    for others, at every token."""
    table = state.table
    told = state.open & np.isfinite(table.gap)
    beyond = (table.rollout - factor * table.trainer)[told] * np.sign(factor - 1)
    allowed = 4 * NOISE + _UNIT * np.abs(table.trainer[told])
    return bool(_SMALLEST_FACTOR <= factor <= 1 / _SMALLEST_FACTOR and (beyond >= -allowed).mean() >= 0.98)


def penalty(state: Unexplained) -> Iterator[Claim]:
    """Only tokens that occurred before are less likely in the rollout; what is new gains what they lose."""
    table = state.table
    lowered, raised = state.open & (table.gap < -10 * NOISE), state.open & (table.gap > 10 * NOISE)
    if lowered.sum() < _FEWEST:
        return
    for prompt_too, where in ((False, "in their answer"), (True, "in their prompt or answer")):
        again = _repeated(table, prompt_too=prompt_too)
        new = state.open & ~again
        enough = (raised & new).sum() >= _FEWEST or (lowered & again).sum() >= 0.9 * (state.open & again).sum()
        if new.sum() >= _FEWEST and enough and (lowered & new).sum() <= 0.02 * new.sum():
            mean = -float(table.gap[lowered & again].mean())
            text = f"only tokens that occurred before {where} are less likely in the rollout, by {mean:.3g}: a penalty"
            yield whole("penalty", text, state.open & (state.size > NOISE), mean=mean)
            return


def _repeated(table: TokenTable, *, prompt_too: bool) -> np.ndarray:
    """For each token, whether it occurred before."""
    found = np.zeros(len(table), dtype=bool)
    for number, place in enumerate(table.places):
        rows, tokens = table.rows(number), place.tokens.tokens
        seen = set(tokens[: place.tokens.prompt_length].tolist() if prompt_too else ())
        start = place.tokens.prompt_length
        for row, position in zip(range(rows.start, rows.stop), table.position[rows].tolist(), strict=True):
            seen.update(tokens[start:position].tolist())
            start = max(start, position)
            found[row] = int(tokens[position]) in seen
    return found


def stop_token(state: Unexplained) -> Iterator[Claim]:
    """Nothing but the last token of answers differs."""
    table = state.table
    last = np.append(np.diff(table.place) != 0, True)
    apart = state.apart
    if apart.sum() >= _FEWEST and (apart & ~last).sum() == 0 and (state.open & ~last).sum() >= _FEWEST:
        mean = float(state.size[apart].mean())
        text = (
            f"only the last token of {apart.sum()} answers differs, by {mean:.3g} on average: the engine masks or "
            "replaces stop tokens (a minimum number of tokens, ignore_eos, another end token)"
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
    rest, before = _rms(one - factor * other), min(_rms(one - other), _rms(one))
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


RULES = (stop_token, sampling_filter, penalty, temperature)
