"""The common ways to compute advantages from rewards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rldbg.algorithms import grpo_advantages


def _of_groups(rule: Callable[[np.ndarray], Any], values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """At each sample what the rule makes of all values of its group."""
    places = np.unique(groups, return_inverse=True)[1]
    ends = np.cumsum(np.bincount(places))
    parts = np.split(values[np.argsort(places, kind="stable")], ends[:-1])
    return np.asarray([rule(part) for part in parts], dtype=np.float64)[places]


def guarded(advantages: np.ndarray, rewards: np.ndarray, groups: np.ndarray, slack: float) -> str | None:
    """The guard against division by 0 added to the group's standard deviation; None when no single one fits.

    The divisor of the centred rewards decides: a number added to the deviation, or to the variance under the root, or
    the least that it may be.
    """
    centred = grpo_advantages(rewards, groups, scale_by_std=False)
    told = (np.abs(advantages) > slack) & (np.abs(centred) > slack)
    if np.count_nonzero(told) < 3:
        return None
    variance = _of_groups(np.sum, centred**2, groups)[told]
    sizes = _of_groups(np.size, centred, groups)[told]
    divisor = centred[told] / advantages[told]
    for name, degrees in (("", np.maximum(sizes - 1, 1)), ("population ", sizes)):
        spread = np.sqrt(variance / degrees)
        if len(np.unique(np.round(spread, 6))) < 2:
            return None
        for added, text in (
            (divisor - spread, "group mean and {}standard deviation + {:.3g}"),
            (divisor**2 - spread**2, "group mean and the root of the {}variance + {:.3g}"),
        ):
            if np.ptp(added) <= slack * float(np.abs(divisor).max()) and added.min() > slack:
                return text.format(name, float(np.median(added)))
        # A guard that only small deviations meet, at least two of them.
        floor = float(divisor.min())
        is_low = spread < floor * (1 - slack)
        is_met = len(np.unique(np.round(spread[is_low], 6))) > 1
        if is_met and np.abs(divisor - np.maximum(spread, floor)).max() <= slack * floor:
            if is_low.all():
                return f"group mean, divided by {floor:.3g} (a fixed number, or the least deviation)"
            return f"group mean and {name}standard deviation of at least {floor:.3g}"
    if np.ptp(divisor) <= slack * float(np.abs(divisor).max()):
        return f"group mean, divided by {float(np.median(divisor)):.3g} in every group"
    return None


def _deviations(rewards: np.ndarray, groups: np.ndarray) -> np.ndarray:
    return _of_groups(lambda part: part.std(ddof=1) if len(part) > 1 else 0.0, rewards, groups)


def with_one_baseline(advantages: np.ndarray, rewards: np.ndarray, groups: np.ndarray, slack: float) -> str | None:
    """One number that is subtracted from all rewards, such as a running mean; None where there is none.

    Samples of groups without a deviation tell nothing of a rule that divides by it.
    """
    deviation = _deviations(rewards, groups)
    for divisor, text in (
        (np.ones_like(deviation), "a baseline of {:.4g} for all samples"),
        (deviation, "a baseline of {:.4g} for all samples and group standard deviation"),
    ):
        told = divisor > slack
        found = (rewards - advantages * divisor)[told]
        if len(np.unique(np.round(rewards[told], 6))) > 2 and np.ptp(found) <= slack * max(1.0, float(divisor.max())):
            return text.format(float(np.median(found)))
    return None


def normalisations(
    rewards: np.ndarray, groups: np.ndarray, lengths: np.ndarray | None = None
) -> Iterator[tuple[str, np.ndarray]]:
    """Each rule by name, with the advantages it gives; with the samples' lengths also rules that use them."""
    scaled, centred = grpo_advantages(rewards, groups), grpo_advantages(rewards, groups, scale_by_std=False)
    size = _of_groups(np.size, rewards, groups)
    bessel = size / np.maximum(size - 1, 1)
    spread = rewards.std(ddof=1) if len(rewards) > 1 else 0.0
    yield "group mean and standard deviation", scaled
    yield "group mean only", centred
    yield "population standard deviation", scaled * np.sqrt(bessel)
    yield "leave one out", centred * bessel
    yield "leave one out and standard deviation", scaled * bessel
    total = _of_groups(np.sum, rewards, groups)
    yield "leave one out, divided by the whole group's size", rewards - (total - rewards) / size
    yield "group mean, batch standard deviation", centred / (centred.std() + 1e-6)
    yield "group mean, standard deviation of the batch's rewards", centred / (spread + 1e-6)
    yield (
        "group mean, population standard deviation of the batch's rewards",
        centred / (rewards.std() + 1e-6),
    )
    yield "whole batch", (rewards - rewards.mean()) / (spread + 1e-6)
    yield "batch mean only", rewards - rewards.mean()
    yield "nothing (rewards as they are)", rewards.astype(np.float64)
    yield (
        "group, then whole batch",
        (scaled - scaled.mean()) / (scaled.std(ddof=1) + 1e-6) if len(scaled) > 1 else scaled,
    )
    yield "group, then whole batch (population standard deviation)", (scaled - scaled.mean()) / (scaled.std() + 1e-8)
    deviation = _deviations(rewards, groups)
    yield (
        "batch mean, group standard deviation",
        np.divide(rewards - rewards.mean(), deviation, out=np.zeros_like(centred), where=deviation != 0),
    )
    for epsilon in (1e-4, 1e-3, 1e-2, 1e-1, 1.0):
        yield f"group mean and standard deviation + {epsilon:g}", centred / (deviation + epsilon)
    yield "group mean and variance", np.divide(scaled, deviation, out=np.zeros_like(scaled), where=deviation != 0)
    best = _of_groups(np.max, rewards, groups)
    yield "best of the group", rewards - best
    middle = _of_groups(np.median, rewards, groups)
    yield "median of the group", rewards - middle
    yield (
        "median and standard deviation of the group",
        np.divide(rewards - middle, deviation, out=np.zeros_like(middle), where=deviation != 0),
    )
    lower = _of_groups(lambda part: np.sort(part)[(len(part) - 1) // 2], rewards, groups)
    yield (
        "lower median and standard deviation of the group",
        np.divide(rewards - lower, deviation, out=np.zeros_like(lower), where=deviation != 0),
    )
    yield "lower median of the group", rewards - lower
    smallest = _of_groups(np.min, rewards, groups)
    span = best - smallest
    yield "range of the group", np.divide(rewards - smallest, span, out=np.zeros_like(span), where=span != 0)
    yield "group mean and range", np.divide(centred, span, out=np.zeros_like(span), where=span != 0)
    apart = _of_groups(lambda part: np.abs(part - part.mean()).mean(), rewards, groups)
    yield (
        "group mean and mean absolute deviation",
        np.divide(centred, apart, out=np.zeros_like(centred), where=apart > 0),
    )
    if lengths is not None and lengths.min(initial=1.0) > 0:
        weighted = _of_groups(np.sum, rewards * lengths, groups) / _of_groups(np.sum, lengths, groups)
        scale = np.divide(scaled, centred, out=np.zeros_like(centred), where=centred != 0)
        yield "group mean weighted by length and standard deviation", (rewards - weighted) * scale
        yield "group mean weighted by length only", rewards - weighted
        for name, values in (("group mean and standard deviation", scaled), ("group mean", centred)):
            yield f"{name}, divided by the length", values / lengths
            yield f"{name}, divided by the root of the length", values / np.sqrt(lengths)
