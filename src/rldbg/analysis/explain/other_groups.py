"""Advantages that were normalised over groups which are not the samples' own, whichever they are.

Within a group an advantage is a straight line of the reward, so each group is found as samples on one line, of which
the rule must give the advantages of all.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np

from rldbg.analysis.explain.advantage_rules import SLACK, Scored, common_normalisations, rules_of, shape_of
from rldbg.analysis.explain.evidence import Evidence, Explanation, Recomputed

AdvantageRule = Callable[[np.ndarray], np.ndarray]
# Ways to divide samples grow without bound: where so many groups were tried, the search ends without an answer.
_MOST_TRIED = 20_000
# Groups of one or two different rewards are met by chance.
_FEWEST_REWARDS = 3


def over_other_groups(evidence: Evidence) -> Iterator[Explanation]:
    """One side's advantages follow from its rewards by the other side's rule, but over groups of other samples."""
    for label, right, wrong in evidence.directions:
        sides = (evidence.a, evidence.b)
        rules = rules_of(sides[right])
        scored = Scored.of(sides[wrong])
        names = [sample.sample.group_id for sample in scored.samples]
        size = max((names.count(name) for name in set(names)), default=0)
        if not rules or shape_of(rules[0]) or not np.isfinite(scored.advantages).all() or rules_of(sides[wrong]):
            continue
        for rule in rules:
            made = _of_one_group(rule)
            if made is None:
                continue
            groups = _groups_giving(scored.advantages, scored.rewards, size, made, SLACK)
            if groups:
                one = ", ".join(str(scored.samples[place].sample) for place in groups[0])
                text = (
                    f"{label}'s advantages are rewards normalised by {rule}, as the other side's, but over groups of "
                    f"{size} samples that are not its groups: {one} is one that gives the recorded numbers"
                )
                facts, shown = {"side": label, "rule": rule}, _over_groups(evidence, wrong, scored, groups, made)
                yield Explanation("advantage-normalisation", text, 0.0, SLACK, facts, recomputed=shown)
                break


def _over_groups(
    evidence: Evidence, wrong: int, scored: Scored, groups: list[list[int]], made: AdvantageRule
) -> Recomputed | None:
    """One side's advantages over these groups, beside those of both sides; None where the other lacks a sample."""
    partners = {pair[wrong].sample: pair[1 - wrong].trained("advantages") for pair in evidence.samples}
    given = [partners.get(sample.sample) for sample in scored.samples]
    expected = np.zeros(len(scored.samples))
    for group in groups:
        expected[group] = made(scored.rewards[group])
    known = [float(values[0][0]) for values in given if values is not None and values[0].size]
    return Recomputed(np.asarray(known), scored.advantages, expected) if len(known) == len(expected) else None


def _of_one_group(name: str) -> AdvantageRule | None:
    """What a common rule makes of the rewards of one group; None for other rules."""

    def made(rewards: np.ndarray) -> np.ndarray:
        rules = common_normalisations(rewards, np.zeros(len(rewards), dtype=int))
        return next(values for rule, values in rules if rule == name)

    known = [rule for rule, _ in common_normalisations(np.arange(3.0), np.zeros(3, dtype=int))]
    return made if name in known else None


def _groups_giving(
    advantages: np.ndarray, rewards: np.ndarray, size: int, rule: AdvantageRule, slack: float
) -> list[list[int]]:
    """A division of all samples into groups of one size by which the rule gives every advantage; empty where there is
    none, none was found in time, or too few groups tell."""
    if size < _FEWEST_REWARDS or len(rewards) % size or len(rewards) <= size:
        return []
    search = _Search(advantages, rewards, size, rule, slack)
    found = search.divide(list(range(len(rewards)))) or []
    telling = [group for group in found if len(np.unique(np.round(rewards[group], 6))) >= _FEWEST_REWARDS]
    return found if len(telling) > 1 else []


class _Search:
    def __init__(
        self, advantages: np.ndarray, rewards: np.ndarray, size: int, rule: AdvantageRule, slack: float
    ) -> None:
        self._advantages, self._rewards, self._size, self._rule = advantages, rewards, size, rule
        self._slack = slack * max(1.0, float(np.abs(advantages).max()))
        self._tried = 0

    def divide(self, left: list[int]) -> list[list[int]] | None:
        if not left:
            return []
        for group in self._with(left[0], left[1:]):
            rest = self.divide([place for place in left if place not in group])
            if rest is not None:
                return [group, *rest]
        return None

    def _with(self, first: int, others: list[int]) -> Iterator[list[int]]:
        """Every group of a sample and some others that the rule allows."""
        seen = set()
        for on_line in self._lines(first, others):
            for chosen in itertools.combinations(on_line, self._size - 1):
                self._tried += 1
                if self._tried > _MOST_TRIED:
                    return
                if chosen not in seen:
                    seen.add(chosen)
                    group = [first, *chosen]
                    if np.abs(self._rule(self._rewards[group]) - self._advantages[group]).max() <= self._slack:
                        yield group

    def _lines(self, first: int, others: list[int]) -> Iterator[list[int]]:
        """The others that share a line with the first sample, for each such line."""
        rewards, advantages = self._rewards[others], self._advantages[others]
        along, up = rewards - self._rewards[first], advantages - self._advantages[first]
        lines = set()
        for run, rise in zip(along, up, strict=True):
            # A group whose rewards are all the same has no advantages.
            slope = rise / run if run else 0.0
            near = np.abs(up - slope * along) <= 2 * self._slack * np.maximum(1.0, np.abs(along / run) if run else 1.0)
            if not run:
                near &= along == 0
            if near.sum() >= self._size - 1:
                lines.add(tuple(np.asarray(others)[near].tolist()))
        yield from (list(line) for line in sorted(lines, key=len))
