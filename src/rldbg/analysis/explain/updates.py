"""Hypotheses about gradients and parameters: scaling, reduction, replicas, the optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from rldbg.analysis.explain.evidence import (
    Evidence,
    Explanation,
    Recomputed,
    applied,
    fit_factor,
    largest,
    round_to,
    small,
)
from rldbg.analysis.explain.passes import SideStep

Tensors = Mapping[tuple[str, int], np.ndarray]


def _flat(tensors: Tensors, keys: list[tuple[str, int]]) -> np.ndarray:
    return np.concatenate([tensors[key].ravel() for key in keys]) if keys else np.empty(0)


def _shared(a: Tensors, b: Tensors) -> list[tuple[str, int]]:
    return [key for key in a if key in b and a[key].shape == b[key].shape]


def _apart(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape != other.shape or not small(one - other, 1e-4 * largest(one))


def not_reduced(evidence: Evidence) -> Iterator[Explanation]:
    """The ranks of one side have different gradients, which add up to the other side's."""
    gradients = [side.tensors("gradient", evidence.update) for _, side in evidence.sides]
    for label, right, wrong in evidence.directions:
        whole, parts = gradients[right], gradients[wrong]
        ranks = sorted({rank for _, rank in parts})
        names = sorted({name for name, _ in parts})
        if len(ranks) < 2 or not all((name, rank) in parts for name in names for rank in ranks):
            continue
        # Some tensors may be reduced, and others not.
        odd = [name for name in names if any(_apart(parts[name, ranks[0]], parts[name, rank]) for rank in ranks[1:])]
        if not odd or any(
            (name, 0) not in whole or _apart(parts[name, 0], whole[name, 0]) for name in set(names) - {*odd}
        ):
            continue
        some = "" if len(odd) == len(names) else f" of {', '.join(odd[:3])}"
        names = odd
        first, *others = (_flat(parts, [(name, rank) for name in names]) for rank in ranks)
        total = _flat(whole, [(name, 0) for name in names if (name, 0) in whole])
        summed = first + sum(others)
        for how, made in (("sum", summed), ("mean", summed / len(ranks))):
            if made.shape == total.shape and small(made - total, 1e-4 * largest(total)):
                text = f"{label}'s ranks have different gradients{some}; their {how} is the other side's: not reduced"
                facts = {"side": label, "how": how}
                shown = Recomputed(first, total, made, (f"rank {ranks[0]} of {label}", "the other side"))
                residual, noise = largest(made - total), 1e-4 * largest(total)
                yield Explanation("gradient-not-reduced", text, residual, noise, facts, recomputed=shown)


def carried_over(evidence: Evidence) -> Iterator[Explanation]:
    """One side's gradient is the other's plus a multiple of the previous one."""
    now = [side.tensors("gradient", evidence.update) for _, side in evidence.sides]
    keys = [key for key in _shared(*now) if key[1] == 0]
    for label, right, wrong in evidence.directions:
        side = (evidence.a, evidence.b)[wrong]
        places = side.updates("gradient")
        here = places.index((evidence.step, evidence.update)) if (evidence.step, evidence.update) in places else 0
        if here == 0 or not keys:
            continue
        before = side.tensors_of("gradient", places[here - 1])
        if not all(name in before for name, _ in keys):
            continue
        given, recorded = _flat(now[right], keys), _flat(now[wrong], keys)
        gap = recorded - given
        last = np.concatenate([before[name].ravel() for name, _ in keys])
        factor = fit_factor(last, gap)
        if factor > 1e-3:
            text = f"{label}'s gradient still contains {factor:.4g} times the previous one: it was not cleared"
            facts = {"side": label, "factor": factor}
            made = given + factor * last
            yield applied("gradient-carried-over", text, given, recorded, made, 2e-3 * largest(gap), facts)


def scaled(evidence: Evidence) -> Iterator[Explanation]:
    """Every gradient is the other side's times one number."""
    a, b = (side.tensors("gradient", evidence.update) for _, side in evidence.sides)
    keys = _shared(a, b)
    one, other = _flat(a, keys), _flat(b, keys)
    if one.size == 0 or largest(one) == 0 or not np.isfinite(one).all() or not np.isfinite(other).all():
        return
    if largest(other) == 0:
        made = Recomputed(one, other, np.zeros_like(one))
        yield Explanation("gradient-zero", "B's gradients are all 0", parameters={"side": "B"}, recomputed=made)
        return
    factor = fit_factor(one, other)
    if abs(factor - 1) > 1e-3:
        text = f"B's gradients are A's times {factor:.6g}"
        facts = {"factor": factor}
        yield applied("gradient-scaled", text, one, other, factor * one, 1e-3 * largest(other), facts)


