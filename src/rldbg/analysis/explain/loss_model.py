"""By which rule a side's losses follow from its log probs and rewards, where nothing between them was recorded.

A loss is made of four parts: advantages by a rule from rewards, a ratio that is clipped or not, a reduction of tokens
to one number, and terms for entropy and KL with a weight each. All combinations are tried on all passes of the first
steps, within a time budget; sides are compared by what their fitting combinations have in common.
"""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator

import numpy as np

from rldbg.analysis.explain.evidence import Evidence, Explanation, Recomputed, either, largest
from rldbg.analysis.explain.loss_rules import (
    LARGER,
    OF_RANKS,
    RATIOS,
    RECORDED,
    REDUCTIONS,
    SUM,
    FixedDivisor,
    LossPass,
    LossPasses,
    LossRule,
    loss_passes,
    token_losses,
)
from rldbg.analysis.explain.loss_variations import near_rules, other_advantages
from rldbg.analysis.side import Side

_BUDGET_S = 10.0
_FEWEST = 3
# Bounds that people choose: of single tokens' ratios, and of those of whole sequences.
_WIDTHS = (None, 3e-4, 4e-4, *(n * 10.0**power for power in (-3, -2) for n in (1, 2, 3, 4, 5, 8)))
_WIDTHS = (*_WIDTHS, 0.1, 0.15, 0.2, 0.25, 0.28, 0.3, 0.4, 0.5, 1.0)
_CLIPS = [(low, high) for low in _WIDTHS for high in _WIDTHS]
_FORMS = (*RATIOS, "log prob", "advantage alone")
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
    alike: dict[tuple[str, ...], list[tuple[LossRule, LossRule]]] = defaultdict(list)
    for parts, a, b in pairs:
        if len(parts) == fewest:
            alike[parts].append((a, b))
    for parts, sides in alike.items():
        shown = [[either(_show(pair[side], part) for pair in sides) for side in (0, 1)] for part in parts]
        texts = zip(parts, shown, strict=True)
        text = "; ".join(f"{_title(part)} {in_a} in A and {in_b} in B" for part, (in_a, in_b) in texts)
        a, b = sides[0]
        facts = {"a": a._asdict(), "b": b._asdict()}
        word = "loss-rule" if len(parts) > 1 else ""
        text, made = f"from log probs and rewards: {text}", _by_rule(evidence, b)
        yield Explanation(_PARTS[parts[0]], text, 0.0, 1e-5, facts, together=word, recomputed=made)


def _by_rule(evidence: Evidence, rule: LossRule) -> Recomputed | None:
    """A's passes by B's rule, beside both sides' losses; None where they are not as many."""
    mine, theirs = (list(loss_passes(side.side)) for _, side in evidence.sides)
    if len(mine) != len(theirs):
        return None
    own = LossPasses(mine)
    return Recomputed(own.numbers, np.asarray([item.number for item in theirs]), own.by(rule))


def _apart(a: LossRule, b: LossRule) -> tuple[str, ...]:
    return tuple(part for part in _PARTS if getattr(a, part) != getattr(b, part))


