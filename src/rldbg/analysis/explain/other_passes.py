"""Hypotheses about log probs that are those of another pass or model: the reference, the rollout, the same pass."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rldbg.analysis.explain import contexts
from rldbg.analysis.explain.aggregation import mask_of
from rldbg.analysis.explain.evidence import Evidence, Explanation, Hypothesis, Recomputed, agree, largest
from rldbg.analysis.explain.passes import MicroPass, SideStep, UpdateInStep

_NOISE = 2e-5
_FEWEST_COPIED = 3


def taken_from(quantity: str, source: str, id: str, text: str) -> Hypothesis:
    """One side's values equal another of its own quantities, and the other side's do not."""

    def hypothesis(evidence: Evidence) -> Iterator[Explanation]:
        same = [_same(side, quantity, source, (0, 0)) for _, side in evidence.sides]
        for (label, side), mine, other in zip(evidence.sides, same, reversed(same), strict=True):
            # As long as the policy is the reference, every log prob is the reference's: later steps decide.
            untrained = side.step == min(side.side.steps()) and _same(side, "log_probs", "ref_log_probs", (0, 0))
            later = _later(side, quantity, source)
            if mine and other is False and False not in later and (not untrained or True in later):
                made = _taken(evidence, label, quantity, source)
                said = f"{label}'s {quantity} are those of {text}"
                yield Explanation(id, said, parameters={"side": label}, recomputed=made)

    return hypothesis


def _taken(evidence: Evidence, label: str, quantity: str, source: str) -> Recomputed | None:
    """The other side's values, this side's, and what this side would have taken; None where tokens are others."""
    mine = "AB".index(label)
    rows = []
    for pair in evidence.now:
        own, right = pair[mine].trained(quantity, source), pair[1 - mine].trained(quantity)
        if own is not None and right is not None and len(right[0]) == len(own[0]):
            rows.append((right[0], own[0], own[1]))
    given, recorded, made = ([row[place].astype(np.float64) for row in rows] for place in (0, 1, 2))
    return Recomputed(np.concatenate(given), np.concatenate(recorded), np.concatenate(made)) if rows else None


def _later(side: SideStep, quantity: str, source: str) -> list[bool | None]:
    """Whether two quantities that agree at a step do so at the next ones: if not, one is not taken from the other."""
    later = sorted(step for step in side.side.steps("old_log_probs") if step > side.step)[:2]
    return [_same(SideStep(side.side, step), quantity, source, (0, 0)) for step in later]


def of_rollout(evidence: Evidence) -> Iterator[Explanation]:
    """One side's old log probs are the rollout's, bit for bit, in all samples or in some; else they are its trainer's,
    as all of the other side's are."""
    for label, right, wrong in evidence.directions:
        sides = (evidence.a, evidence.b)
        names = ("rollout_log_probs", "old_log_probs", "log_probs")
        rows = [found for sample in sides[wrong].samples_at((0, 0)).values() if (found := sample.trained(*names))]
        odd = [found for found in rows if not agree(found[1].astype(float), found[2].astype(float), contexts.NOISE)]
        # A few that agree bit for bit may do so because nothing was trained yet.
        few = f" in {len(odd)} of {len(rows)} samples" if len(odd) < len(rows) else ""
        copied = len(odd) >= _FEWEST_COPIED and all(np.array_equal(found[0], found[1]) for found in odd)
        if copied and _same(sides[right], "old_log_probs", "log_probs", (0, 0)):
            text = f"{label}'s old log probs are those of the rollout, bit for bit{few}"
            text += "; the other side's are its trainer's"
            made = _taken(evidence, label, "old_log_probs", "rollout_log_probs")
            yield Explanation("of-rollout", text, parameters={"side": label}, recomputed=None if few else made)


def _same(side: SideStep, first: str, second: str, update: tuple[int, int]) -> bool | None:
    """Whether two quantities of one side agree at one optimizer step; None when not recorded."""
    rows = [found for sample in side.samples_at(update).values() if (found := sample.trained(first, second))]
    if not rows:
        return None
    return all(agree(one.astype(float), other.astype(float), contexts.NOISE) for one, other, _ in rows)


def reference_is_policy(evidence: Evidence) -> Iterator[Explanation]:
    """The reference model follows the policy on one side: their log probs agree after updates too."""
    same: list[dict[int, bool]] = []
    for _, side in evidence.sides:
        found: dict[int, bool] = {}
        for item in side.micros:
            gap = _masked_gap(item, "forward_data", "ref_log_probs")
            if gap is not None:
                found[item.rank] = found.get(item.rank, True) and gap <= contexts.NOISE
        same.append(found)
    for (label, _), mine, other in zip(evidence.sides, same, reversed(same), strict=True):
        ranks = [rank for rank, agrees in mine.items() if agrees]
        if ranks and not any(other.values()) and other:
            where = "" if len(ranks) == len(mine) else f" on rank {', '.join(map(str, ranks))}"
            text = f"{label}'s reference log probs are its policy's in every pass{where}: the reference changes too"
            yield Explanation("reference-is-policy", text, parameters={"side": label, "ranks": ranks})


def ratio_always_one(evidence: Evidence) -> Iterator[Explanation]:
    """The loss uses the log probs of its own pass as the old ones, on one side only."""
    gaps: list[dict[UpdateInStep, float]] = []
    for _, side in evidence.sides:
        found: dict[UpdateInStep, float] = {}
        for item in side.micros:
            gap = _masked_gap(item, "is_loss_debug", "old_log_probs")
            if gap is not None:
                found[item.update] = max(found.get(item.update, 0.0), gap)
        gaps.append(found)
    for (label, _), mine, other in zip(evidence.sides, gaps, reversed(gaps), strict=True):
        # In the first optimizer step of a step the ratio is 1 without a fault.
        later = sorted(mine)[1:]
        ones = [update for update in later if mine[update] <= _NOISE < other.get(update, 0.0)]
        if not ones:
            continue
        facts = {"side": label, "updates": ones}
        if max(mine.values()) <= _NOISE:
            text = f"{label}'s old log probs are those of the same pass, in every pass: its ratio is always 1"
            yield Explanation("ratio-always-one", text, parameters=facts)
        else:
            where = "; ".join(f"epoch {epoch}, mini-batch {mini}" for epoch, mini in ones)
            text = f"{label}'s old log probs are those of the same pass at {where}: they were recomputed there"
            yield Explanation("old-log-probs-renewed", text, parameters=facts)


def _masked_gap(item: MicroPass, kind: str, other: str) -> float | None:
    """The largest gap of log probs to another field over trained tokens of a pass; None when not recorded."""
    b = item.array(kind, other)
    a = None if b is None else item.array(kind, "log_probs")
    mask = None if a is None else mask_of(item)
    if a is None or b is None or a.shape != b.shape or mask is None or mask.shape != a.shape:
        return None
    return largest((a - b)[mask])
