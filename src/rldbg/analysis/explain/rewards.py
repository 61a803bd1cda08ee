"""Hypotheses about rewards."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator

import numpy as np

from rldbg.analysis.explain.advantage_rules import terms_of
from rldbg.analysis.explain.evidence import (
    Evidence,
    Explanation,
    Recomputed,
    SamplePair,
    applied,
    fit_factor,
    for_samples,
    largest,
    small,
)
from rldbg.analysis.explain.permuted import permutation
from rldbg.analysis.explain.subsets import turn_of
from rldbg.analysis.normalisation import normalisations
from rldbg.analysis.tokens import read_tokens

_FEWEST_BROKEN, _FEWEST_WHOLE = 4, 3
# A reward is a statistic's by chance in about one of four cases; with three statistics of two sides, five are so in
# less than one of a hundred.
_FEWEST_CHANGED, _FEWEST_GROUPS = 5, 3
_OTHER_STEPS = 4
# Of naming what came about by chance.
_CHANCE = 0.01


def _rewards(evidence: Evidence) -> tuple[np.ndarray, np.ndarray]:
    found = [(a.reward, b.reward) for a, b in evidence.samples if a.reward is not None and b.reward is not None]
    if len(found) < 3:
        return np.empty(0), np.empty(0)
    a, b = np.asarray(found, dtype=np.float64).T
    return a, b


def affine(evidence: Evidence) -> Iterator[Explanation]:
    """Rewards scaled, shifted, or both."""
    a, b = _rewards(evidence)
    if a.size == 0 or largest(a - a.mean()) == 0 or np.array_equal(a, b) or not np.isfinite([a, b]).all():
        return
    scale, offset = np.polyfit(a, b, 1)
    noise = 1e-5 * max(1.0, largest(b))
    if abs(scale) > 1e-6:
        what = [f"scaled by {scale:.6g}"] if abs(scale - 1) > 1e-6 else []
        what += [f"shifted by {offset:.6g}"] if abs(offset) > 1e-6 else []
        facts = {"scale": float(scale), "offset": float(offset)}
        text = f"B's rewards are A's {' and '.join(what)}"
        yield applied("reward-affine", text, a, b, scale * a + offset, noise, facts)


def normalised(evidence: Evidence) -> Iterator[Explanation]:
    """One side has the rewards as they were given, the other what a normalisation made of them."""
    known = [(a, b) for a, b in evidence.samples if a.reward is not None and b.reward is not None]
    for label, right, wrong in evidence.directions:
        raw, made = (np.asarray([pair[side].reward for pair in known], dtype=np.float64) for side in (right, wrong))
        groups = np.unique([pair[right].sample.group_id for pair in known], return_inverse=True)[1]
        if len(raw) < 3 or not np.isfinite([raw, made]).all() or not np.any(made) or largest(raw - made) == 0:
            continue
        # One factor and one offset for all of them is reported as such.
        if largest(raw - raw[0]) > 0 and largest(made - np.polyval(np.polyfit(raw, made, 1), raw)) <= 1e-6:
            continue
        for rule, expected in normalisations(raw, groups):
            # In a single group many rules give the same few numbers.
            changed = np.unique(groups[expected != raw])
            if len(changed) > 1 and small(made - expected, 1e-4 * max(1.0, largest(expected))):
                text = f"{label}'s rewards are the other side's, normalised by: {rule}"
                facts = {"side": label, "rule": rule}
                yield applied("reward-normalised", text, raw, made, expected, 1e-4, facts)
                break


def clipped(evidence: Evidence) -> Iterator[Explanation]:
    """Rewards clipped at a bound."""
    a, b = _rewards(evidence)
    for label, full, cut in (("B", a, b), ("A", b, a)):
        if full.size and np.isfinite([full, cut]).all() and largest(full - cut) > 0 and len(np.unique(cut)) > 1:
            bounds = float(cut.min()), float(cut.max())
            if largest(np.clip(full, *bounds) - cut) <= 1e-6 and _is_clip(full, cut):
                text = f"{label}'s rewards are the other side's clipped to [{bounds[0]:.6g}, {bounds[1]:.6g}]"
                facts, made = {"side": label, "bounds": list(bounds)}, Recomputed(full, cut, np.clip(full, *bounds))
                yield Explanation("reward-clipped", text, parameters=facts, recomputed=made)


def _is_clip(full: np.ndarray, cut: np.ndarray) -> bool:
    """Whether a bound took several different rewards, or is a whole number, as people choose them: of one reward that
    became another, many rules may be the reason."""
    apart = np.abs(full - cut) > 1e-6
    bounds = np.unique(cut[apart])
    several = any(len(np.unique(np.round(full[apart & (cut == bound)], 6))) > 1 for bound in bounds)
    return several or bool((bounds == np.round(bounds)).all())


def of_some(evidence: Evidence) -> Iterator[Explanation]:
    """One amount more or less for exactly those samples that end with a token, or that have as many as one may."""
    known = _of_equal_tokens(evidence)
    gap = np.asarray([float(b.reward or 0.0) - float(a.reward or 0.0) for a, b in known])
    apart = np.abs(gap) > 1e-6
    if not 0 < apart.sum() < len(gap) or not np.isfinite(gap).all():
        return
    amount = float(np.median(gap[apart]))
    if not small(gap[apart] - amount, 1e-5 * max(1.0, abs(amount))):
        return
    fitting, tries = _fitting_parts(known, apart)
    # That a part of so many samples is the one that differs by chance, for each part that was tried.
    chance = tries / math.comb(len(gap), int(apart.sum()))
    if fitting and chance <= _CHANCE:
        what = " (or ".join(fitting[:2]) + (", which are the same here)" if len(fitting) > 1 else "")
        text = f"B's rewards are A's {amount:+.6g} for all samples {what}, and equal for the others"
        facts = {"amount": amount, "samples": fitting}
        rows = [(a.reward, b.reward, a.reward + amount * n) for (a, b), n in zip(known, apart, strict=True) if a.reward]
        yield Explanation("reward-of-some", text, parameters=facts, recomputed=Recomputed.of_rows(rows))


def _fitting_parts(known: list[SamplePair], apart: np.ndarray) -> tuple[list[str], int]:
    """What the samples that differ have in common and no others, in as few words as possible, and how many parts were
    tried: a bound may have any of the samples' values."""
    plain, bounds = _plain_parts(known, apart), _bounded_parts(known, apart)
    every = {**plain, **bounds}
    pairs = {f"{one} and {other}": every[one] & every[other] for one, other in itertools.combinations(every, 2)}
    # A condition on the reward alone is a rule for rewards, of which others say more.
    single = {what: part for what, part in bounds.items() if not what.startswith(_OF_REWARD)}
    count = len(apart)
    # One reward that becomes another may be a default given to some: only several that change alike are an amount.
    several = len({pair[0].reward for pair, differs in zip(known, apart, strict=True) if differs}) > 1
    bounded = ((single, len(single) * count), (pairs, len(pairs) * count**2)) if several else ()
    for parts, tries in ((plain, len(plain)), *bounded):
        fitting = [what for what, part in parts.items() if np.array_equal(part, apart)]
        if fitting:
            return fitting, tries
    return [], 0


