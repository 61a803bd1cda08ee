"""Hypotheses about the loss. What each side does is inferred from its own numbers, in all passes of the step; then the
two are compared. So a rule is found even where both sides give the same number, as the KL term of a first pass does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from rldbg.analysis.explain.aggregation import by_rule, mask_of, rules_of
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
from rldbg.analysis.explain.subsets import turn_of

_NOISE = 2e-6
_SAME_SHAPE = 0.02


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


def coefficients(evidence: Evidence) -> Iterator[Explanation]:
    """The loss weights its terms differently."""
    in_a, in_b = _weights(evidence.a), _weights(evidence.b)
    if in_a is None or in_b is None:
        return
    for name, title, sign in (("entropy_loss", "entropy-coefficient", -1.0), ("kl_loss", "kl-coefficient", 1.0)):
        a, b = (
            weights.get(name, None if _has(side, name) else 0.0)
            for (weights, _), side in ((in_a, evidence.a), (in_b, evidence.b))
        )
        residual = max(in_a[1], in_b[1])
        if a is None or b is None or abs(a - b) <= 1e-3 * max(abs(a), abs(b), 1e-3):
            continue
        # What the two weights make of the term must be more than what they leave unexplained.
        term = max(abs(item.number("loss", name) or 0.0) for _, side in evidence.sides for item in side.micros)
        if abs(a - b) * term > max(residual, _noise(evidence)):
            word = title.replace("-", " ").replace("kl", "KL")
            text = (
                f"the {word} is {_plain(sign * a)} in A and {_plain(sign * b)} in B; "
                f"with these values the recorded terms reproduce both losses to within {residual:.1e}"
            )
            facts, made = {"a": sign * a, "b": sign * b}, _weighted(evidence, in_b[0])
            yield Explanation(title, text, residual, _noise(evidence), facts, recomputed=made)


def _has(side: SideStep, name: str) -> bool:
    return any(item.number("loss", name) is not None for item in side.micros)


def _weighted(evidence: Evidence, weights: dict[str, float]) -> Recomputed | None:
    """A's loss terms with B's weights, beside both sides' losses, pass by pass."""
    others = {(item.update, item.rank, item.micro): item.number("loss", "loss") for item in evidence.b.micros}
    rows = []
    for item in evidence.a.micros:
        number = item.number("loss", "pg_loss")
        terms = sum(weight * (item.number("loss", name) or 0.0) for name, weight in weights.items())
        made = None if number is None else number + terms
        rows.append((item.number("loss", "loss"), others.get((item.update, item.rank, item.micro)), made))
    return Recomputed.of_rows(rows)


def _plain(value: float) -> str:
    return f"{0.0 if abs(value) < 1e-7 else value:.6g}"


def _noise(evidence: Evidence) -> float:
    losses = [abs(item.number("loss", "loss") or 0.0) for _, side in evidence.sides for item in side.micros]
    return _NOISE * max([1.0, *losses])


def _weights(side: SideStep) -> tuple[dict[str, float], float] | None:
    """The weight of each term in the loss, when one set of weights fits all passes, and the residual."""
    rows = []
    for item in side.micros:
        parts = [item.number("loss", name) for name in ("loss", "pg_loss", "entropy_loss", "kl_loss")]
        rows.append([0.0 if part is None else part for part in parts])
        if parts[0] is None or parts[1] is None:
            return None
    table = np.asarray(rows, dtype=np.float64).reshape(-1, 4)
    names = [name for name, column in (("entropy_loss", 2), ("kl_loss", 3)) if largest(table[:, column]) > 1e-6]
    if len(table) <= len(names) or not np.isfinite(table).all():
        return None
    columns = table[:, [{"entropy_loss": 2, "kl_loss": 3}[name] for name in names]]
    rest = table[:, 0] - table[:, 1]
    weights = np.linalg.lstsq(columns, rest, rcond=None)[0] if names else np.zeros(0)
    left = largest(rest - columns @ weights)
    if left > _NOISE * max(1.0, largest(table[:, 0])):
        return None
    return dict(zip(names, map(float, weights), strict=True)), left


