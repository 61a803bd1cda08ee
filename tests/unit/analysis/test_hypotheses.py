"""Every hypothesis by itself: it fits the run that went wrong its way, and is silent when another cause is at work."""

import numpy as np
import pytest

from imagined_runs import PER_GROUP, SAMPLES, ImaginedRun, log_softmax
from rldbg.algorithms import grpo_advantages
from rldbg.analysis.explain import Evidence, explain, hypotheses_of, ranked
from rldbg.analysis.stages import Stage

RIGHT = ImaginedRun().side()
_RNG = np.random.default_rng(5)


def each(change):
    """A hook that changes every row of a list by itself."""
    return lambda rows, *_: [change(np.asarray(row)) for row in rows]


def rounded(values):
    """To bfloat16's eight bits of mantissa."""
    fraction, exponent = np.frexp(values)
    return np.ldexp(np.round(fraction * 256) / 256, exponent)


def all_but_last(rows, *_):
    return [np.append(row[:-1], 0) for row in rows]


def dropped(update):
    return lambda micros, at: micros[:1] if at == update else micros


def twice(update):
    return lambda micros, at: [micros[0], micros[0]] if at == update else micros


def only_last_token(row):
    return np.append(np.zeros(len(row) - 1), row[-1])


def at_temperature(temperature):
    return lambda _rows, *_: ImaginedRun().log_probs(0.0, temperature=temperature)[0]


def normalised_again(rows, *_):
    run = ImaginedRun()
    table = log_softmax(np.exp(log_softmax(run._logits / 0.8)))
    pairs = zip(run.tokens, run.prompts, strict=True)
    return [table[tokens[len(prompt) - 1 : -1], tokens[len(prompt) :]] for tokens, prompt in pairs]


def seen_padding(inputs):
    ids, attended = inputs
    return ids, np.ones_like(attended)


def first_unseen(inputs):
    ids, attended = inputs
    attended = attended.copy()
    attended[np.arange(len(attended)), attended.argmax(1)] = 0
    return ids, attended


def right_padded(inputs):
    return tuple(
        np.stack([np.roll(row, -int(seen.argmax())) for row, seen in zip(part, inputs[1], strict=True)])
        for part in inputs
    )


def other_rank(amount):
    return lambda tensors, rank: {name: value + amount * rank for name, value in tensors.items()}


def halves(tensors, rank):
    return {name: value * (0.3 + 0.4 * rank) for name, value in tensors.items()}


def carried(gradients):
    return [gradients[0], *({k: v + gradients[n][k] for k, v in g.items()} for n, g in enumerate(gradients[1:]))]


def whole_mean(value, values, mask):
    return float((values * mask).sum() / mask.size)


def of_the_next_group(rows):
    """Rows of other samples, cut or padded to the length of those they stand beside."""
    others = [np.pad(row, (0, 5)) for row in rows[PER_GROUP:] + rows[:PER_GROUP]]
    return [other[: len(row)] for other, row in zip(others, rows, strict=True)]


def with_length_penalty(rewards):
    return rewards - 0.1 * np.asarray([len(row) for row in ImaginedRun().log_probs(0)[0]])


def half_of_them_the_mean(rewards):
    means = np.repeat(rewards.reshape(-1, PER_GROUP).mean(1), PER_GROUP)
    return np.where(np.arange(len(SAMPLES)) % PER_GROUP < 2, means, rewards)


def without_first(mask):
    return np.where(np.arange(len(mask)) == mask.argmax(), 0, mask)


def clipped_each(gradient, _number):
    return {name: np.clip(value, -0.5, 0.5) for name, value in gradient.items()}


def norm_of_one_each(gradient, _number):
    return {name: value / np.linalg.norm(value) for name, value in gradient.items()}