_OF_REWARD = "with a reward of"


def _plain_parts(known: list[SamplePair], apart: np.ndarray) -> dict[str, np.ndarray]:
    """How a sample ends, and whether it is as long as one may be."""
    last = np.asarray([int(a.tokens[a.loss_mask != 0][-1]) if a.loss_mask.any() else -1 for a, _ in known])
    ends = last[np.argmax(apart)], last[np.argmin(apart)]
    lengths = np.asarray([np.count_nonzero(a.loss_mask) for a, _ in known])
    return {
        f"that end with token {ends[0]}": last == ends[0],
        f"that do not end with token {ends[1]}": last != ends[1],
        "of the maximum length": lengths == lengths.max(),
        "shorter than the maximum": lengths < lengths.max(),
    }


def _bounded_parts(known: list[SamplePair], apart: np.ndarray) -> dict[str, np.ndarray]:
    """Lengths and rewards up to those of the samples that differ, or from them on."""
    lengths = np.asarray([np.count_nonzero(a.loss_mask) for a, _ in known])
    rewards = np.asarray([float(a.reward or 0.0) for a, _ in known])
    fewest, most = lengths[apart].min(), lengths[apart].max()
    least, largest_one = rewards[apart].min(), rewards[apart].max()
    return {
        f"with at least {fewest} trained tokens": lengths >= fewest,
        f"with at most {most} trained tokens": lengths <= most,
        f"{_OF_REWARD} at least {least:.6g}": rewards >= least,
        f"{_OF_REWARD} at most {largest_one:.6g}": rewards <= largest_one,
    }


