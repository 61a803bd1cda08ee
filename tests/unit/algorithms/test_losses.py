from typing import get_args

import numpy as np
import pytest
import torch

from rldbg.algorithms import (
    LOSS_NAMES,
    Aggregation,
    aggregate,
    combine_losses,
    effective_sample_size,
    entropy,
    kl_divergence,
    log_softmax,
    loss_denominator,
    policy_loss,
    ratio_metrics,
    token_log_probs,
)


def batch(seed=0, rows=6, columns=9):
    generator = np.random.default_rng(seed)
    log_probs = -generator.exponential(size=(rows, columns))
    old = log_probs + generator.normal(scale=0.3, size=(rows, columns))
    advantages = np.repeat(generator.normal(size=(rows, 1)), columns, axis=1)
    lengths = generator.integers(1, columns + 1, size=rows)
    mask = (np.arange(columns) < lengths[:, None]).astype(np.int64)
    return log_probs, old, advantages, mask


@pytest.mark.parametrize("name", LOSS_NAMES)
@pytest.mark.parametrize("how", get_args(Aggregation))
def test_numpy_and_torch_agree(name, how):
    arrays = batch()
    tensors = [torch.as_tensor(array) for array in arrays]
    ours = policy_loss(name, *arrays[:3])
    theirs = policy_loss(name, *tensors[:3])
    np.testing.assert_allclose(ours.values, theirs.values.numpy(), rtol=1e-12)
    np.testing.assert_array_equal(ours.clipped, theirs.clipped.numpy())
    np.testing.assert_allclose(
        aggregate(ours.values, arrays[3], how), aggregate(theirs.values, tensors[3], how).item(), rtol=1e-12
    )


@pytest.mark.parametrize("how", ["token_mean", "sequence_mean"])
def test_parts_with_the_denominator_of_the_whole_add_up_to_the_whole(how):
    log_probs, old, advantages, mask = batch(rows=12)
    values = policy_loss("ppo", log_probs, old, advantages).values
    whole = aggregate(values, mask, how)
    for cut in (1, 2, 5):
        pieces = [slice(start, start + cut) for start in range(0, 12, cut)]
        denominator = sum(loss_denominator(mask[piece], how) for piece in pieces)
        parts = sum(aggregate(values[piece], mask[piece], how, denominator) for piece in pieces)
        np.testing.assert_allclose(parts, whole, rtol=1e-12)


def test_means_by_hand():
    values = np.asarray([[1.0, 2.0, 3.0], [10.0, np.nan, np.inf]])
    mask = np.asarray([[1, 1, 1], [1, 0, 0]])
    assert aggregate(values, mask, "token_mean") == 4.0
    assert aggregate(values, mask, "sequence_mean") == 6.0
    assert aggregate(values, mask, "sum") == 16.0


def test_a_batch_without_any_token_has_loss_zero_and_no_gradient_of_nan():
    values = torch.full((2, 3), float("nan"), requires_grad=True)
    loss = aggregate(values, torch.zeros(2, 3), "token_mean")
    loss.backward()
    assert loss.item() == 0 and torch.equal(values.grad, torch.zeros(2, 3))


@pytest.mark.parametrize(
    ("ratio", "advantage", "value", "clipped"),
    [(1.5, 1.0, -1.2, True), (0.5, 1.0, -0.5, False), (0.5, -1.0, 0.8, True), (1.5, -1.0, 1.5, False)],
)
def test_the_clip_only_ever_takes_away_a_gain(ratio, advantage, value, clipped):
    loss = policy_loss("ppo", np.log([[ratio]]), np.zeros((1, 1)), np.asarray([[advantage]]))
    np.testing.assert_allclose(loss.values, [[value]])
    assert loss.clipped.tolist() == [[clipped]]


def test_a_clipped_token_has_no_gradient():
    log_probs = torch.tensor([[0.5, 0.0]], requires_grad=True)
    policy_loss("ppo", log_probs, torch.zeros(1, 2), torch.ones(1, 2)).values.sum().backward()
    assert log_probs.grad.tolist() == [[0.0, -1.0]]


def test_an_unknown_loss_names_those_there_are():
    with pytest.raises(ValueError, match="importance_sampling, ppo, cross_entropy"):
        policy_loss("grpo", *batch()[:3])


def test_log_probs_and_entropy_agree_between_libraries_and_with_the_definition():
    logits = np.random.default_rng(2).normal(size=(2, 3, 5)) * 4
    logits[0, 0, 0] = -np.inf
    tokens = np.random.default_rng(3).integers(0, 5, size=(2, 3))
    tokens[0, 0] = 1
    normal = log_softmax(logits)
    np.testing.assert_allclose(np.exp(normal).sum(-1), 1)
    np.testing.assert_allclose(normal, log_softmax(torch.as_tensor(logits)).numpy(), rtol=1e-12)
    torch.testing.assert_close(
        token_log_probs(torch.as_tensor(normal), torch.as_tensor(tokens)),
        torch.as_tensor(token_log_probs(normal, tokens)),
    )
    probs = np.exp(normal)
    with np.errstate(divide="ignore", invalid="ignore"):
        by_hand = -np.nansum(probs * np.log(probs), axis=-1)
    np.testing.assert_allclose(entropy(normal), by_hand)
    np.testing.assert_allclose(entropy(torch.as_tensor(normal)).numpy(), by_hand)


def test_kl_estimators_average_to_the_divergence():
    generator = np.random.default_rng(4)
    policy, reference = (log_softmax(generator.normal(size=6)) for _ in range(2))
    exact = (np.exp(policy) * (policy - reference)).sum()
    for name in ("k1", "k3"):
        expected = (np.exp(policy) * kl_divergence(policy, reference, name)).sum()
        np.testing.assert_allclose(expected, exact, rtol=1e-12)
    assert np.all(kl_divergence(policy, reference, "k2") >= 0)
    assert np.all(kl_divergence(policy, reference, "k3") >= 0)


def test_the_total_is_policy_minus_entropy_plus_kl():
    assert combine_losses(1.0, 2.0, 4.0, entropy_coeff=0.5, kl_coeff=0.25) == 1.0


def test_ratio_metrics_see_only_tokens_under_the_mask():
    log_probs, old = np.zeros((2, 2)), np.asarray([[0.0, -np.log(2)], [50.0, np.nan]])
    metrics = ratio_metrics(log_probs, old, np.asarray([[1, 1], [0, 0]]))
    assert metrics["ratio/max"] == pytest.approx(2) and metrics["ratio/min"] == 1
    assert metrics == pytest.approx(
        ratio_metrics(torch.as_tensor(log_probs), torch.as_tensor(old), torch.tensor([[1, 1], [0, 0]]))
    )
    assert ratio_metrics(log_probs, old, np.zeros((2, 2))) == {}
    assert effective_sample_size(np.asarray([1.0, 0.0, 0.0, 0.0])) == 0.25