def clipped(evidence: Evidence) -> Iterator[Explanation]:
    """Every element of one side's gradients is clipped at one bound."""
    a, b = (side.tensors("gradient", evidence.update) for _, side in evidence.sides)
    keys = _shared(a, b)
    for label, full, cut in (("B", _flat(a, keys), _flat(b, keys)), ("A", _flat(b, keys), _flat(a, keys))):
        bound = largest(cut)
        # Several elements must be at a bound for it to be one.
        if cut.size and 0 < bound < np.inf and np.count_nonzero(np.abs(cut) >= bound * (1 - 1e-6)) > 2:
            text = f"each element of {label}'s gradients is clipped to {bound:.6g}"
            facts = {"side": label, "bound": bound}
            yield applied("gradient-clipped", text, full, cut, np.clip(full, -bound, bound), 1e-3 * bound, facts)


def scaled_by_tensor(evidence: Evidence) -> Iterator[Explanation]:
    """Every tensor's gradient is the other side's times its own factor."""
    a, b = (side.tensors("gradient", evidence.update) for _, side in evidence.sides)
    keys = [key for key in _shared(a, b) if key[1] == 0 and a[key].size > 3 and largest(a[key]) > 0]
    factors = {key: fit_factor(a[key].ravel(), b[key].ravel()) for key in keys}
    if len(keys) < 2 or max(factors.values()) - min(factors.values()) < 1e-3:
        return
    left = {key: largest(b[key] - factor * a[key]) / max(largest(b[key]), 1e-30) for key, factor in factors.items()}
    ordered = sorted(factors, key=lambda key: factors[key])
    low, high = factors[ordered[0]], factors[ordered[-1]]
    text = f"each tensor of B's gradients is A's times its own factor, from {low:.4g} to {high:.4g}"
    odd = [key for key in keys if abs(factors[key] - 1) > 1e-3]
    if len(odd) == 1:
        text = f"B's gradient of {odd[0][0]} is A's times {factors[odd[0]]:.4g}; all others are equal"
    norms = [float(np.linalg.norm(b[key])) for key in odd]
    # One tensor has one norm, whatever scaled it.
    if len(norms) > 1 and max(norms) > 0 and max(norms) - min(norms) <= 1e-3 * max(norms):
        text += f": clipped to a norm of {max(norms):.4g} tensor by tensor"
    share = sum(value <= 1e-3 for value in left.values()) / len(left)
    facts = {"lowest": low, "highest": high}
    parts = np.concatenate([factors[key] * a[key].ravel() for key in keys])
    made = Recomputed(_flat(a, keys), _flat(b, keys), parts)
    yield Explanation("gradient-scaled-by-tensor", text, max(left.values()), 1e-3, facts, share, recomputed=made)


def of_some_tensors(evidence: Evidence) -> Iterator[Explanation]:
    """The gradients of some tensors differ, and those of all others agree: the fault lies in how these are made."""
    a, b = (side.tensors("gradient", evidence.update) for _, side in evidence.sides)
    keys = _shared(a, b)
    odd = sorted({name for name, rank in keys if _apart(a[name, rank], b[name, rank])})
    rest = {name for name, _ in keys} - {*odd}
    if odd and len(odd) <= len(rest):
        some = ", ".join(odd[:4]) + (f" and {len(odd) - 4} more" if len(odd) > 4 else "")
        text = (
            f"only the gradients of {some} differ, those of {len(rest)} others agree: losses are the same, and these "
            "are reduced, scaled or cut in another way"
        )
        yield Explanation("some-gradients", text, parameters={"names": odd}, share=0.5)


def tensors_without(evidence: Evidence) -> Iterator[Explanation]:
    """The whole gradient of some tensors is 0 on one side, and everything else is equal."""
    gradients = [side.tensors("gradient", evidence.update) for _, side in evidence.sides]
    keys = _shared(*gradients)
    for label, right, wrong in evidence.directions:
        lost = [key for key in keys if gradients[right][key].any() and not gradients[wrong][key].any()]
        if lost and len(lost) < len(keys):
            made = {key: np.zeros_like(value) if key in lost else value for key, value in gradients[right].items()}
            given, recorded, expected = (_flat(part, keys) for part in (gradients[right], gradients[wrong], made))
            named = list(dict.fromkeys(name for name, _ in lost))
            some = ", ".join(named[:3]) + (f" and {len(named) - 3} more" if len(named) > 3 else "")
            text = f"{label}'s gradient of {some} is 0, and all others are equal: nothing flows back to them"
            facts = {"side": label, "names": named}
            yield applied("gradient-cut", text, given, recorded, expected, 1e-3 * largest(recorded), facts)


