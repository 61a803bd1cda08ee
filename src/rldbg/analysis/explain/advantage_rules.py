"""By which rule one side's advantages follow from its rewards.

A rule is made of three parts: what is done to rewards first (nothing, a clip, a penalty), over which samples statistics
are taken (a group, a part of it, a rank, a micro-batch), and how rewards are normalised by them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from rldbg.algorithms import grpo_advantages
from rldbg.analysis.explain.evidence import largest, small
from rldbg.analysis.explain.passes import SideStep
from rldbg.analysis.normalisation import guarded, normalisations, with_one_baseline
from rldbg.analysis.tokens import SampleTokens

SLACK = 1e-3
# Per power of ten.
_BOUNDS_TRIED = 20
_FACTORS = tuple(sign * base * 10.0**power for power in range(-3, 1) for base in (1, 2, 5) for sign in (1, -1))
_FUNCTIONS: tuple[tuple[str, Callable[[np.ndarray], np.ndarray]], ...] = (
    ("tanh(r)", np.tanh),
    ("r**2", np.square),
    ("r**3", lambda r: r**3),
    ("sqrt(r)", np.sqrt),
    ("sigmoid(r)", lambda r: 1 / (1 + np.exp(-r))),
    ("log(r)", np.log),
    ("log(1+r)", np.log1p),
    ("exp(r)", np.exp),
    ("abs(r)", np.abs),
    ("sign(r)", np.sign),
)
# The normalisations tried on shaped rewards: the first ones of the list, which are those in use.
_COMMON = 5


class Scored(NamedTuple):
    """The samples of a side that have a reward and one advantage for all of their tokens."""

    samples: list[SampleTokens]
    rewards: np.ndarray
    advantages: np.ndarray

    @classmethod
    def of(cls, side: SideStep) -> Scored:
        kept, rewards, advantages = [], [], []
        for sample in side.samples.values():
            found = sample.trained("advantages")
            if found is None or not found[0].size or sample.reward is None or largest(found[0] - found[0][0]) != 0:
                continue
            kept.append(sample)
            rewards.append(sample.reward)
            advantages.append(float(found[0][0]))
        return cls(kept, np.asarray(rewards, dtype=np.float64), np.asarray(advantages, dtype=np.float64))


def rules_of(side: SideStep) -> list[str]:
    """All rules of the simplest kind that gives every advantage; empty when none does."""
    scored = Scored.of(side)
    if len(scored.rewards) < 2 or not np.any(scored.advantages) or not np.isfinite(scored.advantages).all():
        return []
    return rules_giving(scored.advantages, scored, side)


def rules_giving(advantages: np.ndarray, scored: Scored, side: SideStep) -> list[str]:
    """The rules by which rewards become these advantages."""
    found: list[str] = []
    for suffix, groups in groupings(scored.samples, side):
        rules = itertools.chain(normalisations(scored.rewards, groups), _twice(scored, groups) if suffix else ())
        found += [rule + suffix for rule, expected in rules if _agrees(advantages, expected)]
        if found and not suffix:
            break
    if found:
        return found
    own = _numbers([sample.sample.group_id for sample in scored.samples])
    odd = guarded(advantages, scored.rewards, own, SLACK) or with_one_baseline(advantages, scored.rewards, own, SLACK)
    return [odd] if odd else list(_shaped(advantages, scored, own))


def _twice(scored: Scored, parts: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Normalised by group, and once more over parts of other samples, such as a rank's."""
    own = _numbers([sample.sample.group_id for sample in scored.samples])
    first = np.asarray(grpo_advantages(scored.rewards, own))
    sizes = np.bincount(parts)[parts]
    again = np.asarray(grpo_advantages(first, parts))
    yield "group, then once more", again
    yield (
        "group, then once more with the population standard deviation",
        again * np.sqrt(sizes / np.maximum(sizes - 1, 1)),
    )


def advantages_by(rule: str, scored: Scored, side: SideStep) -> np.ndarray | None:
    """What a rule of `rules_of` makes of a side's rewards; None for one that shapes them first."""
    for suffix, groups in groupings(scored.samples, side):
        for name, expected in itertools.chain(normalisations(scored.rewards, groups), _twice(scored, groups)):
            if name + suffix == rule:
                return expected
    return None


def _agrees(have: np.ndarray, expected: np.ndarray) -> bool:
    return small(have - expected, SLACK * max(1.0, largest(expected)))


def _numbers(names: list[object]) -> np.ndarray:
    known = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return np.asarray([known[name] for name in names])


