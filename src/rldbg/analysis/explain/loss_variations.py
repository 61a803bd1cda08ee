"""Losses that follow the other side's rule in all parts but one: its advantages, its KL term, some tokens, or a weight
of every token."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rldbg.analysis.explain.advantage_rules import shape_of
from rldbg.analysis.explain.evidence import Explanation, Recomputed, fit_factor, largest
from rldbg.analysis.explain.kl_terms import KL_FORMULAS
from rldbg.analysis.explain.loss_rules import REDUCTIONS, LossPass, LossRule, loss_by, policy_loss

_FEWEST = 3
_REFINEMENTS = 9
# What a term changes must be more than what rounding may leave.
MARGIN = 4.0


def near_rules(label: str, passes: list[LossPass], rule: LossRule) -> Iterator[Explanation]:
    """Losses by the other side's rule, but for some tokens that count more or less, or for weights of all tokens."""
    if len(passes) < _FEWEST:
        return
    left = np.asarray([item.number - loss_by(item, rule) for item in passes])
    noise = 1e-5 * largest(np.asarray([item.number for item in passes])) + 2e-6
    yield from _other_kl(label, passes, rule, left, noise)
    yield from _other_weights(label, passes, rule, left, noise)
    for what, chosen in _some_tokens(passes):
        parts = np.asarray([policy_loss(item, rule, some) for item, some in zip(passes, chosen, strict=True)])
        factor = fit_factor(parts, left)
        if not abs(factor) > 1e-3:
            continue
        times = "are left out" if abs(factor + 1) < 1e-3 else f"count {1 + factor:.4g} times"
        text = f"from log probs and rewards: {label}'s loss is as the other side's, but {what} {times}"
        facts = {"side": label, "tokens": what, "factor": 1 + factor}
        numbers = np.asarray([item.number for item in passes])
        shown = Recomputed(numbers - left, numbers, numbers - left + factor * parts, _names(label))
        rest = left - factor * parts
        residual = largest(rest)
        share = 1.0 if residual <= noise else max(0.0, 1 - float(np.linalg.norm(rest) / np.linalg.norm(left)))
        yield Explanation("loss-of-some-tokens", text, residual, noise, facts, share, recomputed=shown)
    ratios = [np.exp(item.above_rollout) for item in passes if item.above_rollout is not None]
    for bound in (np.inf, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0):
        if len(ratios) == len(passes):
            weights = [ratio.clip(max=bound) for ratio in ratios]
            made = [
                loss_by(item, rule) + policy_loss(item, rule, one - 1)
                for item, one in zip(passes, weights, strict=True)
            ]
            gap = largest(np.asarray([item.number for item in passes]) - made)
            if gap <= noise < largest(left):
                most = "" if bound == np.inf else f", at most {bound:g}"
                text = f"from log probs and rewards: {label} weights each token's loss by old over rollout{most}"
                numbers, facts = np.asarray([item.number for item in passes]), {"side": label, "bound": bound}
                shown = Recomputed(numbers - left, numbers, np.asarray(made), _names(label))
                yield Explanation("loss-weighted-by-rollout", text, gap, noise, facts, recomputed=shown)
                return


def _names(label: str) -> tuple[str, str]:
    return f"{label}'s loss by the other side's rule", f"{label}'s loss"


def other_advantages(label: str, passes: list[LossPass], rule: LossRule) -> Iterator[Explanation]:
    """Losses by the other side's rule, but of advantages by another one, with or without its further terms."""
    numbers = np.asarray([item.number for item in passes])
    noise = 1e-5 * largest(numbers) + 2e-6
    # One rule of each function of rewards: those that give the same losses are rivals.
    found: dict[str, Explanation] = {}
    names = [name for name in passes[0].advantages if all(name in item.advantages for item in passes)] if passes else []
    for lost in ((), *((term,) for term in ("kl", "entropy") if getattr(rule, term))):
        for name in names if len(passes) >= _FEWEST else ():
            kept = {term: 0.0 if term in lost else getattr(rule, term) for term in ("kl", "entropy")}
            tried = rule._replace(advantages=name, kl=kept["kl"], entropy=kept["entropy"])
            gap = largest(numbers - np.asarray([loss_by(item, tried) for item in passes]))
            if gap <= noise and name != rule.advantages:
                text = (
                    f"from log probs and rewards: {label}'s advantages are rewards normalised by {name}, "
                    f"the other side's by {rule.advantages}"
                )
                text += "".join(f"; {label}'s loss has no {term} term" for term in lost)
                facts = {"side": label, "rule": name, "other": rule.advantages}
                found.setdefault(
                    shape_of(name),
                    Explanation("advantage-normalisation", text, gap, noise, facts, together=shape_of(name)),
                )
        if found:
            yield from found.values()
            return


