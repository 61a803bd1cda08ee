"""Rules told from one side's own numbers, each on numbers that were made by it."""

from types import SimpleNamespace

import numpy as np
import pytest

import rldbg
from rldbg.algorithms import grpo_advantages
from rldbg.analysis import compare
from rldbg.analysis.explain import clips, contexts, rewards, sampling
from rldbg.analysis.explain.advantage_rules import Scored, _shaped, shape_of
from rldbg.analysis.explain.aggregation import MiniBatchTotals, PassStatistics
from rldbg.analysis.explain.evidence import Explanation
from rldbg.analysis.explain.loss_model import _FORMS, _Tried
from rldbg.analysis.explain.loss_rules import FixedDivisor, LossPass, LossPasses, LossRule
from rldbg.analysis.explain.loss_variations import near_rules
from rldbg.analysis.explain.permuted import permutation, permuted_rows
from rldbg.analysis.explain.ranking import ranked
from rldbg.analysis.normalisation import guarded, normalisations, with_one_baseline
from rldbg.analysis.tokens import SampleTokens, Values
from rldbg.core import SampleId
from rldbg.recording import RecordKey


def drawn(first_temperature, *, top_k=None):
    """Samples of one prompt, with the log probs of two models that differ in one respect."""
    rng = np.random.default_rng(0)
    logits = {}
    samples = []
    for run in range(40):
        tokens, pairs = [7], []
        for _ in range(3):
            row = logits.setdefault(tuple(tokens), 2 * rng.standard_normal(6))
            plain = row - np.log(np.exp(row).sum())
            scaled = row / first_temperature
            kept = np.sort(scaled)[-(top_k or len(row))]
            scaled = np.where(scaled >= kept, scaled, -np.inf)
            other = scaled - np.log(np.exp(scaled).sum())
            token = int(rng.choice(6, p=np.exp(other)))
            tokens.append(token)
            pairs.append((other[token], plain[token]))
        first, second = np.asarray(pairs).T
        key = RecordKey("trajectory", 0)
        mask = np.asarray([0, 1, 1, 1])
        quantities = {"first": Values(1, first, key), "second": Values(1, second, key)}
        samples.append(SampleTokens(SampleId("g", run), np.asarray(tokens), mask, 0.0, quantities))
    return samples


def test_a_temperature_is_exact_in_shared_contexts():
    fit = contexts.fit_temperature(contexts.within(drawn(0.5), "first", "second"))
    assert fit.fits and fit.factor == pytest.approx(2.0, abs=1e-6)


def test_a_filter_lifts_all_tokens_of_a_context_alike():
    parts = list(contexts.offsets(contexts.within(drawn(1.0, top_k=3), "first", "second")))
    assert max(float(part.max() - part.min()) for part in parts) < 1e-9
    assert min(float(part.min()) for part in parts) > 0


@pytest.mark.parametrize("values, how", [(np.arange(9.0), "rotated by 2"), (np.arange(9.0) ** 2, "reversed")])
def test_orders_are_told(values, how):
    moved = np.roll(values, 2) if how.startswith("rotated") else values[::-1]
    assert permutation(values, moved, 1e-6) == how
    assert permutation(values, values, 1e-6) is None
    assert permutation(values, moved + 1, 1e-6) is None


def test_rows_of_other_samples_are_counted():
    rows = [np.arange(3.0), np.arange(4.0) + 10, np.arange(3.0) + 20]
    assert permuted_rows(rows, [rows[2], rows[1], rows[0]], 1e-6) == 2
    assert permuted_rows(rows, [rows[0] + 1, rows[1], rows[2]], 1e-6) == 0


