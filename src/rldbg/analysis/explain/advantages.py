"""Hypotheses about advantages: by which rule they follow from rewards, and how they were changed afterwards."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator

import numpy as np

from rldbg.analysis.explain.advantage_rules import (
    SLACK,
    Scored,
    advantages_by,
    rules_of,
    shape_of,
)
from rldbg.analysis.explain.evidence import (
    Evidence,
    Explanation,
    Recomputed,
    SamplePair,
    applied,
    either,
    fit_factor,
    largest,
    small,
)
from rldbg.analysis.explain.other_groups import over_other_groups
from rldbg.analysis.explain.passes import SideStep
from rldbg.analysis.explain.permuted import permutation
from rldbg.analysis.explain.subsets import turn_of
from rldbg.analysis.explain.wherever import wherever

_NOISE = 1e-5
_OTHER_STEPS = 2


def normalisation(evidence: Evidence) -> Iterator[Explanation]:
    """Each side's advantages follow from its rewards, but by different rules."""
    rules = [rules_of(side) for _, side in evidence.sides]
    # No normalisation turns the sign of all of them.
    is_turned = any(item.fits and item.parameters["factor"] < 0 for item in scaled(evidence))
    if rules[0] and rules[1] and not set(rules[0]) & set(rules[1]) and not is_turned:
        rules = [_of_other_steps(side, found) for found, (_, side) in zip(rules, evidence.sides, strict=True)]
        # Several functions of rewards that give the same here are rivals; several bounds of one are not.
        for a, b in itertools.product(*map(_by_shape, rules)):
            text = f"A's advantages are rewards normalised by {either(a)}, B's by {either(b)}"
            facts, made = {"a": a[0], "b": b[0]}, _by_rule(evidence, b[0])
            word = " ".join(filter(None, (shape_of(a[0]), shape_of(b[0]))))
            yield Explanation("advantage-normalisation", text, 0.0, SLACK, facts, together=word, recomputed=made)


def _of_other_steps(side: SideStep, rules: list[str]) -> list[str]:
    """The rules that shape rewards first and hold at other steps as well, if there are any."""
    if len(_by_shape(rules)) > 1:
        for step in sorted(side.side.steps("trajectory") - {side.step})[:_OTHER_STEPS]:
            held = set(rules_of(SideStep(side.side, step)))
            rules = [rule for rule in rules if rule in held] or rules
    return rules