LATER = (0, 1)
BEFORE = dict(list(ImaginedRun()._tensors(0))[1][1])
# The cause, the stage, what is wrong, other causes that fit by right, and the optimizer step unless it is the first.
SCENARIOS = [
    ("reward-affine", "reward", {"rewards": lambda r: 2 * r + 1}, ()),
    ("reward-normalised", "reward", {"rewards": lambda r: grpo_advantages(r, np.repeat(np.arange(4), PER_GROUP))}, ()),
    ("rows-permuted", "reward", {"rewards": lambda r: np.roll(r, 3)}, ()),
    ("reward-clipped", "reward", {"rewards": lambda r: np.minimum(r, 1.0)}, ("reward-lost",)),
    ("reward-rounded", "reward", {"rewards": np.trunc}, ("reward-clipped",)),
    ("reward-by-length", "reward", {"rewards": with_length_penalty}, ()),
    ("reward-lost", "reward", {"rewards": lambda r: np.where(np.arange(16) < 6, -1.0, r)}, ()),
    ("reward-of-group", "reward", {"rewards": half_of_them_the_mean}, ()),
    (
        "advantage-normalisation",
        "advantage",
        {"advantages": lambda _a, r, g: grpo_advantages(r, g, scale_by_std=False)},
        (),
    ),
    ("scaled", "advantage", {"advantages": lambda a, *_: -a}, ()),
    ("offset", "advantage", {"advantages": lambda a, *_: a + 0.5}, ()),
    ("rows-permuted", "advantage", {"advantages": lambda a, *_: np.roll(a, 3)}, ()),
    ("last-token-only", "advantage", {"advantage_rows": only_last_token}, ()),
    ("advantage-clipped", "advantage", {"advantages": lambda a, *_: np.clip(a, -0.5, 0.5)}, ()),
    ("discount", "advantage", {"advantage_rows": lambda row: row * 0.9 ** np.arange(len(row))[::-1]}, ()),
    ("divided-by-length", "advantage", {"advantage_rows": lambda row: row / len(row)}, ()),
    ("term-in-advantage", "advantage", {"advantages_in_loss": lambda a, old, ref: a - 0.2 * (old - ref)}, ()),
    ("samples-dropped", "forward", {"micros": dropped((0, 0))}, ()),
    ("samples-repeated", "forward", {"micros": twice((0, 0))}, ()),
    ("padding-in-mask", "forward", {"response_mask": np.ones_like}, ()),
    ("samples-masked-out", "forward", {"response_mask": lambda m: m * (np.arange(len(m)) != 1)[:, None]}, ()),
    ("mask-lost", "forward", {"response_mask": lambda m: m * (np.arange(m.shape[1]) != 0)}, ()),
    ("padding-attended", "old_log_probs", {"inputs": seen_padding}, ()),
    ("tokens-not-attended", "old_log_probs", {"inputs": first_unseen}, ()),
    ("padding-side", "old_log_probs", {"inputs": right_padded}, ()),
    ("positions", "old_log_probs", {"positions": lambda p: np.where(p > 2, p - 3, p)}, ()),
    ("shift-by-one", "old_log_probs", {"old": each(lambda row: np.concatenate([row[:1], row[:-1]]))}, ()),
    ("zero-filled", "old_log_probs", {"old": all_but_last}, ()),
    ("precision", "old_log_probs", {"old": each(rounded)}, ()),
    ("scaled", "old_log_probs", {"old": each(lambda row: row / np.log(10))}, ()),
    ("offset", "old_log_probs", {"old": each(lambda row: row - 0.3)}, ()),
    ("clipped", "old_log_probs", {"old": each(lambda row: np.maximum(row, -1.5))}, ()),
    ("temperature", "old_log_probs", {"old": at_temperature(1.0)}, ()),
    ("softmax-twice", "old_log_probs", {"old": normalised_again}, ()),
    ("rows-permuted", "old_log_probs", {"old": of_the_next_group}, ()),
    ("of-reference", "old_log_probs", {"old": lambda _rows: ImaginedRun().log_probs(-0.3)[0]}, ()),
    ("ratio-always-one", "old_log_probs", {"old_in_loss": lambda _old, new: new}, ()),
    ("noise", "old_log_probs", {"old": each(lambda row: row + 0.2 * _RNG.standard_normal(len(row)))}, ()),
    (
        "reference-is-policy",
        "forward",
        {"reference": lambda _rows, new, _old: new},
        ("reference-is-old-policy", "reference-is-rollout"),
    ),
    (
        "reference-is-old-policy",
        "forward",
        {"reference": lambda _rows, _new, old: old, "earlier": None},
        ("reference-is-rollout",),
    ),
    ("scaled", "forward", {"entropy": each(lambda row: row / np.log(2))}, ()),
    ("ratio-inverted", "ratio", {"ratio": lambda r, *_: 1 / r}, ()),
    ("ratio-linear", "ratio", {"ratio": lambda _r, new, old, _ref: 1 + new - old}, ()),
    ("ratio-capped", "ratio", {"ratio": lambda r, *_: np.minimum(r, 1.02)}, ()),
    ("ratio-of-reference", "ratio", {"ratio": lambda _r, new, _old, ref: np.exp(new - ref)}, ()),
    ("clip", "loss", {"clip": lambda _c: (0.8, 1.05)}, ()),
    ("loss-form", "loss", {"token_loss": lambda _l, _r, a: -a}, ()),
    ("aggregation", "loss", {"aggregate": whole_mean}, ("entropy-aggregation", "loss-scaled")),
    ("entropy-aggregation", "loss", {"entropy_total": whole_mean}, ()),
    ("entropy-coefficient", "loss", {"weights": lambda _w: (0.0, 0.05)}, ()),
    ("kl-coefficient", "loss", {"weights": lambda _w: (0.01, -0.05)}, ()),
    ("kl-estimator", "loss", {"kl": lambda _k, gap: gap**2 / 2}, ()),
    ("loss-scaled", "loss", {"loss": lambda value: value / 4}, ()),
    ("gradient-scaled", "gradient", {"gradient": lambda g, _n: {k: v / 2 for k, v in g.items()}}, ()),
    ("gradient-clipped", "gradient", {"gradient": clipped_each}, ()),
    ("gradient-scaled-by-tensor", "gradient", {"gradient": norm_of_one_each}, ()),
    ("gradient-zero", "gradient", {"gradient": lambda g, _n: {k: 0 * v for k, v in g.items()}}, ()),
    ("gradient-not-reduced", "gradient", {"gradient_of_rank": halves}, ()),
    ("gradient-carried-over", "gradient", {"gradients": carried}, (), LATER),
    ("parameters-frozen", "gradient", {"gradient": lambda g, _n: {"w": g["w"]}}, ()),
    ("precision", "gradient", {"gradient": lambda g, _n: {k: rounded(v) for k, v in g.items()}}, ()),
    ("replica-drift", "parameter", {"param_of_rank": other_rank(1e-3)}, ()),
    ("precision", "parameter", {"parameters": lambda p, _n: {k: rounded(v) for k, v in p.items()}}, ()),
    ("parameters-frozen", "parameter", {"parameters": lambda p, _n: p | {"v": np.ones((5, 8))}}, ()),
    ("update-skipped", "parameter", {"parameters": lambda p, n: BEFORE if n == 1 else p}, (), LATER),
    ("learning-rate", "parameter", {"optimizer": lambda _s: {"rate": 0.1}}, ()),
    ("weight-decay", "parameter", {"optimizer": lambda _s: {"decay": 0.1}}, ()),
    ("gradient-clip", "parameter", {"optimizer": lambda _s: {"clip": 1.0}}, ()),
    ("optimizer-betas", "parameter", {"optimizer": lambda _s: {"betas": (0.9, 0.999)}}, ()),
    ("prompt-in-mask", "trajectory", {"loss_mask": each(np.ones_like)}, ()),
    ("mask-off-at-end", "trajectory", {"loss_mask": each(lambda m: np.append(m[:-1], 0))}, ()),
    ("mask-off-at-start", "trajectory", {"loss_mask": each(without_first)}, ("mask-shifted",)),
    ("mask-shifted", "trajectory", {"loss_mask": each(lambda m: np.append(m[1:], 0))}, ()),
    ("retokenised", "trajectory", {"tokens": each(lambda t: np.append(t[:-1], t[-1] + 5))}, ()),
    ("policy-version", "trajectory", {"versions": each(lambda v: np.where(v >= 0, v - 1, v))}, ()),
]