def rows_without(evidence: Evidence) -> Iterator[Explanation]:
    """Some rows of a tensor's gradient are 0 on one side, and everything else is equal."""
    gradients = [side.tensors("gradient", evidence.update) for _, side in evidence.sides]
    keys = [key for key in _shared(*gradients) if key[1] == 0]
    for label, right, wrong in evidence.directions:
        lost: dict[str, list[int]] = {}
        made = {}
        for name, rank in keys:
            given, recorded = gradients[right][name, rank], gradients[wrong][name, rank]
            made[name, rank] = given
            if given.ndim > 1:
                axes = tuple(range(1, given.ndim))
                rows = np.flatnonzero(given.any(axes) & ~recorded.any(axes))
                if 0 < len(rows) < np.count_nonzero(given.any(axes)):
                    lost[name] = rows.tolist()
                    made[name, rank] = np.where(np.isin(np.arange(len(given)), rows).reshape(-1, *axes), 0, given)
        if lost:
            given, recorded, expected = (_flat(part, keys) for part in (gradients[right], gradients[wrong], made))
            some = "; ".join(f"{name}, rows {', '.join(map(str, rows[:6]))}" for name, rows in list(lost.items())[:3])
            text = f"{label}'s gradient is 0 in some rows and equal elsewhere: {some}. They are not trained"
            facts = {"side": label, "rows": lost}
            noise = 1e-3 * largest(recorded)
            yield applied("gradient-rows-zero", text, given, recorded, expected, noise, facts)


def centred(evidence: Evidence) -> Iterator[Explanation]:
    """The mean of every row, or of every column, of a matrix's gradient is taken off on one side."""
    gradients = [side.tensors("gradient", evidence.update) for _, side in evidence.sides]
    keys = [key for key in _shared(*gradients) if key[1] == 0]
    for label, right, wrong in evidence.directions:
        given, recorded = _flat(gradients[right], keys), _flat(gradients[wrong], keys)
        for what, axis in (("row", 1), ("column", 0)):
            parts = {key: gradients[right][key] for key in keys}
            made = {
                key: value - value.mean(axis, keepdims=True) if value.ndim == 2 else value
                for key, value in parts.items()
            }
            if keys and largest(_flat(made, keys) - given) > 1e-3 * largest(given):
                text = f"{label}'s gradients of matrices are the other side's without the mean of each {what}"
                facts = {"side": label, "of": what}
                noise = 1e-3 * largest(recorded)
                yield applied("gradient-centred", text, given, recorded, _flat(made, keys), noise, facts)


def _rounding(kind: str) -> Callable[[Evidence], Iterator[Explanation]]:
    """One side's tensors have fewer bits than the other's."""

    def hypothesis(evidence: Evidence) -> Iterator[Explanation]:
        tensors = []
        for _, side in evidence.sides:
            places = side.updates(kind)
            found = side.tensors_of(kind, places[-1]) if places else {}
            tensors.append(np.concatenate([value.ravel() for value in found.values()]) if found else np.empty(0))
        for label, fine, coarse in (("B", tensors[0], tensors[1]), ("A", tensors[1], tensors[0])):
            for dtype, bits in (("bfloat16", 8), ("float16", 11)):
                if (
                    coarse.any()
                    and np.isfinite(coarse).all()
                    and fine.size
                    and np.array_equal(coarse, round_to(coarse, bits))
                    and not np.array_equal(fine, round_to(fine, bits))
                ):
                    what = "parameters" if kind == "param" else "gradients"
                    text = f"{label}'s {what} are {dtype}, the other side's are not"
                    made = Recomputed(fine, coarse, round_to(fine, bits)) if fine.shape == coarse.shape else None
                    yield Explanation("precision", text, parameters={"side": label, "dtype": dtype}, recomputed=made)
                    break

    return hypothesis


