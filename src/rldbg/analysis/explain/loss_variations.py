"""Losses that follow the other side's rule in all parts but one: its advantages, its KL term, some tokens, or a weight
of every token."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np

from rldbg.analysis.explain.advantage_rules import shape_of
from rldbg.analysis.explain.evidence import Explanation, Recomputed, applied, fit_factor, largest
from rldbg.analysis.explain.kl_terms import KL_FORMULAS
from rldbg.analysis.explain.loss_rules import RATIOS, REDUCTIONS, SUM, FixedDivisor, LossPass, LossPasses, LossRule

_FEWEST = 3
_REFINEMENTS = 9
# What a term changes must be more than what rounding may leave.
MARGIN = 4.0


def near_rules(label: str, passes: list[LossPass], rule: LossRule) -> Iterator[Explanation]:
    """Losses by the other side's rule, but for some tokens that count more or less, or for weights of all tokens."""
    if len(passes) < _FEWEST:
        return
    everything = LossPasses(passes)
    if rule.advantages not in everything.tokens.advantages:
        return
    left, noise = everything.numbers - everything.by(rule), everything.noise
    yield from _fixed_denominator(label, everything, rule, left)
    yield from _times_a_factor(label, everything, rule, left)
    yield from _other_clip(label, everything, rule, left)
    yield from _always_clipped(label, everything, rule, left)
    yield from _other_kl(label, everything, rule, left)
    yield from _other_weights(label, everything, rule, left)
    yield from _some_count_otherwise(label, everything, rule, left)
    numbers = everything.numbers
    ratios = [np.exp(item.above_rollout) for item in passes if item.above_rollout is not None]
    for bound in (np.inf, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0):
        if len(ratios) == len(passes):
            made = numbers - left + everything.policy(rule, np.concatenate(ratios).clip(max=bound) - 1)
            gap = largest(numbers - made)
            if gap <= noise < largest(left):
                most = "" if bound == np.inf else f", at most {bound:g}"
                weights = f"by the ratio of old to rollout probability{most}"
                text = f"from log probs and rewards: {label} weights each token's loss {weights}"
                shown = Recomputed(numbers - left, numbers, made, _names(label))
                facts = {"side": label, "bound": bound}
                yield Explanation("loss-weighted-by-rollout", text, gap, noise, facts, recomputed=shown)
                return


def _some_count_otherwise(label: str, passes: LossPasses, rule: LossRule, left: np.ndarray) -> Iterator[Explanation]:
    """Some tokens count more or less, in the policy's term or in all of them."""
    numbers = passes.numbers
    of_terms = {"": passes.policy}
    if rule.kl or rule.entropy:
        of_terms = {" of the policy": passes.policy, "": passes.by}
    for (term, made_of), (what, chosen) in itertools.product(of_terms.items(), _some_tokens(passes.each)):
        parts = made_of(rule, np.concatenate(chosen))
        factor = fit_factor(parts, left)
        if not abs(factor) > 1e-3:
            continue
        times = "are left out" if abs(factor + 1) < 1e-3 else f"count {1 + factor:.4g} times"
        text = f"from log probs and rewards: {label}'s loss{term} is as the other side's, but {what} {times}"
        facts = {"side": label, "tokens": what, "factor": 1 + factor}
        shown = Recomputed(numbers - left, numbers, numbers - left + factor * parts, _names(label))
        rest = left - factor * parts
        residual = largest(rest)
        fits = residual <= passes.noise
        share = 1.0 if fits else max(0.0, 1 - float(np.linalg.norm(rest) / np.linalg.norm(left)))
        yield Explanation("loss-of-some-tokens", text, residual, passes.noise, facts, share, recomputed=shown)


def _fixed_denominator(label: str, passes: LossPasses, rule: LossRule, left: np.ndarray) -> Iterator[Explanation]:
    """The token sum divided by one number in all passes, however many tokens they have."""
    numbers, sums = passes.numbers, passes.by(rule._replace(reduction=SUM))
    factor = fit_factor(sums, numbers)
    if factor > 0 and passes.differ_in_size and rule.reduction != SUM:
        of = FixedDivisor(float(f"{1 / factor:.6g}"))
        text = f"from log probs and rewards: {label}'s loss is {of}, the other side's is {rule.reduction}"
        facts = {"side": label, "denominator": 1 / factor}
        yield applied("aggregation", text, numbers - left, numbers, factor * sums, passes.noise, facts)


