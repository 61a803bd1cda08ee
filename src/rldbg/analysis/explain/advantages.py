"""Hypotheses about advantages: by which rule they follow from rewards, and how they were changed afterwards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from rldbg.analysis.explain.evidence import Evidence, Explanation, Pair, applied, fit_factor, largest
from rldbg.analysis.explain.passes import SideStep
from rldbg.analysis.explain.permuted import permutation
from rldbg.analysis.normalisation import guarded, normalisations

_SLACK = 1e-3
_NOISE = 1e-5


def normalisation(evidence: Evidence) -> Iterator[Explanation]:
    """Each side's advantages follow from its rewards, but by different rules."""
    rules = [_rule(side) for _, side in evidence.sides]
    if rules[0] and rules[1] and rules[0] != rules[1]:
        text = f"A's advantages are rewards normalised by {rules[0]}, B's by {rules[1]}"
        facts = {"a": rules[0], "b": rules[1]}
        yield Explanation("advantage-normalisation", text, 0.0, _SLACK, facts)


def _rule(side: SideStep) -> str | None:
    rewards, advantages, groups = [], [], []
    for sample in side.samples.values():
        found = sample.trained("advantages")
        if found is not None and found[0].size and sample.reward is not None and largest(found[0] - found[0][0]) == 0:
            rewards.append(sample.reward)
            advantages.append(float(found[0][0]))
            groups.append(sample.sample.group_id)
    if len(rewards) < 2 or not np.any(advantages):
        return None
    numbers = {name: number for number, name in enumerate(dict.fromkeys(groups))}
    have, reward = np.asarray(advantages), np.asarray(rewards, dtype=np.float64)
    own = np.asarray([numbers[name] for name in groups])
    size = max(int(np.bincount(own).max()), 1)
    mixed = np.arange(len(own)) % max(len(own) // size, 1)
    shifted = np.roll(own, 1)
    for suffix, grouping in (
        ("", own),
        (" over groups that mix prompts", mixed),
        (" over groups that are off by one sample", shifted),
    ):
        for rule, expected in normalisations(reward, grouping):
            if largest(have - expected) <= _SLACK * max(1.0, largest(expected)):
                return rule + suffix
    return guarded(have, reward, own, _SLACK)


def _pairs(evidence: Evidence) -> list[Pair]:
    """The samples in the first pass over each, or in the pass at which advantages first differ."""
    for one, other in evidence.samples:
        a, b = one.trained("advantages"), other.trained("advantages")
        if a is not None and b is not None and (len(a[0]) != len(b[0]) or largest(a[0] - b[0]) > _NOISE):
            return evidence.samples
    return evidence.now


def _per_sample(evidence: Evidence) -> tuple[np.ndarray, np.ndarray]:
    """The advantage of every sample whose tokens all have one."""
    found = []
    for one, other in _pairs(evidence):
        a, b = one.trained("advantages"), other.trained("advantages")
        if a is not None and b is not None and a[0].size and b[0].size:
            found.append((float(a[0][0]), float(b[0][0])))
    values = np.asarray(found, dtype=np.float64).reshape(-1, 2)
    return values[:, 0], values[:, 1]


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
        yield applied("scaled", text, b - a, b - factor * a, noise, {"factor": factor})


def shifted_by_constant(evidence: Evidence) -> Iterator[Explanation]:
    """One number added to all advantages."""
    a, b = _per_sample(evidence)
    if len(a) < 3:
        return
    offset = float(np.median(b - a))
    noise = _NOISE * max(1.0, largest(b))
    if abs(offset) > 1e-3:
        text = f"B's advantages are A's plus {offset:.6g}"
        yield applied("offset", text, b - a, b - a - offset, noise, {"offset": offset})


def permuted(evidence: Evidence) -> Iterator[Explanation]:
    """Advantages assigned to the wrong samples."""
    a, b = _per_sample(evidence)
    how = permutation(a, b, _NOISE) if len(a) else None
    how = how or _within_ranks(evidence)
    if how is not None:
        text = f"B's advantages are A's {how}: assigned to the wrong samples"
        yield Explanation("rows-permuted", text, parameters={"how": how})


def _within_ranks(evidence: Evidence) -> str | None:
    """How each rank that differs permutes the advantages of its own samples; None when one does not."""
    by_rank: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for one, other in _pairs(evidence):
        a, b = one.trained("advantages"), other.trained("advantages")
        if a is not None and b is not None and a[0].size and b[0].size:
            by_rank[one.quantities["advantages"].source.rank].append((float(a[0][0]), float(b[0][0])))
    columns = [np.asarray(rows).T for rows in by_rank.values()]
    apart = [(a, b) for a, b in columns if largest(a - b) > _NOISE]
    found = [permutation(a, b, _NOISE) for a, b in apart]
    return f"{found[0]} within each rank" if found and None not in found and len(columns) > 1 else None


def last_token_only(evidence: Evidence) -> Iterator[Explanation]:
    """One side keeps the advantage on a sample's last token and has 0 elsewhere."""
    rows = [row for row in _rows(evidence) if len(row[0]) > 1 and largest(row[0] - row[1]) > _NOISE]
    for label, right, wrong in evidence.directions:
        if rows and all(
            largest(row[wrong][:-1]) == 0 and abs(row[wrong][-1] - row[right][-1]) <= _NOISE for row in rows
        ):
            text = f"{label}'s advantages are 0 except on the last token of a sample"
            yield Explanation("last-token-only", text, parameters={"side": label})


def clipped(evidence: Evidence) -> Iterator[Explanation]:
    """Advantages clipped at a bound."""
    a, b = _per_sample(evidence)
    for label, full, cut in (("B", a, b), ("A", b, a)):
        if len(full) > 3 and largest(full - cut) > _NOISE and len(np.unique(np.round(cut, 6))) > 2:
            bounds = float(cut.min()), float(cut.max())
            if largest(np.clip(full, *bounds) - full) > _NOISE:
                text = f"{label}'s advantages are clipped to [{bounds[0]:.6g}, {bounds[1]:.6g}]"
                facts = {"side": label, "bounds": list(bounds)}
                yield applied("advantage-clipped", text, full - cut, np.clip(full, *bounds) - cut, _NOISE, facts)


def discounted(evidence: Evidence) -> Iterator[Explanation]:
    """One side's advantages change by a constant factor from token to token."""
    rates = []
    for one, other in evidence.samples:
        a, b = one.trained("advantages"), other.trained("advantages")
        if a is None or b is None or len(a[0]) != len(b[0]) or len(a[0]) < 2 or not (np.all(a[0]) and np.all(b[0])):
            continue
        ratio = b[0].astype(np.float64) / a[0]
        if (ratio <= 0).any():
            return
        rates.append(np.diff(np.log(ratio)) / np.diff(a[1]))
    if not rates:
        return
    every = np.concatenate(rates)
    rate, residual = float(np.median(every)), largest(every - np.median(every))
    if abs(rate) > 1e-4 and residual <= 1e-3:
        text = f"B's advantages change by a factor of {np.exp(rate):.5g} per token relative to A's: a discount"
        yield Explanation("discount", text, residual, 1e-3, {"gamma": float(np.exp(-abs(rate)))})


def by_length(evidence: Evidence) -> Iterator[Explanation]:
    """One side divides a sample's advantage by its number of trained tokens."""
    for label, right, wrong in evidence.directions:
        rows = [row for row in _rows(evidence) if row[right][0] != 0]
        quotients = np.asarray([float(row[wrong][0] / row[right][0]) * len(row[0]) for row in rows])
        lengths = {len(row[0]) for row in rows}
        if (
            len(lengths) > 1
            and largest(quotients) > 1e-6
            and largest(quotients - quotients.mean()) <= 1e-4 * largest(quotients)
        ):
            text = f"{label}'s advantages are divided by the length of their sample"
            facts = {"side": label, "factor": float(quotients.mean())}
            yield Explanation("divided-by-length", text, parameters=facts)


def term_added(evidence: Evidence) -> Iterator[Explanation]:
    """A multiple of a per-token quantity is in one side's advantages and not in the other's."""
    for what, names in (
        ("the KL to the reference", ("old_log_probs", "ref_log_probs")),
        ("the entropy", ("entropy",)),
        ("the log prob", ("old_log_probs",)),
    ):
        gaps, terms = [], []
        for one, other in evidence.samples:
            a, b = one.trained("advantages", *names), other.trained("advantages", *names)
            if a is None or b is None or len(a[0]) != len(b[0]):
                continue
            gaps.append(b[0].astype(np.float64) - a[0])
            terms.append(b[1].astype(np.float64) - (b[2] if len(names) > 1 else 0.0))
        if not gaps:
            continue
        gap, term = np.concatenate(gaps), np.concatenate(terms)
        factor = fit_factor(term, gap)
        noise = 1e-4 * largest(gap)
        if abs(factor) > 1e-6 and len(np.unique(np.round(term, 6))) > 3:
            text = f"B's advantages are A's plus {factor:.6g} times {what} of each token"
            facts = {"factor": factor, "term": what}
            yield applied("term-in-advantage", text, gap, gap - factor * term, noise, facts)


HYPOTHESES = {
    "advantage": (
        normalisation,
        scaled,
        shifted_by_constant,
        permuted,
        last_token_only,
        clipped,
        discounted,
        by_length,
        term_added,
    )
}