def test_statistics_of_a_pass():
    values, mask = np.asarray([[1.0, 2.0, 9.0], [4.0, 9.0, 9.0]]), np.asarray([[1, 1, 0], [1, 0, 0]]) != 0
    found = PassStatistics(mask, MiniBatchTotals(10, 5, {0: 6.0}, {0: 3.0}), 0).numbers(values)
    assert found["the mean over the mini-batch's tokens"] == pytest.approx(0.7)
    assert found["the mean over the mini-batch's sequences of their token means"] == pytest.approx(5.5 / 5)
    assert found["the token mean of each micro-batch"] == pytest.approx(7 / 3)
    assert found["the mean over all columns of each micro-batch, padding included"] == pytest.approx(7 / 6)


def split(first, second):
    """One sample of each side that differ in their fifth token, of which the third and fourth were sampled as well."""
    key, mask = RecordKey("trajectory", 0), np.asarray([0, 0, 1, 1, 1])
    return tuple(
        SampleTokens(
            SampleId("g", 0),
            np.asarray([5, 6, 7, 8, token]),
            mask,
            0.0,
            {"rollout_log_probs": Values(2, np.asarray([-1.0, -1.0, log_prob]), key)},
        )
        for token, log_prob in ((first, -1.0), (second, -2.0))
    )


def test_a_side_that_avoids_tokens_of_its_context_has_a_penalty():
    avoided = [split(7, 9)] * 9 + [split(3, 9)] * 4
    assert sampling._avoids_repetition(SimpleNamespace(samples=avoided)) == ("B", 9, 9)
    assert sampling._avoids_repetition(SimpleNamespace(samples=[*avoided, split(9, 7), split(9, 6)])) is None
    assert sampling._avoids_repetition(SimpleNamespace(samples=avoided[2:])) is None


def test_counts_of_one_are_in_the_singular():
    said = [
        Explanation("x", text).explains for text in ("1 samples have other tokens", "11 rows", "in 21 samples (1 rows)")
    ]
    assert said == ["1 sample has other tokens", "11 rows", "in 21 samples (1 row)"]


@pytest.mark.parametrize(
    ("shape", "function"), [("tanh(r)", np.tanh), ("r**2", np.square), ("clipped", lambda r: r.clip(max=1.5))]
)
def test_functions_of_rewards_before_normalisation_are_told_apart(shape, function):
    rng = np.random.default_rng(0)
    rewards, groups = rng.random(16) * 2.5, np.repeat(np.arange(4), 4)
    samples = [
        SampleTokens(SampleId(f"g{n // 4}", n % 4), np.arange(3), np.asarray([0, 1, 1]), rewards[n]) for n in range(16)
    ]
    scored = Scored(samples, rewards, grpo_advantages(function(rewards), groups))
    found = list(_shaped(scored.advantages, scored, groups))
    assert {shape_of(rule) for rule in found} == {shape}


def test_the_least_deviation_is_told_from_one_that_is_added():
    rewards, groups = np.asarray([0.0, 0.1, 0.0, 0.2, 0.0, 2.0]), np.repeat(np.arange(3), 2)
    centred = rewards - np.repeat(rewards.reshape(3, 2).mean(1), 2)
    deviation = np.repeat(rewards.reshape(3, 2).std(1, ddof=1), 2)
    assert guarded(centred / deviation.clip(min=0.5), rewards, groups, 1e-3) == (
        "group mean and standard deviation of at least 0.5"
    )
    assert guarded(centred / (deviation + 0.5), rewards, groups, 1e-3) == "group mean and standard deviation + 0.5"
    assert guarded(centred / 0.3, rewards, groups, 1e-3) == "group mean, divided by 0.3 in every group"


