"""Bugs that look like a known one and are not: the known one's explanation must not be given as the cause."""

from itertools import cycle

import numpy as np
import pytest

from imagined_runs import PER_GROUP, ImaginedRun, right_padded, with_first_token
from rldbg.algorithms import grpo_advantages
from rldbg.analysis.explain import Explanation, explain, ranked
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


def two_that_are_the_mean(rewards):
    means = rewards.reshape(-1, PER_GROUP).mean(1).repeat(PER_GROUP)
    return np.where(np.isin(np.arange(len(rewards)), (1, 6)), means, rewards)


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


def over_other_groups_and_one_off(_advantages, rewards, _groups):
    """Groups of other samples; one advantage does not follow from them."""
    groups = np.random.default_rng(3).permutation(np.repeat(np.arange(4), PER_GROUP))
    return grpo_advantages(rewards, groups) + 0.05 * (np.arange(len(rewards)) == 7)


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
    ("padding-attended", "old_log_probs", {"inputs": with_first_token, "old": each(uneven)}),
    ("padding-side", "old_log_probs", {"inputs": right_padded, "old": hotter}),
    ("of-rollout", "old_log_probs", {"old": each(uneven)}),
    ("of-reference", "old_log_probs", {"old": lambda _rows: jitter_rows(ImaginedRun().log_probs(-0.3)[0])}),
    ("rows-permuted", "old_log_probs", {"old": lambda rows: jitter_rows(rows[1:] + rows[:1])}),
    ("reference-is-old-policy", "forward", {"reference": lambda _rows, _new, old: jitter_rows(old)}),
    ("reward-affine", "reward", {"rewards": lambda r: np.where(np.arange(16) == 5, 9.0, 2 * r + 1)}),
    ("reward-clipped", "reward", {"rewards": lambda r: np.where(r > 1, 1.0, 0.9 * r)}),
    ("reward-clipped", "reward", {"rewards": lambda r: np.where(r == r.max(), r - 0.01, r)}),
    ("reward-of-some", "reward", {"rewards": lambda r: np.where(np.arange(16) % 3, r, r - 0.1)}),
    ("rows-permuted", "reward", {"rewards": lambda r: np.where(np.arange(16) < 2, r[[1, 0, *range(2, 16)]] + 0.01, r)}),
    ("reward-rounded", "reward", {"rewards": lambda r: np.round(2 * r) / 2}),
    ("reward-rounded", "reward", {"rewards": lambda r: (r >= 1).astype(float)}),
    ("reward-lost", "reward", {"rewards": lambda r: np.where(np.arange(16) < 6, -1.0 - 0.1 * np.arange(16), r)}),
    ("rows-permuted", "reward", {"rewards": lambda r: np.roll(r, 3) + 0.25 * (np.arange(16) == 2)}),
    ("reward-of-group", "reward", {"rewards": two_that_are_the_mean}),
    ("clip", "loss", {"token_loss": lambda loss, ratio, _a: loss * (np.abs(ratio - 1) < 0.05)}),
    ("reward-by-length", "reward", {"rewards": lambda r: jitter(r)}),
    ("reward-by-turn", "reward", {"turns": True, "rewards": lambda r: np.where(np.arange(16) == 3, r / 2, r)}),
    ("advantage-normalisation", "advantage", {"advantages": halves}),
    ("advantage-normalisation", "advantage", {"advantages": over_other_groups_and_one_off}),
    ("advantage-normalisation", "advantage", {"advantages": lambda _a, r, _g: jitter(r - 0.4)}),
    ("of-rollout", "old_log_probs", {"old": lambda rows: [*rows[:5], *jitter_rows(rows[5:])]}),
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
    ("gradient-cut", "gradient", {"gradient": lambda g, _n: {"w": g["w"] / 2, "v": 0 * g["v"]}}),
    ("gradient-clipped", "gradient", {"gradient": lambda g, _n: {k: np.tanh(v) for k, v in g.items()}}),
    ("gradient-rows-zero", "gradient", {"gradient": lambda g, _n: {k: v * rows_but_one(v) for k, v in g.items()}}),
    ("gradient-centred", "gradient", {"gradient": lambda g, _n: {k: v - 0.9 * v.mean() for k, v in g.items()}}),
    ("weights-averaged", "parameter", {"optimizer": lambda _s: {"rate": 0.009}}),
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


