"""Samples whose tokens differ only because log probs did: a sampler with the same random numbers chooses another token
where two are nearly equally likely.

Probabilities that differ by |d| in their logarithm, in the mean over sampled tokens, are |d| / 2 apart (total
variation), and the same random numbers choose another token with a probability of a few times that. As many samples as
these chances explain are not judged, nor is what follows from them: their rewards, the advantages of their groups, and
losses and gradients from that step on. All other samples are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rldbg.analysis.samples import StepSamples, common_prefix, pair_samples
from rldbg.analysis.side import Side
from rldbg.analysis.tokens import SampleTokens, read_tokens
from rldbg.analysis.whole import Block
from rldbg.core import Finding, SampleId, Severity

# The chance that a token is another one, per mean |difference| of log probs: twice the total variation on each side.
_PER_GAP = 2.0
# How rarely noise alone may change as many samples, for them to count as changed by it.
_RARE = 1e-6
# Log probs of the engine, or the trainer's before the first update of the step.
_QUANTITIES = ("rollout_log_probs", "old_log_probs", "log_probs")


@dataclass(frozen=True, slots=True)
class Resampled:
    """By step, the samples of A that have other tokens in B by noise; `whole_steps` have advantages of no use."""

    samples: Mapping[int, frozenset[SampleId]] = field(default_factory=dict)
    whole_steps: frozenset[int] = frozenset()
    findings: tuple[Finding, ...] = ()

    @property
    def first(self) -> int | None:
        return min(self.samples, default=None)

    def follows(self, step: int) -> bool:
        """Whether what a step sums over its samples follows from other tokens."""
        return self.first is not None and step >= self.first

    def kept(self, step: int, block: Block) -> np.ndarray:
        """The rows of a block that can be compared: their own tokens, and where advantages count those of their group,
        are the same on both sides."""
        odd = self.samples[step]
        groups = {item.group_id for item in odd}
        of_groups = "advantages" in block.a.fields
        ids = block.a.samples or block.samples
        assert block.rows_a is not None
        if not ids:
            return np.ones(len(block.rows_a), bool)
        if of_groups and step in self.whole_steps:
            return np.zeros(len(block.rows_a), bool)
        rows = [ids[int(row)] for row in block.rows_a]
        return np.asarray([sample not in odd and not (of_groups and sample.group_id in groups) for sample in rows])


NOTHING_RESAMPLED = Resampled()


def resampled(a: Side, b: Side, steps: Sequence[int]) -> Resampled:
    """The samples of each step that noise gave other tokens; none where it explains fewer than there are."""
    found: dict[int, frozenset[SampleId]] = {}
    findings = []
    for step in steps:
        pairs = list(_pairs(a, b, step))
        places = [common_prefix(one.tokens, other.tokens) for one, other in pairs]
        apart = [
            (one, other, place)
            for (one, other), place in zip(pairs, places, strict=True)
            if not np.array_equal(one.tokens, other.tokens)
        ]
        if not apart:
            continue
        if not all(_is_sampled(*item) for item in apart):
            break
        gaps = np.concatenate([_gaps(*pair, place) for pair, place in zip(pairs, places, strict=True)])
        expected = _PER_GAP * float(gaps.sum())
        if not np.isfinite(expected) or _at_least(len(apart), expected) < _RARE:
            break
        found[step] = frozenset(one.sample for one, _, _ in apart)
        findings.append(_finding(step, len(apart), len(pairs), gaps, expected))
    whole = frozenset(step for step in found if not _by_groups_alone(a, step))
    return Resampled(found, whole, tuple(findings))


def engine_noise(a: Side, b: Side, step: int) -> float:
    """By how much the engines' log probs of the same tokens may differ: as far as each is from its own trainer's.

    Both sides must show it, so the smaller counts, twice: each engine rounds by itself.
    """
    sizes = []
    for side in (a, b):
        found = [
            values for item in read_tokens(side, step, (0, 0)).values() if (values := item.of_rollout_and_trainer())
        ]
        gaps = np.concatenate([one.astype(np.float64) - other for one, other, _ in found]) if found else np.zeros(1)
        sizes.append(float(np.abs(gaps).max(initial=0.0)) if np.isfinite(gaps).all() else 0.0)
    return 2.0 * min(sizes)


def _pairs(a: Side, b: Side, step: int) -> Iterator[tuple[SampleTokens, SampleTokens]]:
    known = [read_tokens(side, step, (0, 0)) for side in (a, b)]
    to_b = pair_samples(known[0], known[1], StepSamples(a, step), StepSamples(b, step)).to_b
    return ((known[0][one], known[1][other]) for one, other in to_b.items())


def _is_sampled(one: SampleTokens, other: SampleTokens, place: int) -> bool:
    """Whether the first token that differs was sampled on both sides, and all before was treated alike."""
    if place >= min(len(one.tokens), len(other.tokens)):
        return False
    masks = one.loss_mask[: place + 1] != 0, other.loss_mask[: place + 1] != 0
    return bool(masks[0][place]) and np.array_equal(*masks)


def _gaps(one: SampleTokens, other: SampleTokens, place: int) -> np.ndarray:
    """How far the log probs of the sampled tokens are apart that both sides have."""
    for name in _QUANTITIES:
        mine, theirs = one.trained(name), other.trained(name)
        if mine is not None and theirs is not None:
            left, right = (item[0][item[1] < place].astype(np.float64) for item in (mine, theirs))
            count = min(len(left), len(right))
            gaps: np.ndarray = np.abs(left[:count] - right[:count])
            return gaps
    return np.empty(0)


def _at_least(count: int, expected: float) -> float:
    """The chance of at least that many rare events (Poisson)."""
    if expected <= 0:
        return 0.0
    below = sum(math.exp(k * math.log(expected) - expected - math.lgamma(k + 1)) for k in range(count))
    return max(0.0, 1.0 - below)


def _by_groups_alone(a: Side, step: int) -> bool:
    """Whether an advantage follows from the rewards of its group, as far as A's own numbers tell."""
    from rldbg.analysis.explain.advantage_rules import rules_of
    from rldbg.analysis.explain.passes import SideStep

    rules = rules_of(SideStep(a, step))
    return bool(rules) and not any("batch" in rule or " over " in rule for rule in rules)


def _finding(step: int, odd: int, count: int, gaps: np.ndarray, expected: float) -> Finding:
    return Finding(
        "resampled",
        Severity.INFO,
        f"step {step}",
        (
            f"{odd} of {count} samples have different tokens, starting at a token that both sides sampled",
            f"log probs of the {len(gaps)} tokens before it differ by {gaps.mean():.2g} on average: "
            f"about {expected:.1f} samples would diverge by chance",
        ),
        "noise in log probs makes a sampler choose a different token: these samples, the advantages of their groups "
        "and later losses and gradients cannot be compared",
        ("replay A's trajectories in B, so that both train on the same tokens",),
    )
