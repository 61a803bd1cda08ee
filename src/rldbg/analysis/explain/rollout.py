"""Hypotheses about the log probs of the rollout: weights, temperature, filters, precision."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from rldbg.analysis.explain import contexts
from rldbg.analysis.explain.evidence import Evidence, Explanation, Recomputed, fit_factor, largest
from rldbg.analysis.explain.passes import SideStep
from rldbg.analysis.explain.subsets import Gap, confined_to
from rldbg.analysis.tokens import SampleTokens

# Fewer samples may disagree by accident.
_FEWEST_SAMPLES = 3
_SAME = 1e-3
_ROUNDED = 16 * 2.0**-8
_FEWEST_CONTEXTS = 2
_FEWEST_ODD = 8
# What a step as large as those of a high learning rate leaves of a straight line, and shares that are one of its ends.
_CURVED, _AT_ENDS, _FEWEST_BETWEEN = 0.2, 0.05, 16


def trainer_name(side: SideStep) -> str | None:
    """The quantity with the trainer's own log probs of the rollout's tokens before any update."""
    gaps = _gap(side, "old_log_probs")
    # Old log probs copied from the rollout say nothing about the trainer.
    if gaps is not None and largest(gaps) > 0:
        return "old_log_probs"
    return "log_probs" if _gap(side, "log_probs") is not None else None


def _gap(side: SideStep, name: str) -> np.ndarray | None:
    found = [values for sample in _untouched(side, name) if (values := sample.trained("rollout_log_probs", name))]
    return np.concatenate([rollout - trainer for rollout, trainer, _ in found]) if found else None


def _untouched(side: SideStep, name: str) -> list[SampleTokens]:
    """Samples whose quantity was computed before the first optimizer step of the step."""
    samples = side.samples if name == "old_log_probs" else side.samples_at((0, 0))
    return list(samples.values())


def policy_version(evidence: Evidence) -> Iterator[Explanation]:
    """One side's tokens come from older weights, or only say so."""
    lag_a, lag_b = (_lag(side) for _, side in evidence.sides)
    if lag_a is None or lag_b is None or lag_a == lag_b:
        return
    facts = {"lag_a": lag_a, "lag_b": lag_b}
    label, behind = evidence.sides[int(lag_b > lag_a)]
    gaps = [None if (name := trainer_name(side)) is None else _gap(side, name) for _, side in evidence.sides]
    own, other = gaps[int(lag_b > lag_a)], gaps[int(lag_b <= lag_a)]
    moved = _moved_in_a_step(behind)
    text = f"tokens are labelled {lag_a} steps behind the policy in A and {lag_b} in B: old weights, or wrong labels"
    unclear = Explanation("version-differs", text, parameters=facts, share=0.5)
    if own is None or other is None:
        yield unclear
    elif _size(own) > _CLEARLY * max(_size(other), contexts.NOISE / _CLEARLY):
        text = f"the rollout's weights lag the policy by {lag_a} steps in A and {lag_b} in B: weights were not synced"
        yield Explanation("policy-version", text, parameters=facts)
    # Weights of a step ago give log probs as far from the policy's as a step moves them.
    elif moved > _CLEARLY * max(_size(own), contexts.NOISE / _CLEARLY):
        text = (
            f"{label}'s tokens are labelled with a version {max(lag_a, lag_b)} steps behind, but their log probs are "
            "those of the current policy: the label is wrong, not the weights"
        )
        yield Explanation("version-label", text, parameters=facts)
    else:
        yield unclear


_CLEARLY = 4.0


def _size(gap: np.ndarray) -> float:
    """What most tokens are apart by: a few that are far off say nothing of weights."""
    return float(np.mean(np.abs(gap))) if np.isfinite(gap).all() else math.inf


def _moved_in_a_step(side: SideStep) -> float:
    """How far the updates of a step move log probs, or all updates so far, as the distance from the reference says."""
    last = max((item.update for item in side.micros), default=(0, 0))
    moves = [0.0]
    for update, pair in ((last, ("log_probs", "old_log_probs")), ((0, 0), ("log_probs", "ref_log_probs"))):
        found = [rows for sample in side.samples_at(update).values() if (rows := sample.trained(*pair))]
        if found:
            moves.append(_size(np.concatenate([one.astype(np.float64) - other for one, other, _ in found])))
    return max(moves)