def clipping(evidence: Evidence) -> Iterator[Explanation]:
    """The bounds at which each side's clip determined the loss of tokens: of all, or of those of some turns."""
    first, later = (list(_clipping(evidence, keep)) for keep in (_first_turn, _later_turns))
    masks = [mask_of(item) for _, side in evidence.sides for item in side.micros]
    has_turns = any(_later_turns(mask).any() for mask in masks if mask is not None)
    if has_turns and len(first) + len(later) == 1:
        (item,) = first or later
        where = "in the first turn" if first else "after the first turn"
        yield replace(item, explains=f"{item.explains}, {where} only", parameters={**item.parameters, "where": where})
    else:
        yield from _clipping(evidence, lambda mask: mask)


def _first_turn(mask: np.ndarray) -> np.ndarray:
    return np.asarray([turn_of(row) == 1 for row in mask])


def _later_turns(mask: np.ndarray) -> np.ndarray:
    return np.asarray([turn_of(row) > 1 for row in mask])


def _clipping(evidence: Evidence, keep: Callable[[np.ndarray], np.ndarray]) -> Iterator[Explanation]:
    sides = [_Clip.read(side, keep) for _, side in evidence.sides]
    if sides[0] is None or sides[1] is None:
        return
    apart = []
    for name in ("high", "low", "dual", "floor"):
        a, b = sides[0].bound(name), sides[1].bound(name)
        if a is not None and b is not None and abs(a - b) > 2e-3:
            apart.append(f"{_CLIP_TEXT[name]} {a:.4g} in A and {b:.4g} in B")
        elif a is not None and b is None and sides[1].free_beyond(name, a):
            apart.append(f"{_CLIP_TEXT[name]} {a:.4g} in A and not at all in B")
        elif b is not None and a is None and sides[0].free_beyond(name, b):
            apart.append(f"{_CLIP_TEXT[name]} {b:.4g} in B and not at all in A")
    if apart:
        facts = {
            label: {name: side.bound(name) for name in _CLIP_TEXT}
            for label, side in zip("ab", sides, strict=True)
            if side is not None
        }
        text, made = f"the ratio is clipped differently: {'; '.join(apart)}", sides[0].clipped_as(sides[1])
        yield Explanation("clip", text, 0.0, 2e-3, facts, recomputed=made)


_CLIP_TEXT = {
    "high": "for positive advantages from above at",
    "floor": "for positive advantages from below at",
    "low": "for negative advantages from below at",
    "dual": "for negative advantages from above at",
}