def _later(evidence: Evidence) -> Iterator[Evidence]:
    sides = evidence.a.side, evidence.b.side
    steps = sorted(sides[0].steps("trajectory") & sides[1].steps("trajectory"))
    for step in [step for step in steps if step > evidence.step][:_OTHER_STEPS]:
        yield Evidence(*sides, step)


def _of_equal_tokens(evidence: Evidence) -> list[SamplePair]:
    """Pairs of samples with rewards and equal tokens, of this step and of others."""
    pairs = [*evidence.samples, *(pair for later in _later(evidence) for pair in later.samples)]
    return [
        (a, b) for a, b in pairs if a.reward is not None and b.reward is not None and np.array_equal(a.tokens, b.tokens)
    ]


def rounded(evidence: Evidence) -> Iterator[Explanation]:
    """Rewards converted to integers; of a few different rewards, many functions of them are whole."""
    a, b = _rewards(evidence)
    for label, full, whole in (("B", a, b), ("A", b, a)):
        broken = np.unique(full[full != np.trunc(full)])
        if len(broken) < _FEWEST_BROKEN or len(np.unique(whole)) < _FEWEST_WHOLE:
            continue
        for how, rule in (("truncated to", np.trunc), ("rounded to", np.round)):
            if full.size and largest(full - whole) > 0 and np.array_equal(rule(full), whole):
                text = f"{label}'s rewards are the other side's {how} integers"
                made = Recomputed(full, whole, rule(full))
                yield Explanation("reward-rounded", text, parameters={"side": label}, share=0.9, recomputed=made)


def by_length(evidence: Evidence) -> Iterator[Explanation]:
    """The rewards differ by a fixed amount per token, or per turn."""
    known = [(a, b) for a, b in evidence.samples if a.reward is not None and b.reward is not None]
    mine, theirs = (np.asarray([pair[side].reward for pair in known], dtype=np.float64) for side in (0, 1))
    gap = theirs - mine
    for what, counts in (
        ("trained token", [np.count_nonzero(a.loss_mask) for a, _ in known]),
        ("token", [len(a.tokens) for a, _ in known]),
        ("token after the prompt", [len(a.tokens) - a.prompt_length for a, _ in known]),
        ("turn", [turn_of(a.loss_mask).max(initial=0) for a, _ in known]),
    ):
        lengths = np.asarray(counts, dtype=np.float64)
        different = len(np.unique(lengths))
        if different < 2 or largest(gap) == 0:
            continue
        slope, offset = np.polyfit(lengths, gap, 1)
        # Any two numbers lie on a line: only one through 0 says something.
        if abs(slope) > 1e-4 and (different > 2 or abs(offset) <= 1e-5):
            text = f"B's rewards are A's {slope:+.6g} per {what}" + (f", {offset:+.6g}" if abs(offset) > 1e-5 else "")
            facts = {"per_token": float(slope), "offset": float(offset)}
            yield applied("reward-by-length", text, mine, theirs, mine + slope * lengths + offset, 1e-5, facts)


