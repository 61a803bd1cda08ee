"""The worst samples token by token: both sides' values of each token, for the report's strips."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rldbg.analysis.samples import StepSamples, pair_samples
from rldbg.analysis.side import Side
from rldbg.analysis.tokens import SampleTokens, read_tokens
from rldbg.recording import Recording

# In causal order: the strip is coloured by the first of these that differs.
QUANTITIES = (
    "rollout_log_probs",
    "advantages",
    "old_log_probs",
    "ref_log_probs",
    "log_probs",
    "entropy",
    "prob_ratio",
    "elementwise_loss",
)
_SHOWN_SAMPLES = 6
_SHOWN_TOKENS = 400

TokenDecoder = Callable[[int], str]


@dataclass(frozen=True, slots=True)
class Token:
    """One position of a sequence: both tokens as text, how far the coloured quantity is off, and all its values."""

    position: int
    text_a: str | None
    text_b: str | None
    is_trained: bool
    gap: float
    values: Mapping[str, tuple[float | None, float | None]]


@dataclass(frozen=True, slots=True)
class Strip:
    """One sample of the strip chart."""

    sample: str
    worst: float
    worst_position: int
    tokens: Sequence[Token]
    left_out: int


@dataclass(frozen=True, slots=True)
class Strips:
    """The worst samples of one step by one quantity, and that quantity's values on both sides."""

    step: int
    quantity: str
    strips: Sequence[Strip]
    values_a: np.ndarray
    values_b: np.ndarray


def strips_of(
    first: Recording, second: Recording, step: int, decode: TokenDecoder | None, *, shift: int = 0
) -> Strips | None:
    """None when no sample of the step has tokens on both sides, or none of them differs."""
    a, b = Side(first, "A"), Side(second, "B", shift=shift)
    table_a, table_b = read_tokens(a, step), read_tokens(b, step)
    pairs = pair_samples(table_a, table_b, StepSamples(a, step), StepSamples(b, step)).to_b
    samples = [(table_a[one], table_b[other]) for one, other in pairs.items() if one in table_a and other in table_b]
    for quantity in ("tokens", *QUANTITIES):
        gaps = [(_gaps(one, other, quantity), one, other) for one, other in samples]
        worst = [(float(gap.max(initial=0.0)), gap, one, other) for gap, one, other in gaps]
        worst = sorted((item for item in worst if item[0] > 0), key=lambda item: -item[0])
        if worst:
            strips = [_strip(gap, one, other, decode) for _, gap, one, other in worst[:_SHOWN_SAMPLES]]
            values_a, values_b = _values(samples, quantity)
            return Strips(step, quantity, strips, values_a, values_b)
    return None


def _gaps(a: SampleTokens, b: SampleTokens, quantity: str) -> np.ndarray:
    """|a - b| by position of the sequence; positions that only one side has count as 1 for tokens, else 0."""
    if quantity == "tokens":
        length = max(len(a.tokens), len(b.tokens))
        gaps = np.ones(length)
        common = min(len(a.tokens), len(b.tokens))
        gaps[:common] = a.tokens[:common] != b.tokens[:common]
        return gaps
    gaps = np.zeros(max(len(a.tokens), len(b.tokens)))
    one, other = a.quantities.get(quantity), b.quantities.get(quantity)
    if one is None or other is None:
        return gaps
    start = max(one.start, other.start)
    stop = min(one.start + len(one.values), other.start + len(other.values), len(gaps))
    if stop > start:
        left = one.values[start - one.start : stop - one.start].astype(np.float64)
        right = other.values[start - other.start : stop - other.start].astype(np.float64)
        with np.errstate(invalid="ignore"):
            gap = np.abs(left - right)
        both_odd = (np.isnan(left) & np.isnan(right)) | (left == right)
        gaps[start:stop] = np.where(both_odd, 0.0, np.where(np.isfinite(gap), gap, np.inf))
    return gaps


def _strip(gaps: np.ndarray, a: SampleTokens, b: SampleTokens, decode: TokenDecoder | None) -> Strip:
    worst = int(np.argmax(gaps))
    first = max(0, min(worst - _SHOWN_TOKENS // 2, len(gaps) - _SHOWN_TOKENS))
    shown = range(first, min(first + _SHOWN_TOKENS, len(gaps)))
    tokens = [
        Token(
            position,
            _text(a, position, decode),
            _text(b, position, decode),
            position < len(a.loss_mask) and bool(a.loss_mask[position]),
            float(gaps[position]),
            dict(_both(a, b, position)),
        )
        for position in shown
    ]
    return Strip(str(a.sample), float(gaps[worst]), worst, tokens, len(gaps) - len(shown))


def _text(side: SampleTokens, position: int, decode: TokenDecoder | None) -> str | None:
    if position >= len(side.tokens):
        return None
    token = int(side.tokens[position])
    return str(token) if decode is None else decode(token)


def _both(a: SampleTokens, b: SampleTokens, position: int) -> Iterator[tuple[str, tuple[float | None, float | None]]]:
    for name in QUANTITIES:
        one, other = _value(a, name, position), _value(b, name, position)
        if one is not None or other is not None:
            yield name, (one, other)


def _value(side: SampleTokens, name: str, position: int) -> float | None:
    held: Any = side.quantities.get(name)
    if held is None or not held.start <= position < held.start + len(held.values):
        return None
    return float(held.values[position - held.start])


def _values(samples: Sequence[tuple[SampleTokens, SampleTokens]], quantity: str) -> tuple[np.ndarray, np.ndarray]:
    """The quantity over all trained tokens of each side; for tokens, the lengths of sequences."""
    sides = []
    for number in (0, 1):
        if quantity == "tokens":
            sides.append(np.asarray([len(pair[number].tokens) for pair in samples], np.float64))
            continue
        parts = [found[0] for pair in samples if (found := pair[number].trained(quantity)) is not None]
        sides.append(np.concatenate(parts).astype(np.float64) if parts else np.empty(0))
    return sides[0], sides[1]
