"""Hypotheses about rewards."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rldbg.analysis.explain.evidence import Evidence, Explanation, applied, for_samples, largest
from rldbg.analysis.explain.permuted import permutation
from rldbg.analysis.normalisation import normalisations


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
        yield applied("reward-affine", text, b - a, b - (scale * a + offset), noise, facts)


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
            if largest(expected - raw) > 0 and largest(made - expected) <= 1e-4 * max(1.0, largest(expected)):
                text = f"{label}'s rewards are the other side's, normalised by: {rule}"
                facts = {"side": label, "rule": rule}
                yield Explanation("reward-normalised", text, largest(made - expected), 1e-4, facts)
                break


def clipped(evidence: Evidence) -> Iterator[Explanation]:
    """Rewards clipped at a bound."""
    a, b = _rewards(evidence)
    for label, full, cut in (("B", a, b), ("A", b, a)):
        if full.size and largest(full - cut) > 0 and len(np.unique(cut)) > 1:
            bounds = float(cut.min()), float(cut.max())
            if largest(np.clip(full, *bounds) - cut) <= 1e-6:
                text = f"{label}'s rewards are the other side's clipped to [{bounds[0]:.6g}, {bounds[1]:.6g}]"
                yield Explanation("reward-clipped", text, parameters={"side": label, "bounds": list(bounds)})


def rounded(evidence: Evidence) -> Iterator[Explanation]:
    """Rewards converted to integers."""
    a, b = _rewards(evidence)
    for label, full, whole in (("B", a, b), ("A", b, a)):
        for how, rule in (("truncated to", np.trunc), ("rounded to", np.round)):
            if full.size and largest(full - whole) > 0 and np.array_equal(rule(full), whole):
                text = f"{label}'s rewards are the other side's {how} integers"
                yield Explanation("reward-rounded", text, parameters={"side": label}, share=0.9)


def by_length(evidence: Evidence) -> Iterator[Explanation]:
    """The rewards differ by a fixed amount per token."""
    known = [(a, b) for a, b in evidence.samples if a.reward is not None and b.reward is not None]
    gap = np.asarray([(b.reward or 0.0) - (a.reward or 0.0) for a, b in known])
    for what, counts in (
        ("trained token", [np.count_nonzero(a.loss_mask) for a, _ in known]),
        ("token", [len(a.tokens) for a, _ in known]),
    ):
        lengths = np.asarray(counts, dtype=np.float64)
        if len(np.unique(lengths)) < 3 or largest(gap) == 0:
            continue
        slope, offset = np.polyfit(lengths, gap, 1)
        if abs(slope) > 1e-4:
            text = f"B's rewards are A's {slope:+.6g} per {what}" + (f", {offset:+.6g}" if abs(offset) > 1e-5 else "")
            facts = {"per_token": float(slope), "offset": float(offset)}
            yield applied("reward-by-length", text, gap, gap - slope * lengths - offset, 1e-5, facts)


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
            if same:
                text = f"{label} gives {same} samples the {how} of their group's rewards"
                yield for_samples("reward-of-group", text, same, len(changed), {"side": label, "how": how})


def lost(evidence: Evidence) -> Iterator[Explanation]:
    """Some samples have one fixed reward on one side, whatever the other side has."""
    a, b = _rewards(evidence)
    for label, full, holed in (("B", a, b), ("A", b, a)):
        apart = full != holed
        fixed = np.unique(holed[apart])
        if apart.any() and len(fixed) == 1 and not apart.all() and np.isfinite(fixed[0]):
            # It must be a default given to some, not a rule for all samples of that reward.
            spared = (~apart) & np.isin(full, np.unique(full[apart]))
            if spared.any():
                text = (
                    f"{label} gives {int(apart.sum())} samples a reward of {fixed[0]:.6g} where the other side does not"
                )
                facts = {"side": label, "reward": float(fixed[0]), "samples": int(apart.sum())}
                yield Explanation("reward-lost", text, parameters=facts)


def permuted(evidence: Evidence) -> Iterator[Explanation]:
    """Rewards assigned to the wrong samples."""
    a, b = _rewards(evidence)
    how = permutation(a, b, 1e-6) if a.size else None
    if how is not None:
        yield Explanation(
            "rows-permuted", f"B's rewards are A's {how}: assigned to the wrong samples", parameters={"how": how}
        )


HYPOTHESES = {"reward": (affine, normalised, permuted, by_length, clipped, rounded, lost, of_group)}
