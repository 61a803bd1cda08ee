"""Hypotheses about per-token values: shifts, zero filling, rounding, temperature, and advantages."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from rldbg.analysis.checks.learning import normalisations
from rldbg.analysis.explain.evidence import Evidence, Explanation, largest

_NOISE = 2e-5
Hypothesis = Callable[[Evidence], Iterator[Explanation]]


def shifted(quantity: str) -> Hypothesis:
    """One side's values stand one token too early or too late."""

    def hypothesis(evidence: Evidence) -> Iterator[Explanation]:
        for offset, text in ((1, "one position later"), (-1, "one position earlier")):
            residual, seen = 0.0, 0
            for a, b in evidence.rows(quantity):
                if len(a) < 3:
                    continue
                moved, kept = (b[1:], a[:-1]) if offset == 1 else (b[:-1], a[1:])
                residual = max(residual, largest(moved - kept))
                seen += len(moved)
            if seen and residual <= _NOISE:
                yield Explanation(
                    "shift-by-one", f"B's {quantity} are A's, {text}", residual, _NOISE, {"shift": offset}
                )

    return hypothesis


def zero_filled(quantity: str) -> Hypothesis:
    """Values that one side lacks were replaced by 0."""

    def hypothesis(evidence: Evidence) -> Iterator[Explanation]:
        found = evidence.tokens(quantity)
        if found is None:
            return
        for label, full, holed in (("B", found[0], found[1]), ("A", found[1], found[0])):
            holes = (holed == 0) & (full != 0)
            residual = largest((holed - full)[~holes])
            if holes.any() and residual <= _NOISE:
                parameters = {"side": label, "tokens": int(holes.sum())}
                text = f"{label}'s {quantity} are 0 at {int(holes.sum())} tokens where the other side has values"
                yield Explanation("zero-filled", text, residual, _NOISE, parameters)

    return hypothesis


def rounded(quantity: str) -> Hypothesis:
    """One side holds the other's values after rounding to a coarser dtype."""

    def hypothesis(evidence: Evidence) -> Iterator[Explanation]:
        found = evidence.tokens(quantity)
        if found is None:
            return
        for label, fine, coarse in (("B", found[0], found[1]), ("A", found[1], found[0])):
            for dtype, bits in (("bfloat16", 8), ("float16", 11)):
                if not np.array_equal(coarse, _round_to(coarse, bits)) or np.array_equal(fine, _round_to(fine, bits)):
                    continue
                # A sum of values computed coarsely is a few roundings off, in units of the largest logit (about 16).
                noise = 16 * 2.0 ** (1 - bits)
                residual = largest(coarse - fine)
                if residual <= noise:
                    text = f"{label}'s {quantity} are rounded to {dtype}"
                    yield Explanation("precision", text, residual, noise, {"side": label, "dtype": dtype})

    return hypothesis


def _round_to(values: np.ndarray, mantissa_bits: int) -> np.ndarray:
    """The nearest numbers with so many bits of mantissa."""
    fraction, exponent = np.frexp(values)
    rounded_values: np.ndarray = np.ldexp(np.round(fraction * 2.0**mantissa_bits) / 2.0**mantissa_bits, exponent)
    return rounded_values


def temperature(quantity: str) -> Hypothesis:
    """Log probs of logits divided by another temperature.

    With inverse temperature β, d log p / dβ = (log p + entropy) / β: the trapezoid rule over both sides predicts the
    difference from what was recorded, to third order in the change of β.
    """

    def hypothesis(evidence: Evidence) -> Iterator[Explanation]:
        one, other = evidence.side_tokens(0, quantity, "entropy"), evidence.side_tokens(1, quantity, "entropy")
        if one is None or other is None or len(one[0]) != len(other[0]) or len(one[0]) < 8:
            return
        gap = other[0] - one[0]
        spread = float(np.sqrt((gap**2).mean()))
        best, left = 1.0, np.inf
        for beta in np.exp(np.linspace(np.log(0.2), np.log(5.0), 2001)):
            predicted = (beta - 1) / 2 * ((one[0] + one[1]) + (other[0] + other[1]) / beta)
            error = float(np.sqrt(((gap - predicted) ** 2).mean()))
            if error < left:
                best, left = float(beta), error
        if spread > _NOISE and left <= 0.1 * spread and abs(best - 1) > 0.02:
            text = f"B's {quantity} are those of logits divided by {1 / best:.3g} times A's temperature"
            share = 1 - left / spread
            yield Explanation("temperature", text, left, 0.1 * spread, {"temperature_ratio": 1 / best}, share)

    return hypothesis


def normalisation(evidence: Evidence) -> Iterator[Explanation]:
    """Each side's advantages follow from its rewards, but by different rules."""
    rules = [_rule(evidence, index) for index in (0, 1)]
    if rules[0] and rules[1] and rules[0] != rules[1]:
        yield Explanation(
            "advantage-normalisation",
            f"A's advantages are rewards normalised by {rules[0]}, B's by {rules[1]}",
            0.0,
            1e-3,
            {"a": rules[0], "b": rules[1]},
        )


def _rule(evidence: Evidence, index: int) -> str | None:
    rewards, advantages, groups = [], [], []
    for pair in evidence.samples:
        found = pair[index].trained("advantages")
        reward = pair[index].reward
        if found is not None and found[0].size and reward is not None:
            rewards.append(reward)
            advantages.append(float(found[0][0]))
            groups.append(pair[index].sample.group_id)
    if len(rewards) < 2:
        return None
    numbers = {name: number for number, name in enumerate(dict.fromkeys(groups))}
    have, reward_array = np.asarray(advantages), np.asarray(rewards, dtype=np.float64)
    own = np.asarray([numbers[name] for name in groups])
    size = max(int(np.bincount(own).max()), 1)
    mixed = (("", own), (" over groups that mix prompts", np.arange(len(own)) % max(len(own) // size, 1)))
    for suffix, grouping in mixed:
        for rule, expected in normalisations(reward_array, grouping):
            if largest(have - expected) <= 1e-3 * max(1.0, largest(expected)):
                return rule + suffix
    return None


HYPOTHESES = {
    "trajectory": (zero_filled("rollout_log_probs"), shifted("rollout_log_probs"), rounded("rollout_log_probs")),
    "advantage": (normalisation, shifted("advantages")),
    "old_log_probs": (
        shifted("old_log_probs"),
        zero_filled("old_log_probs"),
        rounded("old_log_probs"),
        temperature("old_log_probs"),
    ),
    "forward": (shifted("log_probs"), rounded("log_probs"), temperature("log_probs")),
}