class _Clip:
    """The ratio each token had, and the one its loss was computed with (loss = -used * advantage)."""

    def __init__(self, ratio: np.ndarray, used: np.ndarray, positive: np.ndarray) -> None:
        above, below = ratio > used + 1e-4 * ratio, ratio < used - 1e-4 * used
        self._ratio, self._used = ratio, used
        self._chosen = {
            "high": positive & above,
            "floor": positive & below,
            "low": ~positive & below,
            "dual": ~positive & above,
        }
        self._free = {"high": positive, "floor": positive, "low": ~positive, "dual": ~positive}
        self._untouched = ~above & ~below

    @classmethod
    def read(cls, side: SideStep, keep: Callable[[np.ndarray], np.ndarray]) -> _Clip | None:
        parts: list[list[np.ndarray]] = [[], [], []]
        for item in side.micros:
            names = ("prob_ratio", "elementwise_loss", "advantages")
            ratio, loss, advantage = (item.array("is_loss_debug", name) for name in names)
            mask = mask_of(item)
            if ratio is None or loss is None or advantage is None or mask is None:
                continue
            counts = keep(mask) & (np.abs(advantage) > 1e-6)
            for part, values in zip(parts, (ratio, -loss / np.where(counts, advantage, 1), advantage > 0), strict=True):
                part.append(values[counts])
        if not parts[0]:
            return None
        ratio, used, positive = (np.concatenate(part) for part in parts)
        return cls(ratio, used, positive)

    def bound(self, name: str) -> float | None:
        """The single value the clip used; None when it never applied, or applied at several values."""
        values = self._used[self._chosen[name]]
        # A loss that uses a ratio of 1 for every token shows no clip.
        if not (self._untouched & (np.abs(self._ratio - 1) > 1e-3)).any():
            return None
        if values.size == 0 or float(values.max() - values.min()) > 1e-3 * float(values.max()):
            return None
        return float(np.median(values))

    def clipped_as(self, other: _Clip) -> Recomputed | None:
        """The ratio that this side's losses would use with the other's bounds; None where the tokens are others."""
        if len(self._ratio) != len(other._ratio) or not np.array_equal(self._free["high"], other._free["high"]):
            return None
        made = self._ratio.copy()
        for name, limit in (("high", np.minimum), ("dual", np.minimum), ("floor", np.maximum), ("low", np.maximum)):
            bound = other.bound(name)
            if bound is not None:
                made = np.where(self._free[name], limit(made, bound), made)
        return Recomputed(self._used, other._used, made)

    def free_beyond(self, name: str, bound: float) -> bool:
        """Whether a token passed a bound of the other side unclipped."""
        beyond = self._ratio > bound * 1.001 if name in ("high", "dual") else self._ratio < bound * 0.999
        return bool((self._free[name] & self._untouched & beyond).any())


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
    """The product that most tokens' losses are; clipped tokens are the exception to the first one."""
    found = _products(side)
    if found is None:
        return None
    loss, products = found
    told = np.abs(products["-advantage"]) > 1e-6
    for name, value in products.items():
        if told.any() and (np.abs(loss - value) <= 1e-4 * np.maximum(1.0, np.abs(value)))[told].mean() > 0.5:
            return name
    return None


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
        "-probability * advantage": -np.exp(log_prob) * advantage,
        "-advantage": -advantage,
    }


def one_term(evidence: Evidence) -> Iterator[Explanation]:
    """Of the recorded terms of the loss one differs, and the others agree: the fault lies in it."""
    terms = ("pg_loss", "entropy_loss", "kl_loss")
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
    a, b = _first_losses(evidence)
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


def _first_losses(evidence: Evidence) -> tuple[np.ndarray, np.ndarray]:
    """The losses of both sides at this optimizer step, pass by pass."""
    numbers = [
        {(item.rank, item.micro): item.number("loss", "loss") for item in side.in_update(evidence.update)}
        for _, side in evidence.sides
    ]
    shared = [key for key, value in numbers[0].items() if value is not None and numbers[1].get(key) is not None]
    a, b = (np.asarray([side[key] for key in shared], dtype=np.float64) for side in numbers)
    return a, b


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
        # A rule may leave single micro-batches as they are by accident: all of them together come first.
        whole = [] if odd is not None and odd[0] == "rank" else list(hypothesis(evidence))
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
    numbers = [
        {(item.rank, item.micro): item.number("loss", "loss") for item in side.in_update(evidence.update)}
        for _, side in evidence.sides
    ]
    known = {key for key, value in numbers[0].items() if value is not None}
    if not known or any(numbers[1].get(key) is None for key in known) or len(numbers[1]) != len(known):
        return None
    noise = 10 * _noise(evidence)
    odd = {key for key in known if not abs(numbers[0][key] - numbers[1][key]) <= noise}  # type: ignore[operator]
    for place, what in enumerate(("rank", "micro-batch")):
        values = {key[place] for key in odd}
        if values and values < {key[place] for key in known}:
            return what, values
    return None


# What each side does, told by its own numbers.
RULES = (
    *map(where_odd, (surrogate, clipping, coefficients)),
    *(aggregation, kl_estimator, entropy_aggregation, kl_aggregation),
)
HYPOTHESES = {"ratio": (clipping,), "loss": (*RULES, scaled, one_term), "gradient": RULES}
