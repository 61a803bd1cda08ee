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
from typing import NamedTuple

import numpy as np

from rldbg.analysis.explain.evidence import Evidence, Explanation, Recomputed, largest
from rldbg.analysis.explain.passes import MicroPass, SideStep
from rldbg.analysis.normalisation import normalisations
from rldbg.analysis.side import Side
from rldbg.analysis.tokens import SampleTokens
from rldbg.core import SampleId

_STEPS = 6
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


class LossRule(NamedTuple):
    """One combination; `clip` is how far below and above 1 the ratio may go, None for as far as it likes."""

    advantages: str
    form: str
    clip: tuple[float | None, float | None]
    reduction: str
    entropy: float
    kl: float


class _Pass(NamedTuple):
    """One recorded loss with the trained tokens it is made of, one after another; `starts` is where each row begins."""

    number: float
    starts: np.ndarray
    ratio: np.ndarray
    log_probs: np.ndarray
    entropy: np.ndarray | None
    kl: np.ndarray | None
    # One value per token, by rule.
    advantages: dict[str, np.ndarray]
    # Of the whole mini-batch: trained tokens, sequences and passes.
    whole: tuple[int, int, int] = (1, 1, 1)

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(np.append(self.starts, len(self.ratio)))


def losses(evidence: Evidence) -> Iterator[Explanation]:
    """The two sides' losses follow from their own log probs and rewards, but by different rules."""
    if any("is_loss_debug" in item.records for _, side in evidence.sides for item in side.micros):
        return  # what each token's loss is was recorded
    deadline = time.thread_time() + _BUDGET_S
    rules = [_rules(side.side, deadline) for _, side in evidence.sides]
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
    mine, theirs = (list(_all_passes(side.side)) for _, side in evidence.sides)
    if len(mine) != len(theirs):
        return None
    columns = [item.number for item in mine], [item.number for item in theirs], [_loss(item, rule) for item in mine]
    return Recomputed(*np.asarray(columns))


def _loss(item: _Pass, rule: LossRule) -> float:
    reduce = _REDUCTIONS[rule.reduction]
    terms = [(item.entropy, rule.entropy), (item.kl, rule.kl)]
    return _policy(item, rule) + sum(weight * reduce(values, item) for values, weight in terms if values is not None)


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
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _all_passes(side: Side) -> Iterator[_Pass]:
    for step in sorted(side.steps("loss"))[:_STEPS]:
        yield from _passes(SideStep(side, step))


def _rules(side: Side, deadline: float) -> list[LossRule]:
    """Every combination that gives all recorded losses, as far as time allows."""
    passes = list(_all_passes(side))
    if len(passes) < _FEWEST or not np.isfinite([item.number for item in passes]).all():
        return []
    early = [item for item in passes if largest(item.ratio - 1) <= 1e-4]
    found: list[LossRule] = []
    for terms in ((), ("entropy",), ("kl",), ("entropy", "kl")):
        if any(getattr(item, term) is None for item in passes for term in terms) or len(passes) < _FEWEST + len(terms):
            continue
        for form, name, reduction in itertools.product(_FORMS, _distinct(passes), _REDUCTIONS):
            rule = LossRule(name, form, (None, None), reduction, 0.0, 0.0)
            # Where the ratio is 1 no clip matters: that decides the rest first.
            if early and (terms or _weights(early, rule, ()) is not None) and time.thread_time() < deadline:
                found += _with_clip(passes, rule, terms)
        if found:
            return found
    return found


def _distinct(passes: list[_Pass]) -> list[str]:
    """The advantage rules that give different numbers here, the simplest of each."""
    kept: dict[str, np.ndarray] = {}
    for name in passes[0].advantages:
        if all(name in item.advantages for item in passes):
            values = np.concatenate([item.advantages[name] for item in passes])
            if all(largest(values - other) > 1e-5 * max(1.0, largest(other)) for other in kept.values()):
                kept[name] = values
    return list(kept)


def _with_clip(passes: list[_Pass], rule: LossRule, terms: tuple[str, ...]) -> Iterator[LossRule]:
    whole = [rule.clip] if rule.form != "ratio" else [(low, high) for low in _WIDTHS for high in _WIDTHS]
    for clip in whole:
        tried = rule._replace(clip=clip)
        weights = _weights(passes, tried, terms)
        if weights is not None:
            known = dict(zip(terms, (round(value, 6) for value in weights), strict=True))
            yield tried._replace(entropy=known.get("entropy", 0.0), kl=known.get("kl", 0.0))


def _weights(passes: list[_Pass], rule: LossRule, terms: tuple[str, ...]) -> list[float] | None:
    """The weights of the further terms with which a rule gives every loss; None when it does not."""
    numbers = np.asarray([item.number for item in passes])
    policy = np.asarray([_policy(item, rule) for item in passes])
    rest, weights = numbers - policy, np.zeros(len(terms))
    noise = 1e-5 * largest(numbers) + 2e-6
    if terms:
        reduce = _REDUCTIONS[rule.reduction]
        columns = np.asarray([[reduce(getattr(item, term), item) for term in terms] for item in passes])
        weights = np.linalg.lstsq(columns, rest, rcond=None)[0]
        rest = rest - columns @ weights
        if np.abs(weights).min() < 1e-6:
            return None
    return weights.tolist() if largest(rest) <= noise else None