def _lag(side: SideStep) -> int | None:
    lag: int | None = None
    for record in side.side.records("trajectory", side.step):
        if "policy_versions" in record.fields and record.policy_version is not None:
            versions = record.array("policy_versions")
            made = versions[versions >= 0]
            if made.size:
                lag = max(lag or 0, int(record.policy_version - made.min()))
    return lag


def weights_not_synced(evidence: Evidence) -> Iterator[Explanation]:
    """The rollout's log probs are those of the reference (the starting weights), not those of the policy."""
    both = evidence.tokens("rollout_log_probs")
    if both is not None and both[0].size and largest(both[0] - both[1]) <= contexts.NOISE:
        return  # engines that agree hold the same weights, however old those are meant to be
    for label, right, wrong in evidence.directions:
        sides = (evidence.a, evidence.b)
        name = trainer_name(sides[wrong])
        other = _gap(sides[right], trainer_name(sides[right]) or "")
        if name is None or other is None or largest(other) > _SAME:
            continue
        where, samples = narrowed(sides[wrong], name)
        found = [values for item in samples if (values := item.trained("rollout_log_probs", name, "ref_log_probs"))]
        if not found:
            continue
        own = np.concatenate([rollout - trainer for rollout, trainer, _, _ in found])
        reference = np.concatenate([rollout - model for rollout, _, model, _ in found])
        if largest(reference) <= contexts.NOISE < _SAME < largest(own):
            text = (
                f"{label}'s rollout log probs are those of the reference model, up to {largest(own):.3g} off its own "
                f"policy's{where}: {_since_when(sides[wrong])}"
            )
            parts = [np.concatenate([row[place] for row in found]).astype(np.float64) for place in (1, 0, 2)]
            made = Recomputed(parts[0], parts[1], parts[2], (f"{label}'s trainer", f"{label}'s rollout"))
            facts = {"side": label}
            yield Explanation("weights-not-synced", text, largest(reference), contexts.NOISE, facts, recomputed=made)


def weights_in_between(evidence: Evidence) -> Iterator[Explanation]:
    """The rollout's log probs lie between those of the reference and those of the policy, for all tokens at one share
    of the way. Log probs of weights that lie between are so to first order; those of some other tensors are not."""
    gaps = [None if (name := trainer_name(side)) is None else _gap(side, name) for _, side in evidence.sides]
    for (label, side), mine, other in zip(evidence.sides, gaps, reversed(gaps), strict=True):
        if mine is None or other is None or largest(mine) <= _SAME or largest(other) > contexts.NOISE:
            continue
        name = trainer_name(side) or ""
        rows = [v for item in _untouched(side, name) if (v := item.trained("rollout_log_probs", name, "ref_log_probs"))]
        engine, trainer, reference = (
            np.concatenate([row[place] for row in rows] or [np.empty(0)]).astype(np.float64) for place in (0, 1, 2)
        )
        share = fit_factor(reference - trainer, engine - trainer)
        made = trainer + share * (reference - trainer)
        if len(engine) < _FEWEST_BETWEEN or not _AT_ENDS < share < 1 - _AT_ENDS:
            continue
        left = float(np.linalg.norm(engine - made) / np.linalg.norm(engine - trainer))
        text = (
            f"{label}'s rollout log probs lie between those of its policy and those of the reference model, at "
            f"{share:.2g} of the way for all tokens: the engine has averaged weights, weights from before the last "
            "updates, or some tensors that were not sent"
        )
        shown = Recomputed(trainer, engine, made, (f"{label}'s trainer", f"{label}'s rollout"))
        facts = {"side": label, "share": share}
        yield Explanation("weights-in-between", text, left, _CURVED, facts, recomputed=shown)


def _since_when(side: SideStep) -> str:
    """Whether the engine keeps its first weights, or takes newer ones late: the steps after this one tell."""
    for step in sorted(later for later in side.side.steps("trajectory") if later > side.step):
        after = SideStep(side.side, step)
        name = trainer_name(after) or ""
        found = [
            v for item in _untouched(after, name) if (v := item.trained("rollout_log_probs", name, "ref_log_probs"))
        ]
        rollout, trainer, reference = (
            np.concatenate([values[n] for values in found] or [np.empty(0)]) for n in (0, 1, 2)
        )
        odd = np.abs(rollout - trainer) > _SAME
        if np.count_nonzero(odd) >= _FEWEST_ODD and not (np.abs(rollout - reference)[odd] <= _SAME).any():
            return f"the engine has the weights it started with, and newer ones at step {step}: it lags behind"
    return "the engine still has the weights it started with"


