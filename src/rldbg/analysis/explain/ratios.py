"""Hypotheses about the importance ratio: how each side's ratio is computed, inferred from its own log probs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rldbg.analysis.explain.evidence import Evidence, Explanation, Recomputed, largest, small
from rldbg.analysis.explain.passes import MicroPass, SideStep
from rldbg.analysis.explain.subsets import turn_of

_NOISE = 1e-4


def form(evidence: Evidence) -> Iterator[Explanation]:
    """Each side's ratio follows from its log probs, but by different rules."""
    rules = [_rule(side) for _, side in evidence.sides]
    if rules[0] is None or rules[1] is None or rules[0][:2] == rules[1][:2]:
        return
    label, odd = ("B", rules[1]) if rules[0][0] == "plain" else ("A", rules[0])
    text = f"A's ratio is {rules[0][1]}, B's is {rules[1][1]}"
    made = Recomputed(odd[2], odd[3], odd[4], (f"{label}'s new over old", f"{label}'s ratio"))
    facts = {"a": rules[0][1], "b": rules[1][1]}
    yield Explanation(f"ratio-{odd[0]}", text, 0.0, _NOISE, facts, recomputed=made)


def _rule(side: SideStep) -> tuple[str, str, np.ndarray, np.ndarray, np.ndarray] | None:
    """Id and description of the one rule that gives all ratios of a step; new over old, the ratio, and by the rule."""
    parts = [_pass(side, item) for item in side.micros]
    known = [part for part in parts if part is not None]
    if not known:
        return None
    ratio = np.concatenate([part[0] for part in known])
    log_ratio = np.concatenate([part[1] for part in known])
    sequence = np.concatenate([part[2] for part in known])
    turn = np.concatenate([part[3] for part in known])
    others = {name: np.concatenate([part[4][name] for part in known]) for name in known[0][4]}
    plain = np.exp(log_ratio)
    if small(ratio - plain, _NOISE * max(1.0, largest(plain))):
        return "plain", "new over old", plain, ratio, plain
    if largest(ratio - 1) <= _NOISE:
        return "always-one", "always 1", plain, ratio, np.ones_like(plain)
    if small(ratio - np.exp(-log_ratio), _NOISE * max(1.0, largest(np.exp(-log_ratio)))):
        return "inverted", "old over new", plain, ratio, np.exp(-log_ratio)
    if small(ratio - np.exp(sequence), _NOISE * max(1.0, largest(ratio))):
        return "of-sequence", "the geometric mean over the sequence", plain, ratio, np.exp(sequence)
    if small(ratio - np.exp(turn), _NOISE * max(1.0, largest(ratio))):
        return "of-turn", "the geometric mean over the turn", plain, ratio, np.exp(turn)
    if small(ratio - (1 + log_ratio), _NOISE * max(1.0, largest(ratio))):
        return "linear", "1 + the difference of log probs, without exp", plain, ratio, 1 + log_ratio
    for name, gap in others.items():
        if len(gap) == len(ratio) and small(ratio - np.exp(gap), _NOISE * max(1.0, largest(ratio))):
            return f"of-{name}", f"new over the {name}'s, not over old", plain, ratio, np.exp(gap)
    low, high = float(ratio.min()), float(ratio.max())
    if largest(ratio - np.clip(plain, low, high)) <= _NOISE:
        bounds = [f"at most {high:.4g}"] if (plain > high + _NOISE).any() else []
        bounds += [f"at least {low:.4g}"] if (plain < low - _NOISE).any() else []
        return "capped", f"new over old, limited to {' and '.join(bounds)}", plain, ratio, np.clip(plain, low, high)
    return None


_Parts = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]


def _pass(side: SideStep, item: MicroPass) -> _Parts | None:
    """Ratio, log ratio, its means over sequence and turn, and the gaps to other log probs, at tokens that count."""
    names = ("prob_ratio", "log_probs", "old_log_probs", "effective_valid")
    ratio, new, old, valid = (item.array("is_loss_debug", name) for name in names)
    if ratio is None or new is None or old is None or valid is None or not new.shape == old.shape == ratio.shape:
        return None
    counts = valid != 0
    gap = np.where(counts, new - old, 0.0)
    mean = gap.sum(1) / np.maximum(counts.sum(1), 1)
    others = {"reference": item.array("forward_data", "ref_log_probs"), "rollout": _of_rollout(side, item, new.shape)}
    gaps = {
        name: (new - value)[counts] for name, value in others.items() if value is not None and value.shape == new.shape
    }
    by_turn = np.concatenate([_mean_by_turn(row, own) for row, own in zip(gap, counts, strict=True)])
    return ratio[counts], gap[counts], np.broadcast_to(mean[:, None], gap.shape)[counts], by_turn, gaps


def _mean_by_turn(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """At each token that counts, the mean over its run of such tokens."""
    turns = turn_of(counts)
    means: np.ndarray = (np.bincount(turns, values) / np.maximum(np.bincount(turns), 1))[turns[counts]]
    return means


def _of_rollout(side: SideStep, item: MicroPass, shape: tuple[int, ...]) -> np.ndarray | None:
    """The rollout's log probs of a pass's samples, aligned with the response tokens."""
    found = np.zeros(shape)
    samples = item.records["is_loss_debug"].samples
    if len(samples) != shape[0]:
        return None
    for row, sample in enumerate(samples):
        known = side.samples.get(sample)
        values = None if known is None else known.quantities.get("rollout_log_probs")
        if known is None or values is None:
            return None
        response = values.values[known.prompt_length - values.start :][: shape[1]]
        found[row, : len(response)] = response
    return found


HYPOTHESES = {"ratio": (form,), "loss": (form,), "gradient": (form,)}
