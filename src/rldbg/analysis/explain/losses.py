"""Hypotheses about the loss. What each side does is inferred from its own numbers, in all passes of the step; then the
two are compared. So a rule is found even where both sides give the same number, as the KL term of a first pass does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from rldbg.analysis.explain.aggregation import by_rule, mask_of, rules_of
from rldbg.analysis.explain.clips import clipping, left_out
from rldbg.analysis.explain.coefficients import coefficients, noise_of, terms_of
from rldbg.analysis.explain.evidence import (
    Evidence,
    Explanation,
    Hypothesis,
    Recomputed,
    applied,
    fit_factor,
    largest,
)
from rldbg.analysis.explain.kl_terms import kl_aggregation, kl_estimator
from rldbg.analysis.explain.passes import SideStep

_NOISE = 2e-6
_SAME_SHAPE = 0.02
# Ratios that usual clips leave alone, and how many tokens with such a ratio tell the form of a loss.
_UNCLIPPED, _FEWEST = 0.1, 8


def aggregation(evidence: Evidence) -> Iterator[Explanation]:
    """Tokens become one number by different rules."""
    rules = [rules_of(side, "pg_loss", "is_loss_debug", "elementwise_loss") for _, side in evidence.sides]
    if rules[0] and rules[1] and not {str(rule) for rule in rules[0]} & {str(rule) for rule in rules[1]}:
        a, b = str(rules[0][0]), str(rules[1][0])
        made = by_rule(*evidence.both, rules[1][0], "pg_loss", "is_loss_debug", "elementwise_loss")
        text = f"A's policy loss is {a}, B's is {b}"
        yield Explanation("aggregation", text, 0.0, 1e-5, {"a": a, "b": b}, recomputed=made)


def entropy_aggregation(evidence: Evidence) -> Iterator[Explanation]:
    """The entropy becomes one number by different rules."""
    rules = [rules_of(side, "entropy_loss", "forward_data", "entropy") for _, side in evidence.sides]
    if rules[0] and rules[1] and not {str(rule) for rule in rules[0]} & {str(rule) for rule in rules[1]}:
        a, b = str(rules[0][0]), str(rules[1][0])
        made = by_rule(*evidence.both, rules[1][0], "entropy_loss", "forward_data", "entropy")
        text = f"A's entropy is {a}, B's is {b}"
        yield Explanation("entropy-aggregation", text, 0.0, 1e-5, {"a": a, "b": b}, recomputed=made)


def surrogate(evidence: Evidence) -> Iterator[Explanation]:
    """On one side the advantage is not multiplied by the ratio."""
    forms = [_form(side) for _, side in evidence.sides]
    if forms[0] is not None and forms[1] is not None and forms[0] != forms[1]:
        text = f"a token's loss is {forms[0]} in A and {forms[1]} in B"
        one, other = (_products(side) for _, side in evidence.sides)
        same = one is not None and other is not None and len(one[0]) == len(other[0])
        made = Recomputed(one[0], other[0], one[1][forms[1]]) if one and other and same else None
        yield Explanation("loss-form", text, 0.0, 1e-4, {"a": forms[0], "b": forms[1]}, recomputed=made)


def _form(side: SideStep) -> str | None:
    """The product that most tokens' losses are. Tokens that may have been clipped tell nothing, if there are others."""
    found = _products(side)
    if found is None:
        return None
    loss, products = found
    told = np.abs(products["-advantage"]) > 1e-6
    if not told.any():
        return None
    ratio = products["-ratio * advantage"] / np.where(told, products["-advantage"], 1.0)
    near = told & (np.abs(ratio - 1) <= _UNCLIPPED)
    told = near if near.sum() >= _FEWEST else told
    shares = {
        name: float((np.abs(loss - value) <= 1e-4 * np.maximum(1.0, np.abs(value)))[told].mean())
        for name, value in products.items()
    }
    # In a first pass the ratio is 1, and several are the same: the simplest comes first.
    best = max(shares, key=lambda name: shares[name])
    return best if shares[best] > 0.5 else None


def _products(side: SideStep) -> tuple[np.ndarray, dict[str, np.ndarray]] | None:
    """The loss of every trained token, and the products that it may be."""
    parts: list[list[np.ndarray]] = [[], [], [], []]
    for item in side.micros:
        names = ("elementwise_loss", "advantages", "prob_ratio", "log_probs")
        arrays = [item.array("is_loss_debug", name) for name in names]
        mask = mask_of(item)
        if mask is None or any(array is None or array.shape != mask.shape for array in arrays):
            continue
        for part, array in zip(parts, arrays, strict=True):
            assert array is not None
            part.append(array[mask])
    if not parts[0]:
        return None
    loss, advantage, ratio, log_prob = (np.concatenate(part) for part in parts)
    return loss, {
        "-ratio * advantage": -ratio * advantage,
        "+ratio * advantage": ratio * advantage,
        "-log prob * advantage": -log_prob * advantage,
        "-ratio * log prob * advantage": -ratio * log_prob * advantage,
        "-probability * advantage": -np.exp(log_prob) * advantage,
        "-advantage": -advantage,
    }


