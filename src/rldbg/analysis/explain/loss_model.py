"""By which rule a side's losses follow from its log probs and rewards, where nothing between them was recorded.

A loss is made of four parts: advantages by a rule from rewards, a ratio that is clipped or not, a reduction of tokens
to one number, and terms for entropy and KL with a weight each. All combinations are tried on all passes of the first
steps, within a time budget; sides are compared by what their fitting combinations have in common.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import numpy as np

from rldbg.analysis.explain.evidence import Evidence, Explanation, Recomputed, largest
from rldbg.analysis.explain.loss_rules import (
    OF_RANKS,
    REDUCTIONS,
    LossPass,
    LossRule,
    loss_by,
    loss_passes,
    policy_loss,
)
from rldbg.analysis.explain.loss_variations import near_rules, other_advantages
from rldbg.analysis.side import Side

_BUDGET_S = 10.0
_FEWEST = 3
_WIDTHS = (None, 0.01, 0.02, 0.03, 0.05, 0.1, 0.15, 0.2, 0.25, 0.28, 0.3, 0.4, 0.5, 1.0)
_FORMS = ("ratio", "log prob", "advantage alone")
_PARTS = {
    "advantages": "advantage-normalisation",
    "form": "loss-form",
    "clip": "clip",
    "reduction": "aggregation",
    "entropy": "entropy-coefficient",
    "kl": "kl-coefficient",
}


def losses(evidence: Evidence) -> Iterator[Explanation]:
    """The two sides' losses follow from their own log probs and rewards, but by different rules."""
    if any("is_loss_debug" in item.records for _, side in evidence.sides for item in side.micros):
        return  # what each token's loss is was recorded
    deadline = time.thread_time() + _BUDGET_S
    rules = [_rules(side.side, deadline) for _, side in evidence.sides]
    for (label, side), mine, other in zip(evidence.sides, rules, reversed(rules), strict=True):
        if other and not mine and time.thread_time() < deadline:
            yield from other_advantages(label, list(loss_passes(side.side, wide=True)), other[0])
            yield from near_rules(label, list(loss_passes(side.side)), other[0])
    if not rules[0] or not rules[1] or set(rules[0]) & set(rules[1]) or time.thread_time() > deadline:
        return  # a search that was cut short proves no difference
    pairs = [(_apart(a, b), a, b) for a in rules[0] for b in rules[1]]
    fewest = min(len(parts) for parts, _, _ in pairs)
    said = set()
    for parts, a, b in pairs:
        if len(parts) == fewest and parts not in said:
            said.add(parts)
            text = "; ".join(f"{_title(part)} {_show(a, part)} in A and {_show(b, part)} in B" for part in parts)
            facts = {"a": a._asdict(), "b": b._asdict()}
            word = "loss-rule" if len(parts) > 1 else ""
            text, made = f"from log probs and rewards: {text}", _by_rule(evidence, b)
            yield Explanation(_PARTS[parts[0]], text, 0.0, 1e-5, facts, together=word, recomputed=made)


def _by_rule(evidence: Evidence, rule: LossRule) -> Recomputed | None:
    """A's passes by B's rule, beside both sides' losses; None where they are not as many."""
    mine, theirs = (list(loss_passes(side.side)) for _, side in evidence.sides)
    if len(mine) != len(theirs):
        return None
    columns = [item.number for item in mine], [item.number for item in theirs], [loss_by(item, rule) for item in mine]
    return Recomputed(*np.asarray(columns))


def _apart(a: LossRule, b: LossRule) -> tuple[str, ...]:
    return tuple(part for part in _PARTS if getattr(a, part) != getattr(b, part))


def _title(part: str) -> str:
    return {
        "advantages": "advantages are rewards normalised by",
        "form": "a token's loss is its advantage times the",
        "clip": "the ratio is clipped to",
        "reduction": "the loss is",
        "entropy": "the entropy coefficient is",
        "kl": "the KL coefficient is",
    }[part]


def _show(rule: LossRule, part: str) -> str:
    if part == "clip":
        low, high = rule.clip
        ends = [f"at least {1 - low:g}" if low is not None else "", f"at most {1 + high:g}" if high is not None else ""]
        return " and ".join(filter(None, ends)) or "nothing"
    value = getattr(rule, part)
    if value == _FORMS[-1]:
        return "number 1 (a ratio of log probs to themselves, or none)"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _rules(side: Side, deadline: float) -> list[LossRule]:
    """Every combination that gives all recorded losses, as far as time allows."""
    passes = list(loss_passes(side))
    if len(passes) < _FEWEST or not np.isfinite([item.number for item in passes]).all():
        return []
    early = [item for item in passes if largest(item.ratio - 1) <= 1e-4]
    several = any(item.whole[5] > 1 for item in passes)
    reductions = [name for name in REDUCTIONS if several or name not in OF_RANKS]
    found: list[LossRule] = []
    for terms in ((), ("entropy",), ("kl",), ("entropy", "kl")):
        if any(getattr(item, term) is None for item in passes for term in terms) or len(passes) < _FEWEST + len(terms):
            continue
        for form, name, reduction in itertools.product(_FORMS, _distinct(passes), reductions):
            rule = LossRule(name, form, (None, None), reduction, 0.0, 0.0)
            # Where the ratio is 1 no clip matters: that decides the rest first, if there are enough such passes.
            told = len(early) > len(terms)
            if early and (not told or _weights(early, rule, terms) is not None) and time.thread_time() < deadline:
                found += _with_clip(passes, rule, terms)
        if found:
            return found
    return found


def _distinct(passes: list[LossPass]) -> list[str]:
    """The advantage rules that give different numbers here, the simplest of each."""
    kept: dict[str, np.ndarray] = {}
    for name in passes[0].advantages:
        if all(name in item.advantages for item in passes):
            values = np.concatenate([item.advantages[name] for item in passes])
            if all(largest(values - other) > 1e-5 * max(1.0, largest(other)) for other in kept.values()):
                kept[name] = values
    return list(kept)


def _with_clip(passes: list[LossPass], rule: LossRule, terms: tuple[str, ...]) -> Iterator[LossRule]:
    whole = [rule.clip] if rule.form != "ratio" else [(low, high) for low in _WIDTHS for high in _WIDTHS]
    for clip in whole:
        tried = rule._replace(clip=clip)
        weights = _weights(passes, tried, terms)
        if weights is not None:
            known = dict(zip(terms, (float(f"{value:.3g}") for value in weights), strict=True))
            yield tried._replace(entropy=known.get("entropy", 0.0), kl=known.get("kl", 0.0))


def _weights(passes: list[LossPass], rule: LossRule, terms: tuple[str, ...]) -> list[float] | None:
    """The weights of the further terms with which a rule gives every loss; None when it does not."""
    numbers = np.asarray([item.number for item in passes])
    policy = np.asarray([policy_loss(item, rule) for item in passes])
    rest, weights = numbers - policy, np.zeros(len(terms))
    noise = 1e-5 * largest(numbers) + 2e-6
    if terms:
        reduce = REDUCTIONS[rule.reduction]
        columns = np.asarray([[reduce(getattr(item, term), item) for term in terms] for item in passes])
        weights = np.linalg.lstsq(columns, rest, rcond=None)[0]
        rest = rest - columns @ weights
        if np.abs(weights).min() < 1e-6:
            return None
    return weights.tolist() if largest(rest) <= noise else None


HYPOTHESES = {"loss": (losses,), "gradient": (losses,)}