def without_spread_at_first(rewards):
    return np.where(np.arange(len(rewards)) < 8, 1.0, rewards)


def test_samples_without_an_advantage_tell_no_part_from_another():
    """Whatever advantages are multiplied by, 0 remains: the first mini-batch is not one that the fault spares."""
    runs = [ImaginedRun(rewards=without_spread_at_first, advantages=of_them(factor)).side() for factor in (1.0, 1.3)]
    (said,) = explain(*runs, Stage.ADVANTAGE, 0).explanations
    assert (said.id, said.parameters) == ("scaled", {"factor": pytest.approx(1.3)})


def of_them(factor):
    return lambda _advantages, rewards, groups: factor * grpo_advantages(without_spread_at_first(rewards), groups)


def test_old_log_probs_that_are_computed_anew_are_not_always_those_of_the_pass():
    calls = iter(range(100))
    # Two micro-batches of two mini-batches: the second epoch begins with the fifth pass.
    wrong = ImaginedRun(old_in_loss=lambda old, new: new if next(calls) >= 4 else old).side()
    (said,) = explain(RIGHT, wrong, Stage.OLD_LOG_PROBS, 0, 1).explanations
    assert (said.id, said.parameters["updates"]) == ("old-log-probs-renewed", [(1, 0), (1, 1)])


def test_a_loss_that_is_scaled_in_one_micro_batch_is_told_from_one_that_is_scaled():
    cut = {"micros": lambda _micros, at: [[8 * at[1] + row for row in rows] for rows in (range(5), range(5, 8))]}
    wrong = ImaginedRun(**cut, aggregate=lambda value, _values, mask: value * len(mask) / 5).side()
    (said,) = explain(ImaginedRun(**cut).side(), wrong, Stage.LOSS, 0).explanations
    assert (said.id, said.parameters["where"]) == ("aggregation", "on micro-batch 1 only")


def shorter_by(counts):
    return lambda rows, *_: [np.asarray(row)[: len(row) - next(counts)] for row in rows]


@pytest.mark.parametrize(("counts", "names"), [([2], ["answer-cut"]), ([1, 2], [])])
def test_answers_without_their_last_tokens_lack_equally_many(counts, names):
    cut = {name: shorter_by(cycle(counts)) for name in ("tokens", "loss_mask", "rollout")}
    reasons = explain(RIGHT, ImaginedRun(**cut).side(), Stage.TRAJECTORY, 0)
    assert [item.id for item in reasons.explanations] == names


def rows_from(order, change=lambda row: row):
    return {
        name: lambda rows, *_: [change(np.asarray(rows[row])) for row in order]
        for name in ("tokens", "loss_mask", "rollout")
    }


@pytest.mark.parametrize(("change", "names"), [(lambda row: row, ["samples-copied"]), (lambda row: row[::-1], [])])
def test_samples_that_are_copies_of_others_are_told_from_other_prompts(change, names):
    order = [*range(8), *range(8)]
    wrong = ImaginedRun(**rows_from(order) | {"tokens": lambda rows: [change(rows[row]) for row in order]})
    reasons = explain(RIGHT, wrong.side(), Stage.TRAJECTORY, 0)
    assert [item.id for item in reasons.explanations if item.id == "samples-copied"] == names


