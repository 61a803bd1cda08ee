"""Bugs that look like a known one and are not: the known one's explanation must not be given as the cause."""

import numpy as np
import pytest

from imagined_runs import PER_GROUP, ImaginedRun
from rldbg.algorithms import grpo_advantages
from rldbg.analysis.explain import explain
from rldbg.analysis.measure import non_finite_numbers
from rldbg.analysis.stages import Stage

RIGHT, OF_TURNS = ImaginedRun().side(), ImaginedRun(turns=True).side()
RNG = np.random.default_rng(9)


def each(change):
    return lambda rows, *_: [change(np.asarray(row)) for row in rows]


def bits(values, count):
    fraction, exponent = np.frexp(values)
    return np.ldexp(np.round(fraction * 2.0**count) / 2.0**count, exponent)


def uneven(row):
    """By a factor that grows along the sample."""
    return row * (1 + 0.3 * np.arange(len(row)))


def jitter(values, size=0.01):
    return values + size * RNG.standard_normal(np.shape(values))


def added_token(inputs):
    ids, attended = (np.concatenate([part[:, :1] * 0, part], 1) for part in inputs)
    first = attended.argmax(1)
    ids[np.arange(len(ids)), first - 1], attended[np.arange(len(ids)), first - 1] = 55, 1
    return ids, attended


def harmless_padding(inputs):
    """Moved from the left to the right, as a loop that pads on the right has it."""
    return tuple(
        np.stack([np.roll(row, -int(seen.argmax())) for row, seen in zip(part, inputs[1], strict=True)])
        for part in inputs
    )


def hotter(_rows, *_):
    return ImaginedRun().log_probs(0.0, temperature=1.1)[0]


def second_turn(rows, change):
    masks = [mask[-len(row) :] for row, mask in zip(rows, ImaginedRun(turns=True).masks, strict=True)]
    turns = [np.cumsum(np.diff(np.concatenate([[0], mask])) == 1) * mask for mask in masks]
    return [np.where(turn == 2, change(row), row) for row, turn in zip(rows, turns, strict=True)]


def shifted_later(rows):
    return second_turn(rows, lambda row: np.roll(row, 1))


def halves(advantages, rewards, groups):
    """Normalised over halves of groups, and one sample is wrong besides."""
    found = grpo_advantages(rewards, 2 * groups + np.arange(len(groups)) % 2)
    found[3] += 0.5
    return found


def by_turns_and_one_off(row, mask):
    """Divided by the number of turns, but for the last token."""
    turns = max(int(np.count_nonzero(np.diff(np.append(0, mask)) == 1)), 1)
    return np.append(row[:-1] / turns, row[-1])


def rows_but_one(values):
    """One row is 0, and the others are not equal."""
    return np.where(np.arange(len(values)) == 2, 0, 1.1)[:, None]


