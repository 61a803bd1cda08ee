"""Rules told from one side's own numbers, each on numbers that were made by it."""

from types import SimpleNamespace

import numpy as np
import pytest

from rldbg.algorithms import grpo_advantages
from rldbg.analysis.explain import contexts, optimizer, optimizer_fits, sampling
from rldbg.analysis.explain.advantage_rules import Scored, _shaped, shape_of
from rldbg.analysis.explain.aggregation import PassStatistics, Totals
from rldbg.analysis.explain.evidence import Explanation
from rldbg.analysis.explain.permuted import permutation, permuted_rows
from rldbg.analysis.normalisation import guarded
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
    found = PassStatistics(mask, Totals(10, 5, {0: 6.0}, {0: 3.0}), 0).numbers(values)
    assert found["the mean over the mini-batch's tokens"] == pytest.approx(0.7)
    assert found["the mean over the mini-batch's sequences of their token means"] == pytest.approx(5.5 / 5)
    assert found["the token mean of each micro-batch"] == pytest.approx(7 / 3)
    assert found["the mean over all columns of each micro-batch, padding included"] == pytest.approx(7 / 6)


@pytest.mark.parametrize(
    "settings", [{"lr": 0.01}, {"lr": 0.001, "weight_decay": 0.1}, {"lr": 0.01, "betas": (0.9, 0.999)}]
)
@pytest.mark.parametrize("clip", [None, 1.0])
def test_an_optimizer_is_told_from_gradients_and_parameters(settings, clip):
    import torch

    generator = torch.Generator().manual_seed(0)
    parameter = torch.nn.Parameter(torch.randn(400, generator=generator))
    options = {"betas": (0.9, 0.95), "weight_decay": 0.0} | settings
    adam = torch.optim.AdamW([parameter], **options)
    gradients, norms, largest, parameters = [], [], [], []
    for step in range(4):
        # Norms from 0.4 to 4: a clip at 1 leaves the first gradient alone and shortens the others.
        parameter.grad = torch.randn(400, generator=generator) * 0.02 * (1 + 3 * step)
        gradients.append(parameter.grad.numpy().astype(np.float64))
        largest.append(np.abs(gradients[-1]).max())
        norms.append(float(torch.nn.utils.clip_grad_norm_([parameter], clip or float("inf"))))
        adam.step()
        parameters.append(parameter.detach().numpy().astype(np.float64))
    sizes = np.repeat(np.asarray(norms)[:, None], 400, axis=1)
    history = optimizer_fits.History(
        np.stack(gradients), np.asarray(norms), np.asarray(largest), sizes, np.stack(parameters), frozenset()
    )
    found = optimizer_fits.fitting(history, optimizer_fits.CLIPS, optimizer_fits.KINDS)[0]
    assert found.rule.clip == clip and found.rule.betas == options["betas"]
    assert found.rates == pytest.approx((settings["lr"],) * 3, rel=1e-3)
    assert found.decay == pytest.approx(options["weight_decay"], abs=5e-3)


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


def test_an_optimizer_without_corrections_for_its_start_is_not_taken_for_another_rate():
    rng = np.random.default_rng(0)
    gradients, value, square, parameters = rng.standard_normal((6, 400)) * 0.01, rng.standard_normal(400), 0.0, []
    for gradient in gradients:
        square = 0.99 * square + 0.01 * gradient**2
        value = (value - 1e-3 * gradient / (np.sqrt(square) + 1e-8)).astype(np.float32).astype(np.float64)
        parameters.append(value)
    norms, sizes = np.linalg.norm(gradients, axis=1), np.abs(gradients).max(1)
    history = optimizer_fits.History(
        gradients, norms, sizes, np.repeat(norms[:, None], 400, axis=1), np.stack(parameters), frozenset()
    )
    found = optimizer_fits._identified(history)
    assert {optimizer._kind(item.rule) for item in found} == {"RMSprop (smoothing 0.99)"}
    assert found[0].rates == pytest.approx((1e-3,) * 5, rel=1e-3)


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