def narrowed(side: SideStep, name: str) -> tuple[str, list[SampleTokens]]:
    """The samples of a side with the tokens at which rollout and trainer disagree, where these are a part of all."""
    gaps, samples = [], _untouched(side, name)
    for sample in samples:
        values = sample.trained("rollout_log_probs", name)
        if values is not None:
            apart = ~(np.abs(values[0].astype(np.float64) - values[1]) <= contexts.NOISE)
            home = side.homes.get(sample.sample) or sample.quantities[name].source
            gaps.append(Gap(sample, values[2], apart, home))
    part = confined_to(gaps)
    if part is None:
        # Some engines of several: whole samples disagree, whichever they are.
        odd = [gap.sample for gap in gaps if gap.apart.any()]
        few = _FEWEST_SAMPLES <= len(odd) <= len(gaps) - _FEWEST_SAMPLES
        return (f", in {len(odd)} of {len(gaps)} samples", odd) if few else ("", samples)
    return f", {part.text} only", [part.within(gap.sample, gap.source) for gap in gaps]


def temperature(evidence: Evidence) -> Iterator[Explanation]:
    """Rollout and trainer divide logits by different temperatures, on one side only."""
    fits, wheres = [], []
    for _, side in evidence.sides:
        name = trainer_name(side)
        where, samples = narrowed(side, name) if name else ("", [])
        if name is not None and _is_a_multiple(samples, name):
            return  # a different unit, not a different distribution
        fits.append(contexts.fit_temperature(contexts.within(samples, "rollout_log_probs", name or "")))
        wheres.append(where)
    apart = abs(fits[0].factor - fits[1].factor) > 0.01
    if apart and fits[0].fits and fits[1].fits and min(fit.factor for fit in fits) > 0.01:
        ratios = [1 / fit.factor for fit in fits]
        text = (
            f"the rollout's temperature is {ratios[0]:.4g} times the trainer's in A{wheres[0]} "
            f"and {ratios[1]:.4g} times in B{wheres[1]}"
        )
        residual = max(fit.residual for fit in fits)
        facts = {"a": ratios[0], "b": ratios[1]}
        odd = int(abs(fits[1].factor - 1) >= abs(fits[0].factor - 1))
        made = fits[odd].recomputed(
            *(f"{'AB'[odd]}'s {who}, between tokens of a context" for who in ("trainer", "rollout"))
        )
        yield Explanation("temperature", text, residual, contexts.NOISE * 5, facts, share=0.99, recomputed=made)


def _is_a_multiple(samples: list[SampleTokens], name: str) -> bool:
    found = [values for sample in samples if (values := sample.trained("rollout_log_probs", name))]
    if not found:
        return False
    rollout, trainer = (np.concatenate([values[n] for values in found]).astype(np.float64) for n in (0, 1))
    factor = fit_factor(trainer, rollout)
    return abs(factor - 1) > 1e-3 and largest(rollout - factor * trainer) <= contexts.NOISE


def sampling_filter(evidence: Evidence) -> Iterator[Explanation]:
    """One rollout's log probs are renormalised over fewer tokens: too high by one amount per context."""
    filtered = []
    for _, side in evidence.sides:
        name = trainer_name(side)
        where, samples = narrowed(side, name) if name else ("", [])
        # A log prob of exactly 0 is a missing one, not one raised by a filter.
        parts = list(contexts.offsets(contexts.within(samples, "rollout_log_probs", name or ""), skip_zeros=True))
        filtered.append((*_is_filtered(parts), where) if parts else None)
    for (label, _), mine, other in zip(evidence.sides, filtered, reversed(filtered), strict=True):
        if mine is not None and other is not None and mine[0] and not other[0]:
            text = (
                f"{label}'s rollout log probs are renormalised over a part of the vocabulary (top-k, top-p, min-p): "
                f"up to {mine[1]:.3g} above the trainer's, by the same amount for all tokens of a context{mine[3]}"
            )
            yield Explanation("sampling-filter", text, mine[2], contexts.NOISE, {"side": label, "largest": mine[1]})