def _other_kl(
    label: str, passes: list[LossPass], rule: LossRule, left: np.ndarray, noise: float
) -> Iterator[Explanation]:
    """The KL term by another formula, with the other side's weight or one of its own."""
    if not rule.kl or any(item.above_reference is None or item.kl is None for item in passes):
        return
    whole = left + rule.kl * np.asarray([REDUCTIONS[rule.reduction](item.kl, item) for item in passes])  # type: ignore[arg-type]

    def fitted(columns: list[np.ndarray], reduction: str) -> tuple[float, bool]:
        terms = np.asarray([REDUCTIONS[reduction](column, item) for column, item in zip(columns, passes, strict=True)])
        weight = fit_factor(terms, whole)
        gap = largest(whole - weight * terms)
        return gap, gap <= noise < MARGIN * noise < largest(left) and abs(weight - rule.kl) <= 1e-3 * abs(rule.kl)

    for against, gaps in (
        ("", [item.above_reference for item in passes]),
        (" against the old policy", [np.log(item.ratio) for item in passes]),
    ):
        for name, formula in KL_FORMULAS.items():
            gap, fits = fitted([formula(values) for values in gaps if values is not None], rule.reduction)
            if fits:
                text = f"from log probs and rewards: {label}'s KL term is {name}{against}, the other side's is not"
                yield Explanation("kl-estimator", text, gap, noise, {"side": label, "formula": name + against})
    for reduction in REDUCTIONS:
        gap, fits = fitted([item.kl for item in passes if item.kl is not None], reduction)
        if fits and reduction != rule.reduction:
            text = f"from log probs and rewards: {label}'s KL term is {reduction}, the other side's is {rule.reduction}"
            yield Explanation("kl-aggregation", text, gap, noise, {"side": label, "reduction": reduction})


def _other_weights(
    label: str, passes: list[LossPass], rule: LossRule, left: np.ndarray, noise: float
) -> Iterator[Explanation]:
    """One factor per token towards the end of a sample: a discount."""
    to_end = [np.repeat(item.starts + item.lengths - 1, item.lengths) - np.arange(len(item.ratio)) for item in passes]

    def error(gamma: float) -> float:
        parts = [policy_loss(item, rule, gamma**back - 1) for item, back in zip(passes, to_end, strict=True)]
        return largest(left - parts)

    low, high = 0.5, 1.0
    for _ in range(_REFINEMENTS):
        tried = np.linspace(low, high, 12)
        place = int(np.argmin([error(float(gamma)) for gamma in tried]))
        low, high = float(tried[max(place - 1, 0)]), float(tried[min(place + 1, 11)])
    gamma = (low + high) / 2
    if error(gamma) <= noise < largest(left) and gamma < 1 - 1e-3:
        text = f"from log probs and rewards: {label}'s loss counts a token {gamma:.4g} times the next one: a discount"
        yield Explanation("discount", text, error(gamma), noise, {"side": label, "gamma": gamma})


def _some_tokens(passes: list[LossPass]) -> Iterator[tuple[str, list[np.ndarray]]]:
    """Parts of the trained tokens that a loss may treat unlike the others."""
    yield "tokens of the last turn", [item.is_last for item in passes]
    yield "tokens before the last turn", [~item.is_last for item in passes]
    for turn in range(1, min(6, max(int(item.turn.max()) for item in passes)) + 1):
        yield f"tokens of turn {turn}", [item.turn == turn for item in passes]
    yield "first tokens of answers", [item.place == 0 for item in passes]
    yield "last tokens of answers", [item.to_end == 0 for item in passes]
    for rank in sorted({item.rank for item in passes}):
        yield f"tokens on rank {rank}", [np.full(len(item.ratio), item.rank == rank) for item in passes]
    by = {"probability": [item.log_probs for item in passes]}
    if all(item.uncertainty is not None for item in passes):
        by["entropy"] = [item.uncertainty for item in passes if item.uncertainty is not None]
    for what, columns in by.items():
        for share in (0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9):
            bounds = [_of_rows(values, item, share) for values, item in zip(columns, passes, strict=True)]
            for side, chosen in (
                ("below", [values < bound for values, bound in zip(columns, bounds, strict=True)]),
                ("above", [values > bound for values, bound in zip(columns, bounds, strict=True)]),
            ):
                yield f"tokens whose {what} is {side} the {100 * share:.0f} % quantile of their sample", chosen


def _of_rows(values: np.ndarray, item: LossPass, share: float) -> np.ndarray:
    rows = np.split(values, item.starts[1:])
    return np.repeat([np.quantile(row, share) for row in rows], item.lengths)