# The cause that must not be named, the stage, and what is wrong.
NEAR = [
    ("divided-by-turns", "advantage", {"turns": True, "advantage_rows": by_turns_and_one_off}),
    ("shift-by-one", "old_log_probs", {"old": each(lambda row: np.roll(row, 2))}),
    ("shift-by-one", "old_log_probs", {"old": each(lambda row: jitter(np.roll(row, 1)))}),
    ("zero-filled", "old_log_probs", {"old": each(lambda row: np.append(jitter(row[:-1]), 0.0))}),
    ("precision", "old_log_probs", {"old": each(lambda row: bits(row, 8) * 1.3)}),
    ("scaled", "old_log_probs", {"old": each(uneven)}),
    ("offset", "old_log_probs", {"old": each(lambda row: row - 0.3 * (np.arange(len(row)) % 2))}),
    ("clipped", "old_log_probs", {"old": each(lambda row: jitter(np.maximum(row, -1.5)))}),
    ("temperature", "old_log_probs", {"old": lambda rows: jitter_rows(hotter(rows))}),
    ("padding-attended", "old_log_probs", {"inputs": added_token, "old": each(uneven)}),
    ("padding-side", "old_log_probs", {"inputs": harmless_padding, "old": hotter}),
    ("of-rollout", "old_log_probs", {"old": each(uneven)}),
    ("of-reference", "old_log_probs", {"old": lambda _rows: jitter_rows(ImaginedRun().log_probs(-0.3)[0])}),
    ("rows-permuted", "old_log_probs", {"old": lambda rows: jitter_rows(rows[1:] + rows[:1])}),
    ("reference-is-old-policy", "forward", {"reference": lambda _rows, _new, old: jitter_rows(old)}),
    ("reward-affine", "reward", {"rewards": lambda r: np.where(np.arange(16) == 5, 9.0, 2 * r + 1)}),
    ("reward-clipped", "reward", {"rewards": lambda r: np.where(r > 1, 1.0, 0.9 * r)}),
    ("reward-rounded", "reward", {"rewards": lambda r: np.round(2 * r) / 2}),
    ("reward-rounded", "reward", {"rewards": lambda r: (r >= 1).astype(float)}),
    ("reward-lost", "reward", {"rewards": lambda r: np.where(np.arange(16) < 6, -1.0 - 0.1 * np.arange(16), r)}),
    ("rows-permuted", "reward", {"rewards": lambda r: np.roll(r, 3) + 0.25 * (np.arange(16) == 2)}),
    ("reward-by-length", "reward", {"rewards": lambda r: jitter(r)}),
    ("reward-by-turn", "reward", {"turns": True, "rewards": lambda r: np.where(np.arange(16) == 3, r / 2, r)}),
    ("advantage-normalisation", "advantage", {"advantages": halves}),
    ("scaled", "advantage", {"advantages": lambda a, *_: np.where(np.arange(16) % PER_GROUP, 2 * a, a)}),
    ("offset", "advantage", {"advantages": lambda a, *_: jitter(a + 0.5)}),
    ("advantage-clipped", "advantage", {"advantages": lambda a, *_: 0.9 * np.clip(a, -0.5, 0.5)}),
    ("last-token-only", "advantage", {"advantage_rows": lambda row, _: np.append(0 * row[:-1] + 0.01, row[-1])}),
    ("last-turn-only", "advantage", {"turns": True, "advantage_rows": lambda row, _: row * (np.arange(len(row)) > 1)}),
    ("discount", "advantage", {"advantage_rows": lambda row, _: row / (1 + np.arange(len(row)))}),
    ("divided-by-length", "advantage", {"advantage_rows": lambda row, _: row / len(row) ** 2}),
    ("padding-in-mask", "forward", {"response_mask": lambda m: m * (np.arange(m.shape[1]) != 0)}),
    ("mask-lost", "forward", {"response_mask": np.ones_like}),
    ("ratio-capped", "ratio", {"ratio": lambda r, *_: 1 + (r - 1) / 2}),
    ("ratio-linear", "ratio", {"ratio": lambda _r, new, old, _ref: 1 + 2 * (new - old)}),
    ("clip", "loss", {"token_loss": lambda loss, *_: 1.1 * loss}),
    ("loss-scaled", "loss", {"loss": lambda value: value / 4 + 0.01}),
    ("kl-coefficient", "loss", {"kl": lambda _k, gap: gap**2 / 2}),
    ("kl-estimator", "loss", {"weights": lambda _w: (0.01, 0.1)}),
    ("entropy-coefficient", "loss", {"weights": lambda _w: (0.01, 0.1)}),
    ("gradient-scaled", "gradient", {"gradient": lambda g, _n: {"w": g["w"] / 2, "v": g["v"] / 3}}),
    ("gradient-clipped", "gradient", {"gradient": lambda g, _n: {k: np.tanh(v) for k, v in g.items()}}),
    ("gradient-rows-zero", "gradient", {"gradient": lambda g, _n: {k: v * rows_but_one(v) for k, v in g.items()}}),
    ("gradient-centred", "gradient", {"gradient": lambda g, _n: {k: v - 0.9 * v.mean() for k, v in g.items()}}),
    ("optimizer-kind", "parameter", {"optimizer": lambda _s: {"betas": (0.9, 0.9)}}),
    ("gradient-zero", "gradient", {"gradient": lambda g, _n: {k: 1e-3 * v for k, v in g.items()}}),
    ("precision", "gradient", {"gradient": lambda g, _n: {k: bits(v, 8) * 1.001 for k, v in g.items()}}),
    ("learning-rate", "parameter", {"optimizer": lambda _s: {"betas": (0.9, 0.999)}}),
    ("weight-decay", "parameter", {"optimizer": lambda _s: {"rate": 0.02}}),
    ("optimizer-betas", "parameter", {"optimizer": lambda _s: {"rate": 0.02}}),
    ("optimizer-bias-correction", "parameter", {"optimizer": lambda _s: {"rate": 0.005}}),
    ("gradient-clip", "parameter", {"optimizer": lambda _s: {"decay": 0.1}}),
    ("replica-drift", "parameter", {"optimizer": lambda _s: {"rate": 0.02}}),
    (
        "prompt-in-mask",
        "trajectory",
        {"turns": True, "loss_mask": each(lambda m: m.cumsum().clip(0, 1))},
    ),
    ("mask-off-at-end", "trajectory", {"loss_mask": each(lambda m: np.append(m[:-2], [0, 0]))}),
    (
        "weights-not-synced",
        "trajectory",
        {"turns": True, "rollout": shifted_later},
    ),
    ("policy-version", "trajectory", {"versions": each(lambda v: np.where(v >= 0, v - 1, v))}),
    ("retokenised", "trajectory", {"turns": True, "tokens": lambda rows: other_environment(rows)}),
    ("environment-changed", "trajectory", {"tokens": each(lambda t: np.append(t[:-1], t[-1] + 5))}),
]


def jitter_rows(rows):
    return [jitter(np.asarray(row)) for row in rows]


def other_environment(tokens):
    inside = [(np.arange(len(mask)) > mask.argmax()) & (mask == 0) for mask in ImaginedRun(turns=True).masks]
    return [np.where(part, 44, row) for row, part in zip(tokens, inside, strict=True)]


@pytest.mark.parametrize("number", range(len(NEAR)), ids=[f"{item[1]}-not-{item[0]}" for item in NEAR])
def test_a_near_miss_is_not_called_that(number):
    name, stage, hooks = NEAR[number]
    with non_finite_numbers():
        wrong = ImaginedRun(**hooks).side()
        reasons = explain(OF_TURNS if hooks.get("turns") else RIGHT, wrong, Stage(stage), 0)
    assert name not in [item.id for item in reasons.explanations]