def _by_shape(rules: list[str]) -> list[list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for rule in rules:
        found[shape_of(rule)].append(rule)
    return list(found.values())


def _by_rule(evidence: Evidence, rule: str) -> Recomputed | None:
    """A's rewards by B's rule, beside both sides' advantages; None where A's samples are not all in B."""
    a, b = Scored.of(evidence.a), Scored.of(evidence.b)
    theirs = dict(zip((sample.sample for sample in b.samples), b.advantages, strict=True))
    partners = {one.sample: theirs.get(other.sample) for one, other in evidence.samples}
    recorded = [partners.get(sample.sample) for sample in a.samples]
    made = advantages_by(rule, a, evidence.a)
    if made is None or None in recorded:
        return None
    return Recomputed(a.advantages, np.asarray(recorded, dtype=np.float64), made)


def _pairs(evidence: Evidence) -> list[SamplePair]:
    """The samples in the first pass over each, or in the pass at which advantages first differ."""
    for one, other in evidence.samples:
        a, b = one.trained("advantages"), other.trained("advantages")
        if a is not None and b is not None and (len(a[0]) != len(b[0]) or largest(a[0] - b[0]) > _NOISE):
            return evidence.samples
    return evidence.now


def _rows(evidence: Evidence) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for one, other in _pairs(evidence):
        a, b = one.trained("advantages"), other.trained("advantages")
        if a is not None and b is not None and len(a[0]) == len(b[0]) and a[0].size:
            yield a[0].astype(np.float64), b[0].astype(np.float64)


def scaled(evidence: Evidence) -> Iterator[Explanation]:
    """One factor for all advantages."""
    rows = list(_rows(evidence))
    if not rows:
        return
    a, b = (np.concatenate([row[n] for row in rows]) for n in (0, 1))
    factor = fit_factor(a, b)
    noise = _NOISE * max(1.0, largest(b))
    if abs(factor - 1) > 1e-3 and largest(a) > 0:
        what = "with the opposite sign" if abs(factor + 1) < 1e-3 else f"times {factor:.6g}"
        text = f"B's advantages are A's {what}"
        yield applied("scaled", text, a, b, factor * a, noise, {"factor": factor})


def shifted_by_constant(evidence: Evidence) -> Iterator[Explanation]:
    """One number added to all advantages."""
    a, b = _flat(evidence)
    if len(a) < 3:
        return
    offset = float(np.median(b - a))
    noise = _NOISE * max(1.0, largest(b))
    if abs(offset) > 1e-3:
        text = f"B's advantages are A's plus {offset:.6g}"
        yield applied("offset", text, a, b, a + offset, noise, {"offset": offset})


def _flat(evidence: Evidence) -> tuple[np.ndarray, np.ndarray]:
    """The advantages of all tokens, of samples with equally many on both sides."""
    rows = list(_rows(evidence))
    if not rows:
        return np.empty(0), np.empty(0)
    a, b = (np.concatenate([row[n] for row in rows]) for n in (0, 1))
    return a, b


def permuted(evidence: Evidence) -> Iterator[Explanation]:
    """Advantages assigned to the wrong samples: of the whole step, or within what a rank has of a mini-batch."""
    blocks: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for one, other in _pairs(evidence):
        a, b = one.trained("advantages"), other.trained("advantages")
        if a is not None and b is not None and a[0].size and b[0].size:
            if largest(a[0] - a[0][0]) > _NOISE or largest(b[0] - b[0][0]) > _NOISE:
                return  # a sample's tokens do not share one advantage
            home = evidence.a.homes.get(one.sample) or one.quantities["advantages"].source
            blocks[home.rank, home.mini_batch].append((float(a[0][0]), float(b[0][0])))
    if not blocks:
        return
    columns = {place: np.asarray(rows).T for place, rows in blocks.items()}
    whole = np.concatenate(list(columns.values()), axis=1)
    how = permutation(whole[0], whole[1], _NOISE) or _within(columns, lambda place: place, "on each rank")
    how = how or _within(columns, lambda place: place[1], "within each mini-batch, across its ranks")
    if how is not None:
        text = f"B's advantages are A's {how}: assigned to the wrong samples"
        yield Explanation("rows-permuted", text, parameters={"how": how})


def _within(
    columns: dict[tuple[int, int], np.ndarray], part_of: Callable[[tuple[int, int]], object], where: str
) -> str | None:
    """How advantages are permuted within every part that differs, each some (rank, mini-batch)s."""
    parts: dict[object, list[np.ndarray]] = defaultdict(list)
    for place in sorted(columns):
        parts[part_of(place)].append(columns[place])
    joined = [np.concatenate(rows, axis=1) for rows in parts.values()]
    found = [permutation(a, b, _NOISE) for a, b in joined if largest(a - b) > _NOISE]
    if not found or None in found or len(joined) < 2:
        return None
    ranks = {rank for (rank, _), (a, b) in columns.items() if largest(a - b) > _NOISE}
    return f"{found[0]} {where if len(ranks) > 1 else f'on rank {ranks.pop()}'}"


def by_turn(evidence: Evidence) -> Iterator[Explanation]:
    """One side gives a turn of a conversation less than the next: nothing, or one factor per turn."""
    for label, right, wrong in evidence.directions:
        quotients: dict[int, list[float]] = defaultdict(list)
        rows: list[tuple[float, float, int]] = []
        for pair in _pairs(evidence):
            values = [sample.trained("advantages") for sample in pair]
            if values[0] is None or values[1] is None or len(values[0][0]) != len(values[1][0]):
                return
            turns = turn_of(pair[right].loss_mask)[values[right][-1]]  # type: ignore[index]
            for turn, one, other in zip(turns, values[right][0], values[wrong][0], strict=True):  # type: ignore[index]
                rows.append((float(one), float(other), int(turns.max() - turn)))
                if one != 0:
                    quotients[rows[-1][2]].append(float(other / one))
        if len(quotients) < 2 or any(np.ptp(part) > SLACK for part in quotients.values()):
            continue
        factors = [float(np.median(quotients[back])) for back in sorted(quotients)]
        if abs(factors[0] - 1) > SLACK or len(quotients[1]) < 4:
            continue
        if max(map(abs, factors[1:])) <= SLACK:
            text = f"{label}'s advantages are 0 except in the last turn of a conversation"
            made = Recomputed.of_rows([(one, other, 0.0 if back else one) for one, other, back in rows])
            yield Explanation("last-turn-only", text, parameters={"side": label}, recomputed=made)
        elif abs(factors[1] - 1) > SLACK and all(
            abs(factor - factors[1] ** back) <= back * SLACK for back, factor in enumerate(factors)
        ):
            text = f"{label}'s advantages are multiplied by {factors[1]:.4g} per turn before the last: a discount"
            made = Recomputed.of_rows([(one, other, one * factors[1] ** back) for one, other, back in rows])
            facts = {"side": label, "gamma": factors[1]}
            yield Explanation("discount-by-turn", text, parameters=facts, recomputed=made)


def last_token_only(evidence: Evidence) -> Iterator[Explanation]:
    """One side keeps the advantage on a sample's last token and has 0 elsewhere."""
    rows = [row for row in _rows(evidence) if len(row[0]) > 1 and largest(row[0] - row[1]) > _NOISE]
    for label, right, wrong in evidence.directions:
        if rows and all(
            largest(row[wrong][:-1]) == 0 and abs(row[wrong][-1] - row[right][-1]) <= _NOISE for row in rows
        ):
            text = f"{label}'s advantages are 0 except on the last token of a sample"
            given, recorded = (np.concatenate([row[side] for row in rows]) for side in (right, wrong))
            last = np.concatenate([np.arange(len(row[0])) == len(row[0]) - 1 for row in rows])
            made = Recomputed(given, recorded, np.where(last, given, 0.0))
            yield Explanation("last-token-only", text, parameters={"side": label}, recomputed=made)


def clipped(evidence: Evidence) -> Iterator[Explanation]:
    """Advantages clipped at a bound."""
    a, b = _flat(evidence)
    for label, full, cut in (("B", a, b), ("A", b, a)):
        if len(full) > 3 and largest(full - cut) > _NOISE and len(np.unique(np.round(cut, 6))) > 2:
            bounds = float(cut.min()), float(cut.max())
            if largest(np.clip(full, *bounds) - full) > _NOISE:
                # An end that cuts nothing off is only the largest that there is.
                ends = [f"from below at {bounds[0]:.6g}"] if full.min() < bounds[0] - _NOISE else []
                ends += [f"from above at {bounds[1]:.6g}"] if full.max() > bounds[1] + _NOISE else []
                text = f"{label}'s advantages are clipped {' and '.join(ends)}"
                facts = {"side": label, "bounds": list(bounds)}
                yield applied("advantage-clipped", text, full, cut, np.clip(full, *bounds), _NOISE, facts)


def discounted(evidence: Evidence) -> Iterator[Explanation]:
    """One side's advantages change by a constant factor from token to token, or from trained token to trained token."""
    rows = []
    for one, other in evidence.samples:
        a, b = one.trained("advantages"), other.trained("advantages")
        if a is None or b is None or len(a[0]) != len(b[0]) or len(a[0]) < 2 or not (np.all(a[0]) and np.all(b[0])):
            continue
        ratio = b[0].astype(np.float64) / a[0]
        if (ratio <= 0).any():
            return
        rows.append((a[0].astype(np.float64), b[0].astype(np.float64), a[1], np.arange(len(a[1]))))
    for what, axis in (("token", 2), ("trained token", 3)) if rows else ():
        every = np.concatenate([np.diff(np.log(row[1] / row[0])) / np.diff(row[axis]) for row in rows])
        rate, residual = float(np.median(every)), largest(every - np.median(every))
        if abs(rate) > 1e-4 and residual <= 1e-3:
            text = f"B's advantages change by a factor of {np.exp(rate):.5g} per {what} relative to A's: a discount"
            # Each sample keeps the factor of its first token.
            parts = [row[0] * (row[1][0] / row[0][0]) * np.exp(rate * (row[axis] - row[axis][0])) for row in rows]
            given, recorded = (np.concatenate([row[side] for row in rows]) for side in (0, 1))
            made = Recomputed(given, recorded, np.concatenate(parts))
            yield Explanation("discount", text, residual, 1e-3, {"gamma": float(np.exp(-abs(rate)))}, recomputed=made)
            return


def by_length(evidence: Evidence) -> Iterator[Explanation]:
    """One side divides a sample's advantage by its number of trained tokens, or of turns."""
    for label, right, wrong in evidence.directions:
        rows, firsts = [], []
        for pair in _pairs(evidence):
            a, b = pair[right].trained("advantages"), pair[wrong].trained("advantages")
            if a is not None and b is not None and len(a[0]) == len(b[0]) and a[0].size and a[0][0] != 0:
                quotient = float(b[0][0]) / float(a[0][0])
                if not small(b[0] - quotient * a[0], _NOISE * max(1.0, largest(b[0]))):
                    return  # tokens of a sample are not treated alike
                rows.append((quotient, len(a[0]), int(turn_of(pair[right].loss_mask).max(initial=1))))
                firsts.append((float(a[0][0]), float(b[0][0])))
        quotients, lengths, turns_of_rows = np.asarray(rows, dtype=np.float64).reshape(-1, 3).T
        for name, what, counts in (
            ("divided-by-length", "the length of their sample", lengths),
            ("divided-by-turns", "the number of their sample's turns", turns_of_rows),
        ):
            products = quotients * counts
            if (
                len(set(counts.tolist())) > 1
                and largest(products) > 1e-6
                and small(products - products.mean(), 1e-4 * largest(products))
            ):
                facts = {"side": label, "factor": float(products.mean())}
                given, recorded = np.asarray(firsts).T
                made = Recomputed(given, recorded, given * products.mean() / counts)
                text = f"{label}'s advantages are divided by {what}"
                # A side whose advantages follow from its rewards by a usual rule is the right one.
                if rules_of((evidence.a, evidence.b)[wrong]):
                    text = f"{'AB'[right]}'s advantages are multiplied by {what}"
                yield Explanation(name, text, parameters=facts, recomputed=made)


def by_length_of_turn(evidence: Evidence) -> Iterator[Explanation]:
    """One side divides an advantage by the number of tokens of its own turn."""
    for label, right, wrong in evidence.directions:
        rows: list[tuple[float, float, int]] = []
        for pair in _pairs(evidence):
            one, other = (pair[side].trained("advantages") for side in (right, wrong))
            if one is not None and other is not None and len(one[0]) == len(other[0]):
                turns = turn_of(pair[right].loss_mask)[one[1]]
                rows += zip(one[0].tolist(), other[0].tolist(), np.bincount(turns)[turns].tolist(), strict=True)
        given, recorded, lengths = np.asarray([row for row in rows if row[0] != 0], dtype=np.float64).reshape(-1, 3).T
        samples = [turn_of(pair[right].loss_mask).max(initial=0) for pair in _pairs(evidence)]
        if len(np.unique(lengths)) > 1 and max(samples, default=0) > 1:
            text = f"{label}'s advantages are divided by the length of their turn"
            noise = _NOISE * max(1.0, largest(recorded))
            yield applied("divided-by-turn-length", text, given, recorded, given / lengths, noise, {"side": label})


def of_another_step(evidence: Evidence) -> Iterator[Explanation]:
    """One side's advantages are those that its rewards of the step before give, in their order."""
    for (label, side), (_, other) in zip(evidence.sides, reversed(evidence.sides), strict=True):
        earlier = [step for step in other.side.steps("trajectory") if step < other.step]
        own = _first_of_each(side)
        if len(own) >= 8 and earlier:
            # The other side's: on this one they are late at every step.
            right, before = _first_of_each(other), _first_of_each(SideStep(other.side, max(earlier)))
            if len(own) == len(before) == len(right) and small(own - before, SLACK) and not small(own - right, SLACK):
                text = f"{label}'s advantages are those of step {max(earlier)}, in the same order"
                facts, made = {"side": label, "step": max(earlier)}, Recomputed(right, own, before)
                yield Explanation("advantage-of-another-step", text, parameters=facts, recomputed=made)


def _first_of_each(side: SideStep) -> np.ndarray:
    """The advantage of every sample's first trained token, in the order of samples."""
    found = [sample.trained("advantages") for sample in side.samples.values()]
    return np.asarray([float(values[0][0]) for values in found if values is not None and values[0].size])


def term_added(evidence: Evidence) -> Iterator[Explanation]:
    """A multiple of a per-token quantity is in one side's advantages and not in the other's."""
    for what, names in (
        ("the KL to the reference", ("old_log_probs", "ref_log_probs")),
        ("the entropy", ("entropy",)),
        ("the log prob", ("old_log_probs",)),
    ):
        both, terms = [], []
        for one, other in evidence.samples:
            a, b = one.trained("advantages", *names), other.trained("advantages", *names)
            if a is None or b is None or len(a[0]) != len(b[0]):
                continue
            both.append(np.asarray((a[0], b[0]), dtype=np.float64))
            terms.append(b[1].astype(np.float64) - (b[2] if len(names) > 1 else 0.0))
        if not both:
            continue
        (mine, theirs), term = np.concatenate(both, 1), np.concatenate(terms)
        gap = theirs - mine
        factor = fit_factor(term, gap)
        noise = 1e-4 * largest(gap)
        if abs(factor) > 1e-6 and len(np.unique(np.round(term, 6))) > 3:
            text = f"B's advantages are A's plus {factor:.6g} times {what} of each token"
            facts = {"factor": factor, "term": what}
            yield applied("term-in-advantage", text, mine, theirs, mine + factor * term, noise, facts)


HYPOTHESES = {
    "advantage": (
        normalisation,
        over_other_groups,
        wherever(scaled, "advantages"),
        wherever(shifted_by_constant, "advantages"),
        permuted,
        by_turn,
        last_token_only,
        clipped,
        discounted,
        by_length,
        by_length_of_turn,
        of_another_step,
        term_added,
    )
}