def missing(evidence: Evidence) -> Iterator[Explanation]:
    """Parameters without a gradient on one side."""
    names = [{name for name, _ in side.tensors("gradient", evidence.update)} for _, side in evidence.sides]
    for label, right, wrong in evidence.directions:
        lost = sorted(names[right] - names[wrong])
        if lost and names[wrong]:
            text = f"{label} has no gradient of {len(lost)} parameters, for example {lost[0]}"
            yield Explanation("parameters-frozen", text, parameters={"side": label, "names": lost[:8]})


def drifted_replica(evidence: Evidence) -> Iterator[Explanation]:
    """Within one side the replicas disagree, and within the other they do not."""
    odd = [_odd_ranks(side.tensors("param", evidence.update)) for _, side in evidence.sides]
    for (label, _), mine, other in zip(evidence.sides, odd, reversed(odd), strict=True):
        if mine and not other:
            text = (
                f"in {label}, the parameters of rank {', '.join(map(str, mine))} differ from those of the other ranks"
            )
            yield Explanation("replica-drift", text, parameters={"side": label, "ranks": mine})


def _odd_ranks(tensors: Tensors) -> list[int]:
    by_name: dict[str, dict[int, bytes]] = {}
    for (name, rank), value in tensors.items():
        by_name.setdefault(name, {})[rank] = value.tobytes()
    odd: set[int] = set()
    for values in by_name.values():
        if len(set(values.values())) > 1:
            common = max(values.values(), key=list(values.values()).count)
            odd |= {rank for rank, value in values.items() if value != common}
    return sorted(odd)


def frozen(evidence: Evidence) -> Iterator[Explanation]:
    """Parameters that never change on one side and do on the other."""
    still = [_still(side) for _, side in evidence.sides]
    for (label, _), mine, other in zip(evidence.sides, still, reversed(still), strict=True):
        if mine is None or other is None:
            continue
        stuck = sorted(mine[0] - other[0])
        if stuck and other[1]:
            whole = "all" if len(stuck) == len(mine[0] | mine[1]) else f"{len(stuck)} of {len(mine[0] | mine[1])}"
            text = f"in {label}, {whole} parameters never change, for example {stuck[0]}"
            yield Explanation("parameters-frozen", text, parameters={"side": label, "names": stuck[:8]})


def _still(side: SideStep) -> tuple[set[str], set[str]] | None:
    """The names of parameters that do not change in the whole recording, and of the others."""
    side = SideStep(side.side, max(side.side.steps("param"), default=side.step))
    places = side.updates("param")
    if len(places) < 2:
        return None
    first, last = side.tensors_of("param", places[0]), side.tensors_of("param", places[-1])
    stuck = {name for name, value in first.items() if name in last and np.array_equal(value, last[name])}
    return stuck, set(first) - stuck


def skipped(evidence: Evidence) -> Iterator[Explanation]:
    """An optimizer step that changed nothing on one side."""
    moves, states = [], []
    for _, side in evidence.sides:
        places = side.updates("param")
        here = places.index((evidence.step, evidence.update)) if (evidence.step, evidence.update) in places else 0
        if here == 0:
            return
        before, after = side.tensors_of("param", places[here - 1]), side.tensors_of("param", places[here])
        moves.append(any(not np.array_equal(value, before[name]) for name, value in after.items() if name in before))
        states.append([np.concatenate([held[name].ravel() for name in sorted(held)]) for held in (before, after)])
    for label, right, wrong in evidence.directions:
        if not moves[wrong] and moves[right]:
            text = f"{label}'s optimizer step changed no parameter"
            (held, now), other = states[wrong], states[right][1]
            made = Recomputed(other, now, held) if len(other) == len(now) == len(held) else None
            yield Explanation("update-skipped", text, parameters={"side": label}, recomputed=made)


def per_pass(evidence: Evidence) -> Iterator[Explanation]:
    """The optimizer steps more than once on the same gradients, on one side."""
    a, b = (side.side.updates_per_pass for side in evidence.both)
    if a != b:
        text = f"the optimizer takes {a} step(s) per backward pass in A and {b} in B"
        yield Explanation("updates-per-pass", text, parameters={"a": a, "b": b})


HYPOTHESES = {
    "trajectory": (_rounding("param"),),
    "gradient": (
        *(not_reduced, carried_over, scaled, clipped, scaled_by_tensor),
        *(of_some_tensors, missing, tensors_without, rows_without, centred, _rounding("gradient")),
    ),
    "parameter": (per_pass, _rounding("param"), drifted_replica, skipped, frozen),
}