def groupings(samples: list[SampleTokens], side: SideStep) -> Iterator[tuple[str, np.ndarray]]:
    """Which samples statistics may be taken over, the samples' own groups first; no partition twice."""
    own = _numbers([sample.sample.group_id for sample in samples])
    size = max(int(np.bincount(own).max()), 1)
    runs = np.asarray([sample.sample.run_id for sample in samples])
    homes = [side.homes.get(sample.sample) for sample in samples]
    known = all(home is not None for home in homes)
    places = {
        name: _numbers([rule(home) for home in homes])
        for name, rule in (
            ("rank", lambda home: home.rank),
            ("mini-batch", lambda home: home.mini_batch),
            ("rank's part of a mini-batch", lambda home: (home.rank, home.mini_batch)),
            ("micro-batch", lambda home: (home.rank, home.mini_batch, home.micro)),
        )
        if known
    }
    candidates = [
        ("", own),
        (" over groups that mix prompts", np.arange(len(own)) % max(len(own) // size, 1)),
        (" over groups that are off by one sample", np.roll(own, 1)),
        (" over every second sample of a group", 2 * own + runs % 2),
        (" over each half of a group", 2 * own + (runs >= size / 2)),
        *((f" over each {name}", place) for name, place in places.items()),
        *((f" over the part of a group in each {name}", own * len(own) + place) for name, place in places.items()),
    ]
    seen = set()
    for suffix, groups in candidates:
        partition = _numbers(groups.tolist()).tobytes()
        if partition not in seen:
            seen.add(partition)
            yield suffix, groups


def _shaped(advantages: np.ndarray, scored: Scored, groups: np.ndarray) -> Iterator[str]:
    """Rewards that were clipped, put through a function, or had a term added, before they were normalised."""
    for text, rewards in shapes(scored):
        for rule, expected in common_normalisations(rewards, groups):
            if _agrees(advantages, expected):
                yield f"{rule}{_OF}{text}"
                break


_OF = ", of rewards "


def shape_of(rule: str) -> str:
    """What a rule does to rewards first, in a word; empty for nothing."""
    return rule.partition(_OF)[2].split(" ")[0]


def common_normalisations(rewards: np.ndarray, groups: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    return itertools.islice(normalisations(rewards, groups), _COMMON)


def shapes(scored: Scored) -> Iterator[tuple[str, np.ndarray]]:
    """What may be done to rewards before they are normalised."""
    rewards = scored.rewards
    for text, function in _FUNCTIONS:
        with np.errstate(all="ignore"):
            made = np.asarray(function(rewards), dtype=np.float64)
        if np.isfinite(made).all():
            yield text, made
    yield "by their rank in the group", _ranks(scored)
    bounds = _round_numbers(float(rewards.min()), float(rewards.max()))
    for bound in bounds:
        yield f"clipped from above at {bound:.4g}", np.minimum(rewards, bound)
        yield f"clipped from below at {bound:.4g}", np.maximum(rewards, bound)
    for low, high in itertools.combinations(bounds, 2):
        yield f"clipped to [{low:.4g}, {high:.4g}]", np.clip(rewards, low, high)
    yield "reduced to 1 where above 0, else 0", (rewards > 0).astype(np.float64)
    for name, term in terms_of(scored.samples):
        for factor in _FACTORS:
            yield f"plus {factor:g} times {name}", rewards + factor * term


def _ranks(scored: Scored) -> np.ndarray:
    """Each reward's place among those of its group, equal ones in their order."""
    groups = _numbers([sample.sample.group_id for sample in scored.samples])
    found = np.empty(len(groups))
    for group in np.unique(groups):
        rows = np.flatnonzero(groups == group)
        found[rows[np.argsort(scored.rewards[rows], kind="stable")]] = np.arange(len(rows))
    return found


def _round_numbers(low: float, high: float) -> list[float]:
    """Bounds that people choose between two numbers: multiples of a twentieth of their distance's power of ten."""
    if not high > low or not np.isfinite(high - low):
        return []
    unit = 10.0 ** np.ceil(np.log10(high - low)) / _BOUNDS_TRIED
    return [float(n * unit) for n in range(int(np.floor(low / unit)) + 1, int(np.ceil(high / unit)))]


def terms_of(samples: list[SampleTokens]) -> Iterator[tuple[str, np.ndarray]]:
    """One number per sample that a reward may have been shaped by."""
    for title, names in (
        ("KL to the reference", ("old_log_probs", "ref_log_probs")),
        ("KL of the rollout to the reference", ("rollout_log_probs", "ref_log_probs")),
        ("log prob", ("rollout_log_probs",)),
        ("entropy", ("entropy",)),
    ):
        values = [sample.trained(*names) for sample in samples]
        known = [found for found in values if found is not None]
        if not known or len(known) < len(samples):
            continue
        parts = [found[0].astype(np.float64) - (found[1] if len(names) > 1 else 0.0) for found in known]
        yield f"its tokens' summed {title}", np.asarray([part.sum() for part in parts])
        yield f"its tokens' mean {title}", np.asarray([part.mean() if part.size else 0.0 for part in parts])
    yield "its number of trained tokens", np.asarray([float(np.count_nonzero(item.loss_mask)) for item in samples])
    yield "its number of tokens", np.asarray([float(len(item.tokens)) for item in samples])