def _times_a_factor(label: str, passes: LossPasses, rule: LossRule, left: np.ndarray) -> Iterator[Explanation]:
    """The other side's rule times one number in all passes."""
    numbers, made = passes.numbers, passes.numbers - left
    factor = fit_factor(made, numbers)
    if abs(factor) > 1e-6:
        text = f"from log probs and rewards: {label}'s loss is the other side's times {factor:.6g}"
        facts = {"side": label, "factor": factor}
        yield applied("loss-scaled", text, made, numbers, factor * made, passes.noise, facts)


def _other_clip(label: str, passes: LossPasses, rule: LossRule, left: np.ndarray) -> Iterator[Explanation]:
    """One end of the other side's clip at a bound of its own, whatever number that is."""
    # One number fits one pass, whatever it is: several must ask for the same.
    if rule.form not in RATIOS or np.count_nonzero(np.abs(left) > MARGIN * passes.noise) < _FEWEST:
        return
    farthest = largest(RATIOS[rule.form](passes.tokens) - 1)
    for end, words in ((0, "at least"), (1, "at most")):

        def clipped(width: float, end: int = end) -> np.ndarray:
            low, high = rule.clip
            return passes.by(rule._replace(clip=(width, high) if end == 0 else (low, width)))

        width = _best(lambda width, made=clipped: largest(passes.numbers - made(width)), 0.0, farthest)  # type: ignore[misc]
        gap, usual = largest(passes.numbers - clipped(width)), rule.clip[end]
        if gap <= passes.noise and 0 < width < farthest:
            bound, other = (1 - width if end == 0 else 1 + width), "nothing"
            if usual is not None:
                other = f"{words} {1 - usual if end == 0 else 1 + usual:g}"
            text = f"from log probs and rewards: the ratio is clipped to {words} {bound:.4g} in {label}"
            facts = {"side": label, "bound": bound}
            shown = Recomputed(passes.numbers - left, passes.numbers, clipped(width), _names(label))
            text += f" and to {other} on the other side"
            # Where either end alone would do, neither is known.
            yield Explanation("clip", text, gap, passes.noise, facts, together=f"clip {words}", recomputed=shown)


def _always_clipped(label: str, passes: LossPasses, rule: LossRule, left: np.ndarray) -> Iterator[Explanation]:
    """The clipped ratio for every token, not the more pessimistic one of clipped and unclipped."""
    low, high = rule.clip
    if rule.form not in RATIOS or (low is None and high is None):
        return
    tokens = passes.tokens
    bounded = RATIOS[rule.form](tokens).clip(0.0 if low is None else 1 - low, np.inf if high is None else 1 + high)
    policy = passes.reduced(-bounded * tokens.advantages[rule.advantages], rule.reduction)
    made = passes.by(rule) - passes.policy(rule) + policy
    gap = largest(passes.numbers - made)
    # Several passes must tell it from the other side's rule.
    if gap <= passes.noise and np.count_nonzero(np.abs(left) > MARGIN * passes.noise) >= _FEWEST:
        text = (
            f"from log probs and rewards: {label} takes the clipped ratio for every token, the other side the one that "
            "makes the loss larger, clipped or not"
        )
        shown = Recomputed(passes.numbers - left, passes.numbers, made, _names(label))
        yield Explanation("loss-form", text, gap, passes.noise, {"side": label}, recomputed=shown)


def _best(error: Callable[[float], float], low: float, high: float) -> float:
    """The number between two others at which an error is smallest, refined around the best of a few."""
    for _ in range(_REFINEMENTS):
        tried = np.linspace(low, high, 12)
        place = int(np.argmin([error(float(value)) for value in tried]))
        low, high = float(tried[max(place - 1, 0)]), float(tried[min(place + 1, 11)])
    return (low + high) / 2


