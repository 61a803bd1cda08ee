"""Whether a difference is confined to some tokens: a turn, an end of an answer, a rank, a micro-batch, some samples.

A part is proposed when every token that differs lies in it, and the chance that as many independent places of the
difference fall into it by accident, over all parts tried, is below
FALSE_ALARMS; a hypothesis then has to fit on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from rldbg.analysis.tokens import SampleTokens
from rldbg.recording import RecordKey

FALSE_ALARMS = 1e-2
_FEWEST_OUTSIDE = 4
_TURNS = 6


class Gap(NamedTuple):
    """The difference at some tokens of one sample, and the record that its values come from."""

    sample: SampleTokens
    positions: np.ndarray
    apart: np.ndarray
    source: RecordKey


@dataclass(frozen=True, slots=True)
class TokenSubset:
    """A part of all tokens; `of` gives a sample's mask of it, from the sample and the record of its values."""

    text: str
    of: Callable[[SampleTokens, RecordKey], np.ndarray]

    def within(self, sample: SampleTokens, source: RecordKey) -> SampleTokens:
        """The sample with this part of its trained tokens only."""
        return replace(sample, loss_mask=np.where(self.of(sample, source), sample.loss_mask, 0))


def confined_to(gaps: Iterable[Gap]) -> TokenSubset | None:
    """The smallest part that holds the whole difference; None when it is everywhere or has no such shape."""
    found = list(gaps)
    places = [gap.apart for gap in found]
    if not found or not any(part.any() for part in places):
        return None
    parts = list(_parts(found))
    best: tuple[float, TokenSubset] | None = None
    for part in parts:
        inside = [part.of(gap.sample, gap.source)[gap.positions] for gap in found]
        share = _chance(found, inside, len(parts))
        if share is not None and (best is None or share < best[0]):
            best = (share, part)
    return None if best is None else best[1]


def _chance(found: list[Gap], inside: list[np.ndarray], tries: int) -> float | None:
    """The share of all tokens in a part; None unless it holds the difference and only by a rare accident."""
    every, apart = np.concatenate(inside), np.concatenate([gap.apart for gap in found])
    if np.count_nonzero(~every) < _FEWEST_OUTSIDE or apart[~every].any() or not every.any():
        return None
    share = float(every.mean())
    # Tokens of a sample may all differ for one reason: samples count, not tokens.
    differing = sum(bool(gap.apart.any()) for gap in found)
    if all(part.all() or not part.any() for part in inside):
        whole = sum(bool(part.any()) for part in inside)
        accident = math.comb(whole, differing) / math.comb(len(found), differing)
    else:
        accident = share**differing
    return share if tries * accident <= FALSE_ALARMS else None


def turn_of(loss_mask: np.ndarray) -> np.ndarray:
    """The number of the answer that each token of a row, or of each row, belongs to, from 1; 0 for tokens that are not
    trained on."""
    trained = loss_mask != 0
    starts = trained.copy()
    starts[..., 1:] &= ~trained[..., :-1]
    numbers: np.ndarray = np.where(trained, np.cumsum(starts, axis=-1), 0)
    return numbers


def ends(loss_mask: np.ndarray, *, first: bool) -> np.ndarray:
    """Where answers begin, or end."""
    trained = (loss_mask != 0).astype(int)
    edges = np.diff(np.concatenate([[0], trained, [0]]))
    found: np.ndarray = edges[:-1] == 1 if first else edges[1:] == -1
    return found


def _parts(found: list[Gap]) -> Iterator[TokenSubset]:
    turns = max(int(turn_of(gap.sample.loss_mask).max(initial=0)) for gap in found)
    for number in range(1, min(turns, _TURNS) + 1):
        yield TokenSubset(f"in turn {number}", lambda sample, _, n=number: turn_of(sample.loss_mask) == n)  # type: ignore[misc]
    if turns > 1:
        yield TokenSubset("after the first turn", lambda sample, _: turn_of(sample.loss_mask) > 1)
        yield TokenSubset("in the last turn", lambda sample, _: _is_last_turn(sample))
        yield TokenSubset("before the last turn", lambda sample, _: (sample.loss_mask != 0) & ~_is_last_turn(sample))
    yield TokenSubset("at the first token of an answer", lambda sample, _: ends(sample.loss_mask, first=True))
    yield TokenSubset("at the last token of an answer", lambda sample, _: ends(sample.loss_mask, first=False))
    for name in ("rank", "micro", "mini_batch"):
        for value in sorted({getattr(gap.source, name) for gap in found})[:16]:
            text = {"rank": "on rank", "micro": "in micro-batch", "mini_batch": "in mini-batch"}[name]
            yield TokenSubset(f"{text} {value}", _by_source(name, value))
    for number in sorted({gap.sample.sample.run_id for gap in found})[:16]:
        yield TokenSubset(
            f"in sample {number} of each group",
            _by_sample(lambda sample, n=number: sample.sample.run_id == n),  # type: ignore[misc]
        )
    longest = max(len(gap.sample.tokens) for gap in found)
    yield TokenSubset("in the longest samples", _by_sample(lambda sample: len(sample.tokens) == longest))
    rewards = [gap.sample.reward for gap in found if gap.sample.reward is not None]
    for value in sorted(set(rewards))[:4] if len(set(rewards)) <= 4 else ():
        yield TokenSubset(
            f"in samples with a reward of {value:g}",
            _by_sample(lambda sample, v=value: sample.reward == v),  # type: ignore[misc]
        )


def _is_last_turn(sample: SampleTokens) -> np.ndarray:
    turns = turn_of(sample.loss_mask)
    last: np.ndarray = (turns > 0) & (turns == turns.max(initial=0))
    return last


def _by_source(name: str, value: int) -> Callable[[SampleTokens, RecordKey], np.ndarray]:
    return lambda sample, source: np.full(len(sample.tokens), getattr(source, name) == value)


def _by_sample(rule: Callable[[SampleTokens], bool]) -> Callable[[SampleTokens, RecordKey], np.ndarray]:
    return lambda sample, _: np.full(len(sample.tokens), rule(sample))