def test_rewards_exchanged_in_one_group_are_told_by_later_steps(tmp_path):
    """Two of two rewards in another order are chance in one step, not in four."""
    rng = np.random.default_rng(0)
    steps = [np.asarray([1, 1, 0, 0, *rng.permutation([1, 1, 0, 0]), 1, 0, 1, 0], np.float32) for _ in range(4)]
    samples = [(f"g{n // 4}", n % 4) for n in range(12)]
    for name, order in (("a", [0, 1, 2, 3]), ("b", [3, 2, 1, 0])):
        with rldbg.Recorder(tmp_path / name) as recorder:
            for step, rewards in enumerate(steps):
                held = [rewards[order[n]] if n < 4 else reward for n, reward in enumerate(rewards)]
                ids = [(f"{step}-{group}", run) for group, run in samples]
                tokens = [[5, 6, n, step] for n in range(12)]
                key = {"step": step, "samples": ids, "tokens": tokens, "loss_mask": [[0, 0, 1, 1]] * 12}
                recorder.record("trajectory", **key, reward=np.asarray(held))
    result = compare(rldbg.open(tmp_path / "a"), rldbg.open(tmp_path / "b"))
    assert [item.id for item in result.explanations] == ["rows-permuted"]


def test_of_two_answers_leaving_out_the_first_leaves_the_last_one():
    both = [Explanation("turn-not-trained", "leaves out answer 1"), Explanation("last-answer-only", "only the last")]
    assert [item.id for item in ranked(both).explanations] == ["last-answer-only"]


def clipped_losses(high_first, high_later):
    """A pass over rows of two turns with positive advantages, each turn clipped at its own bound."""
    ratio = np.tile([1.0, 1.05, 1.5, 1.6, 1.0, 1.1, 1.3, 1.6], (3, 1))
    mask = np.tile([1, 1, 1, 1, 0, 1, 1, 1], (3, 1))
    used = np.minimum(ratio, np.where(np.arange(8) < 4, high_first, high_later))
    fields = {"prob_ratio": ratio, "elementwise_loss": -used, "advantages": np.ones((3, 8)), "effective_valid": mask}
    return SimpleNamespace(micros=[SimpleNamespace(array=lambda kind, name: fields.get(name))])


@pytest.mark.parametrize(
    ("a", "b", "where"),
    [
        # The second turn of both sides is seen to be clipped alike.
        (clipped_losses(1.2, 1.2), clipped_losses(1.4, 1.2), "in the first turn"),
        (clipped_losses(1.2, 1.2), clipped_losses(1.2, 1.4), "after the first turn"),
        (clipped_losses(1.2, 1.2), clipped_losses(1.4, 1.4), None),
        # No token of the second turn is clipped: nothing is known of it.
        (clipped_losses(1.2, 9.0), clipped_losses(1.4, 9.0), None),
    ],
)
def test_a_clip_of_some_turns_needs_others_that_agree(a, b, where):
    evidence = SimpleNamespace(sides=(("A", a), ("B", b)))
    (found,) = clips.clipping(evidence)
    assert found.id == "clip" and found.parameters.get("where") == where


def _loss(item: LossPass, rule: LossRule) -> float:
    return float(LossPasses([item]).by(rule)[0])


def loss_passes(lengths, denominator):
    """One pass per number of tokens, its loss the token sum divided by what `denominator` makes of that number."""
    rng = np.random.default_rng(0)
    for count in lengths:
        ratio, place = np.exp(rng.normal(0, 0.05, count)), np.arange(count)
        item = LossPass(
            *(
                0.0,
                np.asarray([0, 2]),
                ratio,
                -rng.random(count),
                None,
                None,
                {"group mean": rng.standard_normal(count)},
            ),
            *(np.ones(count, int), np.ones(count, bool), place, place[::-1], None, None),
            whole=(count, 2, 1, count, 1, 1),
        )
        total = _loss(item, PLAIN._replace(reduction="the sum over tokens"))
        yield item._replace(number=total / denominator(count))


PLAIN = LossRule("group mean", "ratio", (None, None), "the mean over the mini-batch's tokens", 0.0, 0.0)


def test_a_fixed_denominator_is_told_where_passes_have_other_numbers_of_tokens():
    def named(lengths, denominator):
        found = near_rules("B", list(loss_passes(lengths, denominator)), PLAIN)
        return [item.parameters["denominator"] for item in found if item.id == "aggregation" and item.fits]

    assert named([9, 12, 7, 10], lambda count: 28) == [pytest.approx(28)]
    assert named([9, 12, 7, 10], lambda count: 2 * count) == []
    assert named([9, 9, 9, 9], lambda count: 28) == []  # as good as a factor