@pytest.fixture(scope="module")
def outcomes():
    """What explain says of every scenario, and which hypotheses fit it."""
    found = []
    for _, stage, hooks, _, *update in SCENARIOS:
        place = (0, *(update[0] if update else (0, 0)))
        wrong = ImaginedRun(**hooks).side()
        evidence = Evidence(RIGHT, wrong, *place)
        said = [(name(rule), item) for rule in hypotheses_of(Stage(stage)) for item in rule(evidence)]
        found.append((ranked(item for _, item in said).explanations, {rule for rule, item in said if item.fits}))
    return found


@pytest.mark.parametrize("number", range(len(SCENARIOS)), ids=[f"{item[1]}-{item[0]}" for item in SCENARIOS])
def test_the_cause_is_named_and_nothing_else(outcomes, number):
    cause, _, _, others, *_ = SCENARIOS[number]
    names = list(dict.fromkeys(item.id for item in outcomes[number][0]))
    assert names[:1] == [cause]
    assert set(names) <= {cause, *others}


def name(rule):
    return f"{rule.__module__.split('.')[-1]}.{rule.__qualname__}"


def test_a_right_run_is_accused_of_nothing():
    again = ImaginedRun().side()
    evidence = Evidence(RIGHT, again, 0)
    for stage in Stage:
        assert [item.id for rule in hypotheses_of(stage) for item in rule(evidence) if item.fits] == []


def test_either_side_may_be_the_wrong_one():
    wrong = ImaginedRun(response_mask=np.ones_like).side()
    sides = [
        explain(*pair, Stage.FORWARD, 0).explanations[0].parameters["side"] for pair in ((RIGHT, wrong), (wrong, RIGHT))
    ]
    assert sides == ["B", "A"]


def test_every_hypothesis_about_passes_and_updates_is_shown_here(outcomes):
    """So that a new one comes with a run that it fits; those about how a rollout draws are shown by the zoo."""
    rules = {name(rule) for stage in Stage for rule in hypotheses_of(stage)}
    drawing = {rule for rule in rules if rule.startswith(("rollout.", "sequences."))}
    assert rules - drawing == set.union(*(fitting for _, fitting in outcomes)) - drawing
