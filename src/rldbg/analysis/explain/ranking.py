"""Which of the hypotheses that were tried is the cause: one that fits while every rival is refuted by a margin.

A rival is refuted when it leaves more than MARGIN times what noise may leave. Statements have three levels: those that
name a fault, those that only describe how the numbers relate, and those that only say where the fault is. A statement
that fits replaces those of a lower level, which follow from it. If several remain, all are candidates.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from rldbg.analysis.explain.evidence import Explanation

MARGIN = 4.0
_NEAREST_SHOWN = 3
_WORTH_SHOWING = 0.05
_LOCATES, _DESCRIBES, _NAMES, _SHOWS = range(4)

# fmt: off
# Read from tokens, masks and ids, which are exact: they take precedence over any fit of real numbers.
_SHOWN_BY_IDS = frozenset(
    (
        "environment-changed", "environment-in-mask", "last-answer-only", "mask-lost",
        "mask-off-at-end", "mask-off-at-start", "non-finite", "padding-in-mask", "untrained-in-mask",
        "mask-shifted", "positions", "prompt-changed", "prompt-in-mask", "samples-dropped",
        "samples-masked-out", "samples-of-another-step", "samples-repeated", "tokens-added", "tokens-changed",
        "token-not-trained", "tokens-missing", "turn-not-trained", "turns-cut", "updates-per-pass",
    )
)
_DESCRIPTIONS = frozenset(
    (
        "clipped", "gradient-scaled", "gradient-scaled-by-tensor", "loss-scaled", "noise", "offset",
        "reference-differs", "reward-lost", "reward-rounded", "sampling-rule",
        "scaled", "seed", "weights-in-between",
    )
)
# fmt: on
_LOCATIONS = frozenset(
    {"rollout-mismatch", "one-term", "samples-agree", "some-gradients", "trainer-pass", "version-differs"}
)
# The first follows from the second, which says more.
_FOLLOWS = {
    "advantage-clipped": {"last-turn-only", "last-token-only"},
    "entropy-aggregation": {"aggregation"},
    # A filter that leaves one token.
    "greedy": {"sampling-filter"},
    "kl-aggregation": {"aggregation"},
    "group-shares-seed": {"greedy"},
    # Tokens that were changed, added or lost after sampling say more than that they are others.
    "history-rewritten": {
        "environment-changed",
        "prompt-changed",
        "retokenised",
        "samples-copied",
        "samples-of-another-step",
        "samples-repeated",
        "tokens-added",
        "tokens-changed",
        "tokens-lost",
        "tokens-missing",
        "turns-cut",
    },
    "mask-shifted": {"mask-off-at-start", "mask-off-at-end"},
    "token-not-trained": {"mask-off-at-end"},
    # Of two answers, leaving out the first leaves the last one only.
    "turn-not-trained": {"last-answer-only"},
    "policy-version": {"version-label"},
    "prompt-changed": {"samples-of-another-step"},
    "reference-is-old-policy": {"reference-is-policy"},
    "reference-is-rollout": {"reference-is-policy", "reference-is-old-policy"},
    # With few different rewards many functions of them agree: prefer the one that can be inverted.
    "reward-clipped": {"reward-affine", "reward-rounded"},
    "reward-normalised": {"reward-affine"},
    "reward-by-turn": {"reward-affine"},
    "reward-of-some": {"reward-clipped"},
    "reward-of-group": {"reward-affine", "rows-permuted"},
    "samples-copied": {"samples-duplicated", "group-shares-seed", "greedy"},
    "samples-duplicated": {"group-shares-seed", "greedy"},
    "truncated-support": {"samples-duplicated"},
    "weights-not-synced": {"policy-version"},
}


# What each of these says is told by other numbers: two of them that fit are two faults, not rivals.
_PARTS_OF_LOSS = {
    "aggregation": "sum",
    "clip": "policy",
    "entropy-coefficient": "entropy",
    "kl-coefficient": "kl",
    "kl-estimator": "kl",
    "loss-form": "policy",
}


class Reasons(NamedTuple):
    """The cause; or several candidates of which the data decide none; or, if nothing fits, the nearest."""

    explanations: list[Explanation]
    candidates: list[Explanation]
    nearest: list[Explanation]


def ranked(items: Iterable[Explanation]) -> Reasons:
    """The cause, where one statement is left of all that were tried."""
    tried = sorted(_said_once(items), key=lambda item: -round(item.share, 3))
    fitting = [item for item in tried if item.fits]
    if not fitting:
        return Reasons([], [], tried[:1] + [item for item in tried[1:_NEAREST_SHOWN] if item.share >= _WORTH_SHOWING])
    depth = max(_depth(item) for item in fitting)
    winners = _deepest([item for item in fitting if _depth(item) == depth])
    close = [item for item in tried if not item.fits and _depth(item) >= depth and _is_close(item)]
    close = [item for item in close if not _follows(item, winners) and _statement(item) != _statement(winners[0])]
    if depth == _LOCATES or (len({_statement(item) for item in winners}) > 1 and not _are_apart(winners)) or close:
        return Reasons([], [*winners, *close], [])
    return Reasons(_one_direction(winners), [], [])


def _are_apart(items: list[Explanation]) -> bool:
    """Whether each is about a part of the loss that no other is about."""
    names = {item.id for item in items}
    parts = [_PARTS_OF_LOSS.get(name) for name in names]
    return None not in parts and len(set(parts)) == len(parts)


def _one_direction(items: list[Explanation]) -> list[Explanation]:
    """Keeps the first of two statements that say the same about either side."""
    found: dict[object, Explanation] = {}
    for item in items:
        key = item.id if "side" in item.parameters and not item.together else item.explains
        found.setdefault(key, item)
    return list(found.values())


def _depth(item: Explanation) -> int:
    if item.id in _SHOWN_BY_IDS or item.together == "held-weights":
        return _SHOWS
    if item.id in _LOCATIONS:
        return _LOCATES
    return _DESCRIBES if item.id in _DESCRIPTIONS else _NAMES


def _deepest(items: list[Explanation]) -> list[Explanation]:
    return [item for item in items if not _follows(item, items)]


def _follows(item: Explanation, others: list[Explanation]) -> bool:
    return any(other.id in _FOLLOWS.get(item.id, ()) for other in others)


def _statement(item: Explanation) -> str:
    return item.together or item.id


def _is_close(item: Explanation) -> bool:
    return 0 < item.residual <= MARGIN * item.noise


def _said_once(items: Iterable[Explanation]) -> list[Explanation]:
    """Removes equal sentences; of one statement in several forms, keeps those that fit best."""
    return list({item.explains: item for item in items}.values())
