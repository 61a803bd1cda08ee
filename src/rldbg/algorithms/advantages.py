"""Advantages from rewards: how much better a sample did than the other samples of its group.

All of them work in double precision and round once, so that the order of the samples does not show in the result.
"""

import numpy as np

from rldbg.algorithms.arrays import Array, as_float64, as_type_of, library


def grpo_advantages(
    rewards_b: Array,
    groups_b: Array,
    *,
    scale_by_std: bool = True,
    epsilon: float = 1e-6,
) -> Array:
    """(reward - mean of the group) / (sample standard deviation of the group + epsilon).

    `groups_b` holds one integer per sample; samples with the same integer are one group, wherever they stand.
    `scale_by_std=False` leaves the division out (Dr. GRPO). A group of one sample has advantage 0.
    """
    xp = library(rewards_b)
    rewards = as_float64(rewards_b)
    size_b = _sums_of_groups(xp.ones_like(rewards), groups_b)
    centred = rewards - _sums_of_groups(rewards, groups_b) / size_b
    if scale_by_std:
        squares = _sums_of_groups(centred * centred, groups_b)
        centred = centred / (xp.sqrt(squares / xp.where(size_b > 1, size_b - 1, size_b)) + epsilon)
    return as_type_of(centred, rewards_b)


def _sums_of_groups(values_b: Array, groups_b: Array) -> Array:
    """At each sample the sum over its group, in time and memory that grow with the samples, not with their pairs."""
    xp = library(values_b)
    names, places_b = xp.unique(groups_b, return_inverse=True)
    if xp is np:
        return np.bincount(places_b, weights=values_b, minlength=len(names))[places_b]
    return values_b.new_zeros(len(names)).index_add(0, places_b, values_b)[places_b]


def informative_groups(rewards_b: Array, groups_b: Array) -> Array:
    """Where a sample's group has different rewards: DAPO's dynamic sampling trains on no other group."""
    same_bb = groups_b[:, None] == groups_b[None, :]
    return (same_bb & (rewards_b[:, None] != rewards_b[None, :])).any(1)


def overlong_penalty(lengths_b: Array, *, max_length: int, buffer: int, factor: float = 1.0) -> Array:
    """DAPO's soft punishment: 0 up to `max_length - buffer` tokens, then linear down to -factor at `max_length`."""
    xp = library(lengths_b)
    excess = as_float64(lengths_b) - (max_length - buffer)
    return -factor * xp.clip(excess / max(buffer, 1), 0.0, 1.0)


def dapo_advantages(
    rewards_b: Array,
    groups_b: Array,
    lengths_b: Array,
    *,
    max_length: int,
    overlong_buffer: int = 0,
    overlong_factor: float = 1.0,
    epsilon: float = 1e-6,
) -> Array:
    """GRPO advantages of the rewards after the overlong penalty; groups without a difference get exactly 0."""
    xp = library(rewards_b)
    shaped = rewards_b
    if overlong_buffer:
        penalty = overlong_penalty(lengths_b, max_length=max_length, buffer=overlong_buffer, factor=overlong_factor)
        shaped = as_type_of(as_float64(rewards_b) + penalty, rewards_b)
    advantages = grpo_advantages(shaped, groups_b, epsilon=epsilon)
    return xp.where(informative_groups(shaped, groups_b), advantages, xp.zeros_like(advantages))
