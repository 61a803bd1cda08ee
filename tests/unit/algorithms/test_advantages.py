import numpy as np
import pytest
import torch

from rldbg.algorithms import dapo_advantages, grpo_advantages, informative_groups, overlong_penalty

BOTH = pytest.mark.parametrize("make", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])


def by_hand(rewards, groups, epsilon=1e-6):
    out = np.zeros(len(rewards))
    for group in set(groups):
        rows = [row for row, other in enumerate(groups) if other == group]
        values = np.asarray([rewards[row] for row in rows], dtype=np.float64)
        deviation = values.std(ddof=1) if len(rows) > 1 else 0.0
        out[rows] = (values - values.mean()) / (deviation + epsilon)
    return out


@BOTH
def test_grpo_is_the_standard_score_within_each_group_wherever_its_samples_stand(make):
    generator = np.random.default_rng(0)
    rewards = generator.normal(size=24).astype(np.float32)
    groups = generator.permutation(np.repeat(np.arange(6), 4))
    result = grpo_advantages(make(rewards), make(groups))
    assert np.asarray(result).dtype == np.float32
    np.testing.assert_allclose(np.asarray(result), by_hand(rewards, groups.tolist()), rtol=1e-6, atol=1e-7)


@BOTH
def test_grpo_does_not_depend_on_the_order_of_the_samples(make):
    generator = np.random.default_rng(1)
    rewards = generator.normal(size=64).astype(np.float32)
    groups = np.repeat(np.arange(8), 8)
    order = generator.permutation(64)
    straight = np.asarray(grpo_advantages(make(rewards), make(groups)))
    shuffled = np.asarray(grpo_advantages(make(rewards[order]), make(groups[order])))
    assert np.array_equal(straight[order], shuffled)


@BOTH
def test_a_group_without_a_difference_has_advantage_zero(make):
    rewards = make(np.asarray([0.1, 0.1, 0.1, 1.0, 0.0, 0.5], dtype=np.float32))
    groups = make(np.asarray([3, 3, 3, 7, 7, 9]))
    result = np.asarray(grpo_advantages(rewards, groups))
    assert np.all(result[:3] == 0) and result[5] == 0
    assert result[3] == -result[4] > 0
    assert np.asarray(informative_groups(rewards, groups)).tolist() == [False, False, False, True, True, False]


@BOTH
def test_a_reward_that_is_no_number_spoils_its_own_group_only(make):
    rewards, groups = make(np.asarray([np.nan, 1.0, 1.0, 0.0])), make(np.asarray([5, 5, 2, 2]))
    result = np.asarray(grpo_advantages(rewards, groups, scale_by_std=False))
    assert np.isnan(result[:2]).all() and result[2:].tolist() == [0.5, -0.5]


@BOTH
def test_without_scaling_only_the_mean_is_taken_off(make):
    rewards, groups = make(np.asarray([1.0, 0.0, 0.0, 0.0])), make(np.asarray([0, 0, 0, 0]))
    result = grpo_advantages(rewards, groups, scale_by_std=False)
    assert np.asarray(result).tolist() == [0.75, -0.25, -0.25, -0.25]


@BOTH
def test_the_overlong_penalty_is_zero_then_linear_then_full(make):
    penalty = overlong_penalty(make(np.asarray([4, 8, 10, 12, 20])), max_length=12, buffer=4, factor=2.0)
    np.testing.assert_allclose(np.asarray(penalty), [0, 0, -1, -2, -2])


@BOTH
def test_dapo_shapes_rewards_before_it_compares_them(make):
    rewards = make(np.asarray([1.0, 1.0, 0.0, 0.0]))
    groups, lengths = make(np.asarray([0, 0, 1, 1])), make(np.asarray([2, 8, 2, 2]))
    plain = dapo_advantages(rewards, groups, lengths, max_length=8)
    shaped = dapo_advantages(rewards, groups, lengths, max_length=8, overlong_buffer=4)
    assert np.asarray(plain).tolist() == [0, 0, 0, 0]
    assert np.asarray(shaped)[0] > 0 > np.asarray(shaped)[1]
    assert np.asarray(shaped)[2:].tolist() == [0, 0]
