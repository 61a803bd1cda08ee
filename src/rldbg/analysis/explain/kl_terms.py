"""Hypotheses about the KL term of the loss: its formula, the policy it compares with, and how it becomes one number."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from rldbg.analysis.explain.aggregation import Pass, PassStatistics, fitting_rules, mask_of, rules_of, totals_of
from rldbg.analysis.explain.evidence import Evidence, Explanation, Recomputed, either, largest
from rldbg.analysis.explain.passes import MicroPass, SideStep

_NOISE = 2e-6
_HALVINGS = 40


def kl_estimator(evidence: Evidence) -> Iterator[Explanation]:
    """The KL term is estimated by different formulas."""
    found = [_estimators(side) for _, side in evidence.sides]
    if found[0] and found[1] and not set(found[0]) & set(found[1]):
        a, b = (either(names) for names in found)
        text = f"the KL term is {a} in A and {b} in B"
        made = _by_formula(evidence, found[1][0])
        yield Explanation("kl-estimator", text, 0.0, 1e-5, {"a": a, "b": b}, recomputed=made)


def kl_aggregation(evidence: Evidence) -> Iterator[Explanation]:
    """The KL term, by one formula on both sides, becomes one number by different rules."""
    found = [dict(_formulas(side)) for _, side in evidence.sides]
    for name in found[0]:
        a, b = found[0][name], found[1].get(name)
        if b and a and not set(a) & set(b):
            facts = {"a": a[0], "b": b[0]}
            text = f"A's KL term is {facts['a']}, B's is {facts['b']}"
            yield Explanation("kl-aggregation", text, 0.0, 1e-5, facts, recomputed=_by_formula(evidence, name))
            return


def _by_formula(evidence: Evidence, name: str) -> Recomputed | None:
    """A's KL term by this formula and the rule by which it gives B's, beside both, pass by pass."""
    a, b = (dict(_kl_passes(side)).get(name, []) for side in evidence.both)
    rules = fitting_rules(evidence.b, b)
    if not rules:
        return None
    totals = totals_of(evidence.a)
    others = {(item.update, item.rank, item.micro): number for item, _, _, number in b}
    return Recomputed.of_rows(
        [
            (
                number,
                others.get((item.update, item.rank, item.micro)),
                rules[0].factor
                * PassStatistics(mask, totals[item.update], item.rank).number(rules[0].statistic, values),
            )
            for item, values, mask, number in a
        ]
    )


def _formulas(side: SideStep) -> Iterator[tuple[str, list[str]]]:
    """Every formula of the KL term with the rules by which it gives the term in every pass."""
    for name, passes in _kl_passes(side):
        fitting = [str(rule) for rule in fitting_rules(side, passes)]
        if fitting:
            yield name, fitting


def _kl_passes(side: SideStep) -> Iterator[tuple[str, list[Pass]]]:
    """The KL of every token by every formula, against the reference and against the policy before the step."""
    for against, name in itertools.product(("ref_log_probs", "old_log_probs"), KL_FORMULAS):
        passes: list[Pass] = []
        for item in side.micros:
            new, other = item.array("forward_data", "log_probs"), _other_policy(side, item, against)
            mask, number = mask_of(item), item.number("loss", "kl_loss")
            if new is None or other is None or mask is None or number is None:
                continue
            if mask.shape == new.shape == other.shape:
                gap = np.nan_to_num(new - other, nan=0.0, posinf=0.0, neginf=0.0)
                passes.append((item, KL_FORMULAS[name](gap), mask, number))
        yield name if against == "ref_log_probs" else f"{name} against the old policy", passes


def _other_policy(side: SideStep, item: MicroPass, name: str) -> np.ndarray | None:
    """What another policy says of the tokens of a pass: recorded with it, or by sample before the step."""
    found = item.array("forward_data", name)
    record, shape = item.records.get("forward_data"), item.array("forward_data", "log_probs")
    if found is not None or record is None or shape is None or not record.samples or name == "ref_log_probs":
        return found
    table = np.array(shape)
    for row, sample in enumerate(record.samples):
        known = side.samples[sample].quantities.get(name) if sample in side.samples else None
        if known is None or row >= len(table):
            return None
        width = min(len(known.values), table.shape[1])
        table[row, :width] = known.values[:width]
    return table


def _estimators(side: SideStep) -> list[str]:
    """The formulas that give a side's KL term in every pass, by the rule its policy loss is aggregated by."""
    rules = [str(rule) for rule in rules_of(side, "pg_loss", "is_loss_debug", "elementwise_loss")]
    tried = list(_kl_passes(side))
    names: list[str] = []
    for name, passes in tried:
        fitting = {str(rule) for rule in fitting_rules(side, passes)}
        if fitting.intersection(rules) if rules else fitting:
            names.append(name)
    # A bound is sought where no formula fits as it is.
    for name, passes in () if names else tried:
        bound = _bound(side, passes, rules)
        if bound is not None:
            names.append(f"{name}, at most {bound:.3g} per token")
    return names


def _bound(side: SideStep, passes: Sequence[Pass], rules: Sequence[str]) -> float | None:
    """The bound on a token's KL that gives every pass's number: it grows with the bound, so halving finds it."""
    known = [values[mask] for _, values, mask, _ in passes]
    top = max((float(part.max()) for part in known if part.size), default=0.0)
    if len(passes) < 4 or top <= 0:
        return None
    totals = totals_of(side)
    statistics = [PassStatistics(mask, totals[item.update], item.rank) for item, _, mask, _ in passes]
    rule = next((rule for rule in rules if rule in statistics[0].rules), None)
    if rule is None:
        return None

    def error(bound: float) -> np.ndarray:
        made = [
            item.number(rule, np.minimum(values, bound)) - number
            for item, (_, values, _, number) in zip(statistics, passes, strict=True)
        ]
        return np.asarray(made)

    low, high = 0.0, top
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if float(error(middle).sum()) < 0 else (low, middle)
    left = largest(error(high))
    clamped = sum(bool((part > high).any()) for part in known)
    return high if left <= _NOISE and high < 0.99 * top and clamped >= 3 else None


# By log p of the policy minus log p of the reference.
KL_FORMULAS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "k1 (log ratio)": lambda gap: gap,
    "k2 (half the squared log ratio)": lambda gap: gap**2 / 2,
    "k3 (ratio - 1 - log ratio)": lambda gap: np.expm1(-gap) + gap,
    "k3 with policy and reference swapped": lambda gap: np.expm1(gap) - gap,
    "the squared log ratio": lambda gap: gap**2,
    "the absolute log ratio": np.abs,
    "k1 with policy and reference swapped": lambda gap: -gap,
}