def test_an_inverted_ratio_is_told_from_the_right_one():
    rule = PLAIN._replace(form="inverse of the ratio")
    passes = list(loss_passes([9, 12, 7, 10], lambda count: count))
    passes[0] = passes[0]._replace(ratio=np.ones(9))  # before the first update
    passes = [item._replace(number=_loss(item, rule)) for item in passes]
    forms = {form for form in _FORMS if list(_Tried(LossPasses(passes)).fitting(PLAIN._replace(form=form), ()))}
    assert forms == {"inverse of the ratio"}


def clipped_passes(clip):
    """Losses of one epoch before any update and one after it, with these bounds of the ratio."""
    passes = list(loss_passes([9, 12, 7, 10, 11, 8, 13], lambda count: count))
    passes[:2] = [item._replace(ratio=np.ones(len(item.ratio))) for item in passes[:2]]
    rule = PLAIN._replace(clip=clip)
    return [item._replace(number=_loss(item, rule)) for item in passes]


@pytest.mark.parametrize(
    ("clip", "said"), [((1 - 1 / 1.03, 0.03), "at least 0.9709"), ((0.03, 0.037), "at most 1.037")], ids=["low", "high"]
)
def test_a_bound_of_the_ratio_is_found_whatever_number_it_is(clip, said):
    found = near_rules("B", clipped_passes(clip), PLAIN._replace(clip=(0.03, 0.03)))
    fitting = [item for item in found if item.fits]
    assert [item.id for item in fitting] == ["clip"] and said in fitting[0].explains


def test_a_bound_that_only_some_passes_have_is_no_bound():
    passes = clipped_passes((0.03, 0.03))
    rule = PLAIN._replace(clip=(0.01, 0.03))
    passes[3:5] = [item._replace(number=_loss(item, rule)) for item in passes[3:5]]
    found = near_rules("B", passes, PLAIN._replace(clip=(0.03, 0.03)))
    assert not [item for item in found if item.fits]


def with_kl(passes):
    rng = np.random.default_rng(1)
    for item in passes:
        yield item._replace(kl=rng.random(len(item.ratio)))


RULE = PLAIN._replace(kl=0.05)


@pytest.mark.parametrize(
    ("kept_in", "said"), [(("policy", "kl"), "B's loss is as"), (("policy",), "B's loss of the policy is as")], ids=str
)
def test_tokens_that_are_left_out_of_all_terms_are_told_from_those_of_one(kept_in, said):
    passes = []
    for item in with_kl(clipped_passes((None, None))):
        last = item.to_end == 0
        cut = item._replace(
            advantages={"group mean": np.where(last, 0.0, item.advantages["group mean"])},
            kl=np.where(last, 0.0, item.kl) if "kl" in kept_in else item.kl,
        )
        passes.append(item._replace(number=_loss(cut, RULE)))
    fitting = [item for item in near_rules("B", passes, RULE) if item.fits]
    assert fitting and all(said in item.explains and "are left out" in item.explains for item in fitting)


@pytest.mark.parametrize(("divisor", "known"), [(160, True), (28.123456, False)])
def test_a_divisor_of_its_own_is_found_if_it_is_a_plain_number(divisor, known):
    passes = list(with_kl(clipped_passes((None, None))))
    whole = RULE._replace(reduction=FixedDivisor(divisor))
    passes = [item._replace(number=_loss(item, whole)) for item in passes]
    passes = [item._replace(ratio=np.ones(len(item.ratio))) for item in passes[:5]] + passes[5:]
    passes = [item._replace(number=_loss(item, whole)) for item in passes]
    tried = _Tried(LossPasses(passes))
    assert not list(tried.fitting(PLAIN._replace(reduction=""), ("kl",)))
    found = {rule.reduction for rule in tried.divided(PLAIN._replace(reduction=""), ("kl",))}
    assert found == ({FixedDivisor(divisor)} if known else set())