def shaped(evidence: Evidence) -> Iterator[Explanation]:
    """A multiple of a number of each sample, such as its summed KL, is in one side's rewards."""
    known = [(a, b) for a, b in evidence.samples if a.reward is not None and b.reward is not None]
    if len(known) < 6:
        return
    mine, theirs = (np.asarray([pair[side].reward for pair in known], dtype=np.float64) for side in (0, 1))
    gap = theirs - mine
    if largest(gap) == 0 or not np.isfinite(gap).all():
        return
    for index, label in ((1, "B"), (0, "A")):
        for name, term in terms_of([pair[index] for pair in known]):
            if "number of" in name or len(np.unique(np.round(term, 6))) < 6:
                continue
            factor = fit_factor(term, gap)
            if abs(factor) > 1e-6:
                text = f"B's rewards are A's plus {factor:.6g} times {name} (in {label})"
                noise = 1e-5 * max(1.0, largest(gap))
                facts = {"factor": factor, "term": name}
                yield applied("reward-shaped", text, mine, theirs, mine + factor * term, noise, facts)


def by_turn(evidence: Evidence) -> Iterator[Explanation]:
    """The rewards differ by one factor per number of turns."""
    factors: dict[int, set[float]] = {}
    counts: Counter[int] = Counter()
    rows: list[tuple[float, float, int]] = []
    for a, b in evidence.samples:
        if a.reward is None or b.reward is None or a.reward == b.reward == 0:
            continue
        if a.reward == 0 or not np.array_equal(a.loss_mask, b.loss_mask):
            return
        turns = int(turn_of(a.loss_mask).max(initial=0))
        factors.setdefault(turns, set()).add(round(b.reward / a.reward, 5))
        counts[turns] += 1
        rows.append((a.reward, b.reward, turns))
    apart = {turns: min(found) for turns, found in factors.items() if len(found) == 1}
    if len(factors) < 2 or len(apart) < len(factors) or len(set(apart.values())) < 2:
        return
    if sum(counts[turns] for turns, factor in apart.items() if factor != 1) >= 3:
        parts = ", ".join(f"{factor:g} after {turns} turn(s)" for turns, factor in sorted(apart.items()))
        text = f"B's rewards are A's times a factor of the number of turns: {parts}"
        made = Recomputed.of_rows([(one, other, one * apart[turns]) for one, other, turns in rows])
        facts = {"factors": {str(k): v for k, v in apart.items()}}
        yield Explanation("reward-by-turn", text, parameters=facts, recomputed=made)


def of_another_step(evidence: Evidence) -> Iterator[Explanation]:
    """One side's rewards are those that its samples of the step before had, in their order."""
    a, b = _rewards(evidence)
    if a.size == 0 or np.array_equal(a, b):
        return
    for (label, side), (_, right) in zip(evidence.sides, reversed(evidence.sides), strict=True):
        own = [sample.reward for sample in side.samples.values()]
        earlier = [step for step in side.side.steps("trajectory") if step < side.step]
        before = [sample.reward for sample in read_tokens(side.side, max(earlier)).values()] if earlier else []
        if len(own) >= 8 and len(set(own)) > 1 and own == before:
            text = f"{label}'s rewards are those of its samples of step {max(earlier)}, in the same order"
            other = [sample.reward for sample in right.samples.values()]
            made = Recomputed.of_rows(list(zip(other, own, before, strict=True))) if len(other) == len(own) else None
            facts = {"side": label, "step": max(earlier)}
            yield Explanation("reward-of-another-step", text, parameters=facts, recomputed=made)


def of_group(evidence: Evidence) -> Iterator[Explanation]:
    """Some samples have a statistic of their group's rewards as their reward."""
    known = [(a, b) for a, b in evidence.samples if a.reward is not None and b.reward is not None]
    for index, label in ((0, "B"), (1, "A")):
        groups: dict[str, list[float]] = {}
        for pair in known:
            groups.setdefault(pair[index].sample.group_id, []).append(pair[index].reward or 0.0)
        changed = [pair for pair in known if pair[0].reward != pair[1].reward]
        for how, rule in (("mean", np.mean), ("maximum", np.max), ("minimum", np.min)):
            same = sum(
                abs((pair[1 - index].reward or 0.0) - float(rule(groups[pair[index].sample.group_id]))) <= 1e-6
                for pair in changed
            )
            values = {pair[1 - index].reward for pair in changed}
            told = {pair[index].sample.group_id for pair in changed}
            # One value for all of them is a default, whatever the group; a few agree with a statistic by chance.
            if same and len(values) > 1 and len(changed) >= _FEWEST_CHANGED and len(told) >= _FEWEST_GROUPS:
                text = f"{label} gives {same} samples the {how} of their group's rewards"
                made = Recomputed.of_rows(
                    [
                        (pair[index].reward, pair[1 - index].reward, float(rule(groups[pair[index].sample.group_id])))
                        for pair in changed
                    ]
                )
                yield for_samples("reward-of-group", text, same, len(changed), {"side": label, "how": how}, made)