@pytest.mark.parametrize(("place", "names"), [(3, ["tokens-lost"]), (-1, [])])
def test_a_token_that_an_answer_loses_is_told_from_an_answer_that_ends_earlier(place, names):
    marked = {"tokens": each(lambda row: np.where(np.arange(len(row)) == place % len(row), 7, row))}
    shorter = {
        "tokens": lambda rows: [np.delete(row, place % len(row)) for row in rows],
        "loss_mask": lambda rows: [np.delete(row, place % len(row)) for row in rows],
        "rollout": lambda rows: [
            np.delete(row, place - len(prompt) if place > 0 else -1)
            for row, prompt in zip(rows, ImaginedRun().prompts, strict=True)
        ],
    }
    reasons = explain(ImaginedRun(**marked).side(), ImaginedRun(**shorter).side(), Stage.TRAJECTORY, 0)
    assert [item.id for item in reasons.explanations if item.id == "tokens-lost"] == names


def test_two_faults_in_different_parts_of_a_loss_are_both_causes():
    faults = {"weights": lambda _w: (0.02, 0.05), "kl": lambda _k, gap: gap**2 / 2}
    reasons = explain(RIGHT, ImaginedRun(**faults).side(), Stage.LOSS, 0)
    assert {item.id for item in reasons.explanations} == {"entropy-coefficient", "kl-estimator"}


def test_two_statements_about_one_part_of_a_loss_remain_rivals():
    said = [Explanation(name, name) for name in ("kl-estimator", "kl-coefficient")]
    assert [item.id for item in ranked(said).candidates] == ["kl-estimator", "kl-coefficient"]


@pytest.mark.parametrize("number", range(len(NEAR)), ids=[f"{item[1]}-not-{item[0]}" for item in NEAR])
def test_a_near_miss_is_not_called_that(number):
    name, stage, hooks = NEAR[number]
    with non_finite_numbers():
        wrong = ImaginedRun(**hooks).side()
        reasons = explain(OF_TURNS if hooks.get("turns") else RIGHT, wrong, Stage(stage), 0)
    assert name not in [item.id for item in reasons.explanations]


def test_a_kl_that_is_hardly_more_than_rounding_tells_no_rule():
    """Two clean runs whose policy has hardly moved: each sum is off by its own rounding."""
    sides = [ImaginedRun(kl=lambda kl, _gap, off=off: 1e-6 * off * kl).side() for off in (1.005, 1.004)]
    assert explain(*sides, Stage.LOSS, 0).explanations == []


def test_engines_that_agree_hold_the_same_weights_however_old_these_are():
    """An engine that is behind on both sides is not what makes them differ; one that is behind on one side is."""
    old = ImaginedRun().log_probs(-0.3)[0]  # the reference's
    behind = ImaginedRun(rollout=lambda _rows: old).side()
    everywhere = ImaginedRun(
        rollout=lambda _rows: old, old=lambda _rows: [row + 1e-6 for row in old], new=lambda _rows, _number: old
    ).side()
    names = [
        [item.id for item in explain(right, behind, Stage.TRAJECTORY, 0).explanations] for right in (RIGHT, everywhere)
    ]
    assert names[0] == ["weights-not-synced"] and "weights-not-synced" not in names[1]


@pytest.mark.parametrize(("learned", "names"), [(-0.15, ["weights-in-between"]), (0.4, []), (0.0, [])])
def test_weights_between_reference_and_policy_are_told_from_others(learned, names):
    """The reference has learned -0.3, the policy nothing yet."""
    wrong = ImaginedRun(rollout=lambda _rows: ImaginedRun().log_probs(learned)[0]).side()
    found = explain(RIGHT, wrong, Stage.TRAJECTORY, 0).explanations
    assert [item.id for item in found if item.id == "weights-in-between"] == names


def test_an_engine_with_old_weights_in_some_samples_has_none_in_between():
    old = ImaginedRun().log_probs(-0.3)[0]
    wrong = ImaginedRun(rollout=lambda rows: [*old[::2], *rows[1::2]]).side()
    assert "weights-in-between" not in [item.id for item in explain(RIGHT, wrong, Stage.TRAJECTORY, 0).explanations]