@pytest.mark.parametrize(
    ("advantages", "said"),
    [
        (lambda r, _spread: r - 0.4, "a baseline of 0.4 for all samples"),
        (lambda r, spread: (r - 0.4) / spread, "a baseline of 0.4 for all samples and group standard deviation"),
        (lambda r, spread: (r - np.repeat([0.4, 0.4, 0.6], 4)) / spread, None),
    ],
    ids=["alone", "by deviation", "of each group"],
)
def test_one_baseline_for_all_samples_is_told(advantages, said):
    given = np.random.default_rng(0).random(12)
    spread = np.repeat(given.reshape(3, 4).std(1, ddof=1), 4)
    found = with_one_baseline(advantages(given, spread), given, np.repeat(np.arange(3), 4), 1e-3)
    assert found == said


def test_the_deviation_of_a_group_is_known_where_a_reward_is_its_mean():
    given, groups = np.asarray([1.5, 0.5, 0.25, 0.75, 1.0, 1.0, 1.0, 0.25]), np.repeat([0, 1], 4)
    spread = np.repeat(given.reshape(2, 4).std(1, ddof=1), 4)
    found = dict(normalisations(given, groups))["batch mean, group standard deviation"]
    np.testing.assert_allclose(found, (given - given.mean()) / spread, rtol=1e-6)


def rewarded(count, bonus):
    """Pairs of samples with rewards and lengths; the second of each has what `bonus` gives it."""
    rng = np.random.default_rng(0)
    for number in range(count):
        length, reward = int(rng.integers(3, 12)), float(rng.integers(0, 8)) / 4
        tokens, mask = rng.integers(5, 60, 2 + length), np.repeat([0, 1], [2, length])
        pair = [SampleTokens(SampleId("g", number), tokens, mask, value) for value in (reward, reward)]
        pair[1].reward = reward + bonus(length, reward, number)
        yield tuple(pair)


def both_conditions(length, reward, _number):
    return 0.25 * (length < 8 and reward > 1)


@pytest.mark.parametrize(
    ("count", "bonus", "is_named"),
    [
        (40, both_conditions, True),
        (10, both_conditions, False),  # so few samples meet two conditions by chance
        (40, lambda length, reward, number: both_conditions(length, reward, number) * (number > 12), False),
        (40, lambda _length, _reward, number: 0.25 * (number % 3 == 0), False),
        (40, lambda length, reward, _number: -1.75 * (length < 8 and reward == 1.75), False),  # a default of 0
    ],
    ids=["two conditions", "few samples", "some of them", "others", "lost"],
)
def test_a_bonus_for_samples_that_meet_two_conditions_is_told(count, bonus, is_named):
    side = SimpleNamespace(steps=lambda _kind: set())
    passes = SimpleNamespace(side=side)
    pairs = list(rewarded(count, bonus))
    assert any(one.reward != other.reward for one, other in pairs)
    found = list(rewards.of_some(SimpleNamespace(samples=pairs, a=passes, b=passes, step=0)))
    assert len(found) == is_named
    if is_named:
        assert "at most 7 trained tokens" in found[0].explains and "a reward of at least 1.25" in found[0].explains


def test_a_ratio_that_is_always_clipped_is_told_from_a_wider_clip():
    rule, passes = PLAIN._replace(clip=(0.03, 0.03)), []
    for item in clipped_passes((0.03, 0.03)):
        always = -item.ratio.clip(0.97, 1.03) * item.advantages["group mean"]
        passes.append(item._replace(number=float(always.mean())))
    fitting = [item for item in near_rules("B", passes, rule) if item.fits]
    assert [item.id for item in fitting] == ["loss-form"] and "for every token" in fitting[0].explains
    wider = [item for item in near_rules("B", clipped_passes((0.05, 0.05)), rule) if item.fits]
    assert "loss-form" not in [item.id for item in wider]