def lost(evidence: Evidence) -> Iterator[Explanation]:
    """Some samples have one fixed reward on one side, whatever the other side has."""
    a, b = _rewards(evidence)
    for label, full, holed in (("B", a, b), ("A", b, a)):
        apart = full != holed
        fixed = np.unique(holed[apart])
        # Of a single reward that became another one, many rules may be the reason.
        if len(fixed) == 1 and not apart.all() and np.isfinite(fixed[0]) and len(np.unique(full[apart])) > 1:
            # It must be a default given to some, not a rule for all samples of that reward.
            spared = (~apart) & np.isin(full, np.unique(full[apart]))
            if spared.any():
                text = (
                    f"{label} gives {int(apart.sum())} samples a reward of {fixed[0]:.6g} where the other side does not"
                )
                facts = {"side": label, "reward": float(fixed[0]), "samples": int(apart.sum())}
                made = Recomputed(full, holed, np.where(apart, fixed[0], full))
                yield Explanation("reward-lost", text, parameters=facts, recomputed=made)


def permuted(evidence: Evidence) -> Iterator[Explanation]:
    """Rewards assigned to the wrong samples."""
    a, b = _rewards(evidence)
    how = permutation(a, b, 1e-6) if a.size else None
    how = how or _within_groups(evidence)
    if how is not None:
        yield Explanation(
            "rows-permuted", f"B's rewards are A's {how}: assigned to the wrong samples", parameters={"how": how}
        )


def _within_groups(evidence: Evidence) -> str | None:
    """Whether every group has the same rewards on both sides, in several of them at different samples.

    Two changed rewards of a group keep its rewards by chance in at most half of all cases: enough groups exclude that,
    also those of later steps whose samples are all the same on both sides.
    """
    groups: dict[str, list[tuple[float, float]]] = {}
    for a, b in evidence.samples:
        if a.reward is not None and b.reward is not None:
            groups.setdefault(a.sample.group_id, []).append((a.reward, b.reward))
    for later in _later(evidence):
        members: dict[str, list[SamplePair]] = {}
        for pair in later.samples:
            members.setdefault(pair[0].sample.group_id, []).append(pair)
        for name, pairs in members.items():
            if name not in groups and all(np.array_equal(a.tokens, b.tokens) for a, b in pairs):
                groups[name] = [(float(a.reward or 0.0), float(b.reward or 0.0)) for a, b in pairs]
    same = all(sorted(a for a, _ in rows) == sorted(b for _, b in rows) for rows in groups.values())
    changed = {name: [b for a, b in rows if a != b] for name, rows in groups.items() if any(a != b for a, b in rows)}
    if not same or not changed:
        return None
    if len(changed) >= 3:
        return "in a different order within each group"
    # Rewards sampled from all of this step's would be the group's own in another order so often.
    every = Counter(b for rows in groups.values() for _, b in rows)
    chance = 1.0
    for rows in changed.values():
        orders = math.factorial(len(rows)) / math.prod(math.factorial(count) for count in Counter(rows).values())
        chance *= orders * math.prod(every[reward] / every.total() for reward in rows)
    if chance > _CHANCE:
        return None
    return f"in a different order within group{'s' if len(changed) > 1 else ''} {', '.join(changed)}"


HYPOTHESES = {
    "reward": (
        *(affine, normalised, permuted, by_length, clipped, rounded, lost, of_group),
        *(shaped, by_turn, of_another_step, of_some),
    )
}