def _names(label: str) -> tuple[str, str]:
    return f"{label}'s loss by the other side's rule", f"{label}'s loss"


def other_advantages(label: str, passes: list[LossPass], rule: LossRule) -> Iterator[Explanation]:
    """Losses by the other side's rule, but of advantages by another one, with or without its further terms."""
    if len(passes) < _FEWEST:
        return
    everything = LossPasses(passes)
    if rule.advantages not in everything.tokens.advantages:
        return
    # One rule of each function of rewards: those that give the same losses are rivals.
    found: dict[str, Explanation] = {}
    for lost in ((), *((term,) for term in ("kl", "entropy") if getattr(rule, term))):
        kept = rule._replace(kl=0.0 if "kl" in lost else rule.kl, entropy=0.0 if "entropy" in lost else rule.entropy)
        # What the other side's loss has beside its advantages.
        rest = everything.numbers - everything.by(kept) + everything.policy(kept)
        for name in everything.tokens.advantages:
            gap = largest(rest - everything.policy(rule._replace(advantages=name)))
            if gap <= everything.noise and name != rule.advantages:
                text = (
                    f"from log probs and rewards: {label}'s advantages are rewards normalised by {name}, "
                    f"the other side's by {rule.advantages}"
                )
                text += "".join(f"; {label}'s loss has no {term} term" for term in lost)
                facts = {"side": label, "rule": name, "other": rule.advantages}
                found.setdefault(
                    shape_of(name),
                    Explanation("advantage-normalisation", text, gap, everything.noise, facts, together=shape_of(name)),
                )
        if found:
            yield from found.values()
            return


def _other_kl(label: str, passes: LossPasses, rule: LossRule, left: np.ndarray) -> Iterator[Explanation]:
    """The KL term by another formula, with the other side's weight or one of its own."""
    own, noise = passes.term("kl", rule.reduction), passes.noise
    gaps = [item.above_reference for item in passes.each if item.above_reference is not None]
    if not rule.kl or own is None or len(gaps) < len(passes.each):
        return
    whole = left + rule.kl * own

    def fitted(terms: np.ndarray) -> tuple[float, bool]:
        weight = fit_factor(terms, whole)
        gap = largest(whole - weight * terms)
        return gap, gap <= noise < MARGIN * noise < largest(left) and abs(weight - rule.kl) <= 1e-3 * abs(rule.kl)

    for against, above in (("", np.concatenate(gaps)), (" against the old policy", np.log(passes.tokens.ratio))):
        for name, formula in KL_FORMULAS.items():
            gap, fits = fitted(passes.reduced(formula(above), rule.reduction))
            if fits:
                text = f"from log probs and rewards: {label}'s KL term is {name}{against}, the other side's is not"
                yield Explanation("kl-estimator", text, gap, noise, {"side": label, "formula": name + against})
    for reduction in REDUCTIONS:
        column = passes.term("kl", reduction)
        gap, fits = fitted(column) if column is not None else (np.inf, False)
        if fits and reduction != rule.reduction:
            text = f"from log probs and rewards: {label}'s KL term is {reduction}, the other side's is {rule.reduction}"
            yield Explanation("kl-aggregation", text, gap, noise, {"side": label, "reduction": reduction})


def _other_weights(label: str, passes: LossPasses, rule: LossRule, left: np.ndarray) -> Iterator[Explanation]:
    """One factor per token towards the end of a sample: a discount."""
    starts, lengths, noise = passes.tokens.starts, passes.tokens.lengths, passes.noise
    to_end = np.repeat(starts + lengths - 1, lengths) - np.arange(lengths.sum())

    def error(gamma: float) -> float:
        return largest(left - passes.policy(rule, gamma**to_end - 1))

    gamma = _best(error, 0.5, 1.0)
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
    if any(item.turn.max() > 1 for item in passes):
        yield "first tokens of samples", [(item.place == 0) & (item.turn == 1) for item in passes]
        yield "last tokens of samples", [(item.to_end == 0) & item.is_last for item in passes]
    ranks = sorted({item.rank for item in passes})
    for rank in ranks if len(ranks) > 1 else ():
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