def _is_filtered(parts: list[np.ndarray]) -> tuple[bool, float, float]:
    every = np.concatenate(parts)
    spread = max((float(part.max() - part.min()) for part in parts if len(part) > 1), default=float("inf"))
    known = sum(len(part) > 1 for part in parts) >= _FEWEST_CONTEXTS
    varies = every.max() - every.min() > _SAME
    is_filter = bool(known and varies and spread <= contexts.NOISE and every.min() >= -contexts.NOISE)
    return is_filter, float(every.max()), spread


def low_precision(evidence: Evidence) -> Iterator[Explanation]:
    """One rollout's log probs scatter around the trainer's as they do when weights or logits are rounded."""
    gaps = [None if (name := trainer_name(side)) is None else _gap(side, name) for _, side in evidence.sides]
    for (label, side), mine, other in zip(evidence.sides, gaps, reversed(gaps), strict=True):
        if mine is None or other is None or len(mine) < 16:
            continue
        spread = float(mine.std())
        unbiased = abs(float(mine.mean())) <= 4 * spread / np.sqrt(len(mine)) and has_both_signs(mine)
        # An engine of lower precision has it from its first weights on; weights that were not synced differ later.
        if (
            unbiased
            and not _agreed_before(side)
            and contexts.NOISE < largest(mine) <= _ROUNDED
            and largest(other) <= contexts.NOISE
        ):
            text = (
                f"{label}'s rollout log probs scatter around its trainer's, without bias and by {spread:.2g}: "
                "as weights or logits of lower precision make them do"
            )
            yield Explanation("precision", text, largest(mine), _ROUNDED, {"side": label, "scatter": spread}, 0.9)


def _agreed_before(side: SideStep) -> bool:
    """Whether engine and trainer agreed in an earlier step."""
    for step in sorted(side.side.steps("trajectory")):
        if step < side.step:
            earlier = SideStep(side.side, step)
            name = trainer_name(earlier)
            gap = None if name is None else _gap(earlier, name)
            if gap is not None and largest(gap) <= contexts.NOISE:
                return True
    return False


def has_both_signs(gaps: np.ndarray) -> bool:
    """Whether as many lie above as below, within four standard deviations of a fair coin."""
    told = gaps[np.abs(gaps) > contexts.NOISE / 10]
    return abs(int((told > 0).sum()) - int((told < 0).sum())) <= 4 * math.sqrt(len(told))


def mismatch(evidence: Evidence) -> Iterator[Explanation]:
    """Engine and trainer disagree about the same tokens on one side only: the fault lies between them."""
    gaps = [None if (name := trainer_name(side)) is None else _gap(side, name) for _, side in evidence.sides]
    for (label, side), mine, other in zip(evidence.sides, gaps, reversed(gaps), strict=True):
        if mine is not None and other is not None and largest(mine) > _SAME and largest(other) <= contexts.NOISE:
            text = (
                f"{label}'s engine and trainer disagree on the tokens they share, by up to {largest(mine):.3g}"
                f"{narrowed(side, trainer_name(side) or '')[0]}; the other side's agree: the fault lies between them"
            )
            yield Explanation("rollout-mismatch", text, parameters={"side": label, "largest": largest(mine)}, share=0.5)


def trainer_pass(evidence: Evidence) -> Iterator[Explanation]:
    """The trainer's own pass is at fault: it disagrees with its engine, and the engines of both sides agree."""
    engines = evidence.tokens("rollout_log_probs")
    if engines is None or not engines[0].size or largest(engines[0] - engines[1]) > contexts.NOISE:
        return
    for item in mismatch(evidence):
        where = item.explains.partition("by up to ")[2].partition(";")[0]
        label, odd = item.parameters["side"], item.parameters
        text = (
            f"{label}'s trainer disagrees with its engine by up to {where}; the other side's agrees, and so do the "
            "engines: the trainer's pass is given something else (positions, attention mask, temperature), or computes "
            "something else"
        )
        yield Explanation("trainer-pass", text, parameters=odd, share=0.5)


HYPOTHESES = {
    "trajectory": (
        *(policy_version, weights_not_synced, weights_in_between, temperature, sampling_filter, low_precision),
        mismatch,
    ),
    "old_log_probs": (trainer_pass,),
}