def _policy(item: _Pass, rule: LossRule) -> float:
    advantage = item.advantages[rule.advantages]
    if rule.form == "ratio":
        low, high = rule.clip
        bounded = np.clip(item.ratio, 0.0 if low is None else 1 - low, np.inf if high is None else 1 + high)
        values = -np.minimum(item.ratio * advantage, bounded * advantage)
    else:
        values = -advantage * (item.log_probs if rule.form == "log prob" else 1.0)
    return _REDUCTIONS[rule.reduction](values, item)


def _mean_of_means(values: np.ndarray, item: _Pass) -> float:
    return float((np.add.reduceat(values, item.starts) / item.lengths).mean())


_REDUCTIONS: dict[str, Callable[[np.ndarray, _Pass], float]] = {
    "the mean over tokens": lambda values, _: float(values.mean()),
    "the mean over sequences of their token means": _mean_of_means,
    "the mean over sequences of their token sums": lambda values, item: float(values.sum()) / len(item.starts),
    "the sum over tokens": lambda values, _: float(values.sum()),
    "the mean over the mini-batch's tokens": lambda values, item: float(values.sum()) / item.whole[0],
    "the mean over the mini-batch's sequences of their token means": lambda values, item: (
        _mean_of_means(values, item) * len(item.starts) / item.whole[1]
    ),
    "the token mean of each micro-batch, divided by their number": lambda values, item: (
        float(values.mean()) / item.whole[2]
    ),
    "the sum over tokens divided by sequences times the longest": lambda values, item: (
        float(values.sum()) / (len(item.starts) * int(item.lengths.max()))
    ),
}


def _passes(side: SideStep) -> Iterator[_Pass]:
    by_update: dict[tuple[int, int], list[_Pass]] = defaultdict(list)
    rules = _advantages(side)
    for item in side.micros:
        # A policy loss that was recorded by itself has no further terms.
        number = item.number("loss", "pg_loss")
        number, is_alone = (item.number("loss", "loss"), False) if number is None else (number, True)
        found = None if number is None else _pass(side, item, number, rules, is_alone=is_alone)
        if found is not None:
            by_update[item.update].append(found)
    for passes in by_update.values():
        whole = sum(len(item.ratio) for item in passes), sum(len(item.starts) for item in passes), len(passes)
        yield from (item._replace(whole=whole) for item in passes)


def _pass(
    side: SideStep, item: MicroPass, number: float, rules: dict[str, dict[SampleId, float]], *, is_alone: bool
) -> _Pass | None:
    record = item.records.get("forward_data")
    if record is None or not record.samples:
        return None
    known = side.samples_at(item.update)
    rows = [known[sample] for sample in record.samples if sample in known and np.any(known[sample].loss_mask)]
    new, old = _column(rows, "log_probs"), _column(rows, "old_log_probs")
    lengths = [int(np.count_nonzero(row.loss_mask)) for row in rows]
    if new is None or old is None or len(new) != len(old) or sum(lengths) != len(new):
        return None
    reference, entropy = _column(rows, "ref_log_probs"), _column(rows, "entropy")
    gap = None if is_alone or reference is None or len(reference) != len(new) else reference - new
    return _Pass(
        number,
        np.cumsum([0, *lengths[:-1]]),
        np.exp(new - old),
        new,
        None if is_alone or entropy is None or len(entropy) != len(new) else -entropy,
        None if gap is None else np.expm1(gap) - gap,
        {name: np.repeat([of[row.sample] for row in rows], lengths) for name, of in rules.items()},
    )


def _column(rows: list[SampleTokens], name: str) -> np.ndarray | None:
    """A quantity of all trained tokens; None when a row has none."""
    found = [row.trained(name) for row in rows]
    known = [values[0] for values in found if values is not None]
    return np.concatenate(known).astype(np.float64) if rows and len(known) == len(rows) else None


def _advantages(side: SideStep) -> dict[str, dict[SampleId, float]]:
    """Every rule's advantage of each sample of the step."""
    samples = [sample for sample in side.samples.values() if sample.reward is not None]
    if len(samples) < 2 or len(samples) < len(side.samples):
        return {}
    names = list(dict.fromkeys(sample.sample.group_id for sample in samples))
    groups = np.asarray([names.index(sample.sample.group_id) for sample in samples])
    rewards = np.asarray([sample.reward for sample in samples], dtype=np.float64)
    lengths = np.asarray([np.count_nonzero(sample.loss_mask) for sample in samples], dtype=np.float64)
    return {
        name: {sample.sample: float(value) for sample, value in zip(samples, values, strict=True)}
        for name, values in normalisations(rewards, groups, lengths)
    }


HYPOTHESES = {"loss": (losses,), "gradient": (losses,)}