def one_term(evidence: Evidence) -> Iterator[Explanation]:
    """Of the recorded terms of the loss one differs, and the others agree: the fault lies in it."""
    terms = sorted({name for side in evidence.both for name in terms_of(side)})
    apart: dict[str, bool] = {}
    for name in terms:
        numbers = [
            {(item.rank, item.micro): item.number("loss", name) for item in side.in_update(evidence.update)}
            for _, side in evidence.sides
        ]
        pairs = [(numbers[0][key], numbers[1].get(key)) for key in numbers[0]]
        if pairs and all(a is not None and b is not None for a, b in pairs):
            noise = 10 * _NOISE * max([1.0, *(abs(a) for a, _ in pairs if a is not None)])
            apart[name] = any(not abs(a - b) <= noise for a, b in pairs if a is not None and b is not None)
    odd = [name for name, differs in apart.items() if differs]
    if len(odd) == 1 and len(apart) > 1:
        rest = ", ".join(name for name in apart if name not in odd)
        text = f"only {odd[0]} differs ({rest} agree): the fault is in how this term is computed"
        yield Explanation("one-term", text, parameters={"term": odd[0]}, share=0.5)


def scaled(evidence: Evidence) -> Iterator[Explanation]:
    """Every loss is the other side's times one number."""
    a, b = evidence.shared_losses()
    if len(a) < 2:
        return
    factor = fit_factor(a, b)
    noise = max(_NOISE, 1e-4 * largest(b))
    told = np.unique(np.round(a[np.abs(a) > 10 * noise] / max(largest(a), 1e-30), 2))
    of_gradients = _factor_of_gradients(evidence)
    # One loss is a multiple of any other, and so are several that are equal: then gradients decide.
    is_told = len(told) > 1 and of_gradients in (None, 1.0)
    if of_gradients is not None and abs(of_gradients - factor) <= _SAME_SHAPE * abs(factor):
        is_told = len(told) > 0
    if abs(factor - 1) > 1e-3 and is_told:
        text = f"B's losses are A's times {factor:.6g}"
        yield applied("loss-scaled", text, a, b, factor * a, noise, {"factor": factor}, 0.95)


def _factor_of_gradients(evidence: Evidence) -> float | None:
    """The factor between the two sides' gradients at this optimizer step, 1.0 where they are equal; None where they
    were not recorded, infinite where no factor makes one of the other."""
    a, b = (side.tensors("gradient", evidence.update) for _, side in evidence.sides)
    keys = [key for key in a if key in b and a[key].shape == b[key].shape]
    if not keys:
        return None
    one, other = (np.concatenate([side[key].ravel() for key in keys]) for side in (a, b))
    for factor in (1.0, fit_factor(one, other)):
        if largest(other - factor * one) <= _SAME_SHAPE * largest(other):
            return factor
    return float("inf")


def where_odd(hypothesis: Hypothesis) -> Hypothesis:
    """The same on the ranks or micro-batches whose losses differ, where those of others agree."""

    def narrowed(evidence: Evidence) -> Iterator[Explanation]:
        odd = _odd_passes(evidence)
        # A rule may leave micro-batches as they are by accident, and ranks until a later optimizer step: one that all
        # follow in the whole step comes first.
        whole = list(hypothesis(evidence))
        if odd is None or whole:
            yield from whole
            return
        what, numbers = odd
        where = f"on {what} {', '.join(map(str, sorted(numbers)))} only"
        for item in hypothesis(evidence.of_passes("rank" if what == "rank" else "micro", numbers)):
            yield replace(item, explains=f"{item.explains}, {where}", parameters={**item.parameters, "where": where})

    narrowed.__module__, narrowed.__qualname__ = hypothesis.__module__, hypothesis.__qualname__
    return narrowed


def _odd_passes(evidence: Evidence) -> tuple[str, set[int]] | None:
    """The ranks, or else the micro-batches, whose losses differ at this optimizer step, if all of the others agree."""
    numbers = evidence.losses()
    known = {key for key, value in numbers[0].items() if value is not None}
    if not known or any(numbers[1].get(key) is None for key in known) or len(numbers[1]) != len(known):
        return None
    noise = 10 * noise_of(evidence)
    odd = {key for key in known if not abs(numbers[0][key] - numbers[1][key]) <= noise}  # type: ignore[operator]
    for place, what in enumerate(("rank", "micro-batch")):
        values = {key[place] for key in odd}
        if values and values < {key[place] for key in known}:
            return what, values
    return None


# What each side does, told by its own numbers.
RULES = (
    *map(where_odd, (surrogate, clipping, left_out, coefficients, aggregation)),
    *(kl_estimator, entropy_aggregation, kl_aggregation),
)
HYPOTHESES = {"ratio": (clipping,), "loss": (*RULES, scaled, one_term), "gradient": RULES}