def _title(part: str) -> str:
    return {
        "advantages": "advantages are",
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
    if part == "advantages" and value != RECORDED:
        return f"rewards normalised by {value}"
    if value == _FORMS[-1]:
        return "number 1 (a ratio of log probs to themselves, or none)"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _rules(side: Side, deadline: float) -> list[LossRule]:
    """Every combination that gives all recorded losses, as far as time allows."""
    passes = list(loss_passes(side))
    if len(passes) < _FEWEST or not np.isfinite([item.number for item in passes]).all():
        return []
    tried = _Tried(LossPasses(passes))
    found: list[LossRule] = []
    # A divisor of its own is fitted where no usual one does.
    for fitting, terms in itertools.product((tried.fitting, tried.divided), _TERMS):
        if any(getattr(item, term) is None for item in passes for term in terms) or len(passes) < _FEWEST + len(terms):
            continue
        for form, name in itertools.product(_FORMS, _distinct(tried.all.tokens)):
            if time.thread_time() < deadline:
                found += fitting(LossRule(name, form, (None, None), "", 0.0, 0.0), terms)
        if found:
            return found
    return found


_TERMS: tuple[tuple[str, ...], ...] = ((), ("entropy",), ("kl",), ("entropy", "kl"))


class _Tried:
    """All passes of a side, with what is needed to try many rules on them."""

    def __init__(self, passes: LossPasses) -> None:
        self.all = passes
        several = any(item.whole[5] > 1 for item in passes.each)
        self._reductions = [name for name in REDUCTIONS if several or name not in OF_RANKS]
        # Where the ratio is 1 no clip matters: that decides the rest first, if there are enough such passes.
        self._early = np.asarray([largest(item.ratio - 1) <= 1e-4 for item in passes.each])

    def fitting(self, rule: LossRule, terms: tuple[str, ...]) -> Iterator[LossRule]:
        """With every reduction and clip by which the rule gives every loss, with some weights of the further terms."""
        early = int(self._early.sum())
        if not early:
            return
        # Most rules fit no loss, whatever the reduction: their clips need not be tried.
        unclipped = self.all.sums(token_losses(self.all.tokens, rule)[None])
        clipped: np.ndarray | None = None
        for reduction in self._reductions:
            tried = rule._replace(reduction=reduction)
            told = early > len(terms)
            if told and not self._fit(tried, terms, unclipped, self._early)[1].any():
                continue
            if clipped is None:
                clipped = self._with_clips(rule) if rule.form in RATIOS else unclipped
            weights, fits = self._fit(tried, terms, clipped, np.ones(len(self.all.each), bool))
            pairs = _CLIPS if rule.form in RATIOS else [rule.clip]
            for place in np.flatnonzero(fits):
                known = dict(zip(terms, (float(f"{value:.3g}") for value in weights[place]), strict=True))
                yield tried._replace(clip=pairs[place], entropy=known.get("entropy", 0.0), kl=known.get("kl", 0.0))

    def divided(self, rule: LossRule, terms: tuple[str, ...]) -> Iterator[LossRule]:
        """With every clip by which token sums, divided by one number in all passes, give every loss."""
        told = 1 + len(terms)
        if self._early.sum() <= told or not self.all.differ_in_size:
            return
        unclipped = self.all.reduced(token_losses(self.all.tokens, rule)[None], SUM)
        if not self._quotients(unclipped, terms, self._early)[1].any():
            return
        clipped = self.all.of_sums(self._with_clips(rule), SUM) if rule.form in RATIOS else unclipped
        weights, fits = self._quotients(clipped, terms, np.ones(len(self.all.each), bool))
        pairs = _CLIPS if rule.form in RATIOS else [rule.clip]
        for place in np.flatnonzero(fits):
            known = {
                name: float(f"{weight / weights[place, 0]:.3g}")
                for name, weight in zip(terms, weights[place, 1:], strict=True)
            }
            whole = float(f"{1 / weights[place, 0]:.4g}")
            made = rule._replace(clip=pairs[place], reduction=FixedDivisor(whole))
            made = made._replace(entropy=known.get("entropy", 0.0), kl=known.get("kl", 0.0))
            # Only numbers that people choose: of others no digit says where they end.
            if largest(self.all.numbers - self.all.by(made)) <= self.all.noise:
                yield made

    def _quotients(self, sums: np.ndarray, terms: tuple[str, ...], chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For each row of token sums their weight and those of further terms, and whether losses come out with them."""
        columns = [column for term in terms if (column := self.all.term(term, SUM)) is not None]
        table = np.stack([sums, *(np.broadcast_to(column, sums.shape) for column in columns)], axis=-1)[:, chosen]
        weights = np.linalg.pinv(table) @ self.all.numbers[chosen]
        left = np.abs(self.all.numbers[chosen] - (table @ weights[..., None])[..., 0]).max(1)
        return weights, (left <= self.all.noise) & (weights[:, 0] > 0)

    def _with_clips(self, rule: LossRule) -> np.ndarray:
        """Positive and negative advantages meet one bound each: the losses by all pairs of bounds are sums of two."""
        tokens = self.all.tokens
        signs = np.sign(tokens.advantages[rule.advantages])
        lower, upper = (
            self.all.sums(
                np.asarray([token_losses(tokens, rule._replace(clip=clip(w))) * (signs == sign) for w in _WIDTHS])
            )
            for sign, clip in _ends(rule.form)
        )
        pairs: np.ndarray = (lower[:, None] + upper[None]).reshape(len(_CLIPS), -1)
        return pairs

    def _fit(
        self, rule: LossRule, terms: tuple[str, ...], sums: np.ndarray, chosen: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """For each row of sums the weights of the further terms, and whether with them the chosen losses come out."""
        rest = (self.all.numbers - self.all.of_sums(sums, rule.reduction))[:, chosen]
        weights = np.zeros((len(rest), len(terms)))
        if terms:
            known = [column for term in terms if (column := self.all.term(term, rule.reduction)) is not None]
            columns = np.stack(known, axis=1)[chosen]
            weights = np.linalg.lstsq(columns, rest.T, rcond=None)[0].T
            rest = rest - weights @ columns.T
        left = np.where(np.isfinite(rest).all(1), np.abs(rest).max(1), np.inf)
        return weights, (left <= self.all.noise) & (np.abs(weights).min(1, initial=np.inf) >= 1e-6)


def _distinct(tokens: LossPass) -> list[str]:
    """The advantage rules that give different numbers here, the simplest of each."""
    kept: dict[str, np.ndarray] = {}
    for name, values in tokens.advantages.items():
        if all(largest(values - other) > 1e-5 * max(1.0, largest(other)) for other in kept.values()):
            kept[name] = values
    return list(kept)


def _ends(form: str) -> list[tuple[int, Callable[[float | None], tuple[float | None, float | None]]]]:
    """Which sign of advantages meets the lower bound, and which the upper one, with that bound alone."""
    sign = 1 if form == LARGER else -1
    return [(sign, lambda width: (width, None)), (-sign, lambda width: (None, width))]


HYPOTHESES = {"loss": (losses,), "gradient": (losses,)}
