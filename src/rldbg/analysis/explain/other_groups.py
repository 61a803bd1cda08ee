"""Advantages that were normalised over groups which are not the samples' own, whichever they are.

Within a group an advantage is a straight line of the reward, so each group is found as samples on one line, of which
the rule must give the advantages of all.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np

AdvantageRule = Callable[[np.ndarray], np.ndarray]
# Ways to divide samples grow without bound: where so many groups were tried, the search ends without an answer.
_MOST_TRIED = 20_000
# Groups of one or two different rewards are met by chance.
_FEWEST_REWARDS = 3


def groups_giving(
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
