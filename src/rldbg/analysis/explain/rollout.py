"""Hypotheses about how the rollout sampled its tokens: seeds, weights, temperature, filters, limits."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from rldbg.analysis.explain import contexts
from rldbg.analysis.explain.evidence import Evidence, Explanation, fit_factor, largest
from rldbg.analysis.explain.passes import SideStep
from rldbg.analysis.explain.subsets import Gap, confined_to, turn_of
from rldbg.analysis.samples import common_prefix
from rldbg.analysis.tokens import SampleTokens

# Fewer samples may disagree by accident.
_FEWEST_SAMPLES = 3
_SAME = 1e-3
_ROUNDED = 16 * 2.0**-8
_FEWEST_CONTEXTS = 2
# Standard deviations beyond which a count is no accident; of sampled tokens, how many must agree on a direction.
_SIGMAS = 3.0
_FEWEST_CHOICES = 5
_MOSTLY = 0.75


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
    name = trainer_name(behind)
    gap = None if name is None else _gap(behind, name)
    # Weights of a whole step ago give other log probs than the policy's, unless nothing was learned in between.
    if gap is not None and largest(gap) <= contexts.NOISE and _has_learned(behind):
        text = (
            f"{label}'s tokens are labelled with a version {max(lag_a, lag_b)} steps behind, but their log probs are "
            "those of the current policy: the label is wrong, not the weights"
        )
        yield Explanation("version-label", text, parameters=facts)
        return
    text = f"the rollout's weights lag the policy by {lag_a} steps in A and {lag_b} in B: weights were not synced"
    yield Explanation("policy-version", text, parameters=facts)


def _has_learned(side: SideStep) -> bool:
    """Whether the policy has moved away from the reference, as far as that is recorded."""
    samples = side.samples_at((0, 0)).values()
    found = [values for sample in samples if (values := sample.trained("log_probs", "ref_log_probs"))]
    return any(largest(new - reference) > contexts.NOISE for new, reference, _ in found)


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
                f"policy's{where}: the engine still has the weights it started with"
            )
            yield Explanation("weights-not-synced", text, largest(reference), contexts.NOISE, {"side": label})


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
        yield Explanation("temperature", text, residual, contexts.NOISE * 5, facts, share=0.99)


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
                f"{label}'s rollout log probs are renormalised over a part of the vocabulary (top-k or top-p): up to "
                f"{mine[1]:.3g} above the trainer's, by the same amount for all tokens of a context{mine[3]}"
            )
            yield Explanation("sampling-filter", text, mine[2], contexts.NOISE, {"side": label, "largest": mine[1]})


def other_choice(evidence: Evidence) -> Iterator[Explanation]:
    """Different tokens sampled from the same distribution: by other random numbers, or by another rule.

    With independent random numbers a sample of A occurs again in B with its own probability. If far more are equal than
    that, the random numbers are the same ones, and what chooses tokens by them is not.
    """
    turns = [turn for a, b in evidence.samples if (turn := _turn_of_a_draw(a, b))]
    gaps = _shared_gaps(evidence)
    if len(turns) < 2 or len(gaps) < 2 or max(gaps) > contexts.NOISE:
        return
    equal, expected, spread = _repeated_by_chance(evidence, min(turns))
    facts = {"samples_that_differ": len(turns), "equal": equal, "equal_by_chance": expected}
    where = f", from turn {min(turns)} on" if min(turns) > 1 else ""
    if equal <= expected + _SIGMAS * spread + 1:
        text = (
            f"{len(turns)} of {len(evidence.samples)} samples have different tokens{where}, sampled from the same "
            f"probabilities (equal at all {len(gaps)} tokens both sampled): different random numbers, "
            "by another seed or by how each sample's are derived from it"
        )
        share = min(len(turns) / len(evidence.samples) + 0.5, 1)
        yield Explanation("seed", text, max(gaps), contexts.NOISE, facts, share)
        return
    steps = np.asarray([step for a, b in evidence.samples if (step := _likelier(a, b)) is not None])
    label, likelier = ("B", steps > 0) if (steps > 0).sum() >= (steps < 0).sum() else ("A", steps < 0)
    text = (
        f"{equal} samples are equal where different random numbers would leave {expected:.0f}, and the log probs of "
        f"all tokens both sampled are the same: the same random numbers choose other tokens{where}"
    )
    # Tokens outside the part that is sampled from are the less likely ones.
    if len(steps) >= _FEWEST_CHOICES and likelier.mean() >= _MOSTLY:
        text += (
            f". Those of {label} are the likelier ones: it samples from a part of the vocabulary (top-k, top-p, min-p)"
        )
        yield Explanation("truncated-support", text, parameters={**facts, "side": label})
    else:
        yield Explanation("sampling-rule", text, parameters=facts)


def _repeated_by_chance(evidence: Evidence, turn: int) -> tuple[int, float, float]:
    """How many samples are equal, how many would be by chance from this turn on, and the standard deviation."""
    chances, equal = [], 0
    for a, b in evidence.samples:
        values = a.trained("rollout_log_probs")
        if values is not None:
            later = turn_of(a.loss_mask)[values[1]] >= turn
            chances.append(float(np.exp(values[0][later].astype(np.float64).sum())))
            equal += np.array_equal(a.tokens, b.tokens)
    chance = np.asarray(chances)
    return equal, float(chance.sum()), float(np.sqrt((chance * (1 - chance)).sum()))


def _likelier(a: SampleTokens, b: SampleTokens) -> float | None:
    """By how much B's log prob is above A's at the first token that differs; None where none does."""
    if not _turn_of_a_draw(a, b):
        return None
    place = common_prefix(a.tokens, b.tokens)
    one, other = (sample.quantities["rollout_log_probs"] for sample in (a, b))
    return float(other.values[place - other.start]) - float(one.values[place - one.start])


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
    for (label, _), mine, other in zip(evidence.sides, gaps, reversed(gaps), strict=True):
        if mine is None or other is None or len(mine) < 16:
            continue
        spread = float(mine.std())
        unbiased = abs(float(mine.mean())) <= 4 * spread / np.sqrt(len(mine)) and has_both_signs(mine)
        if unbiased and contexts.NOISE < largest(mine) <= _ROUNDED and largest(other) <= contexts.NOISE:
            text = (
                f"{label}'s rollout log probs scatter around its trainer's, without bias and by {spread:.2g}: "
                "as weights or logits of lower precision make them do"
            )
            yield Explanation("precision", text, largest(mine), _ROUNDED, {"side": label, "scatter": spread}, 0.9)


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


def greedy(evidence: Evidence) -> Iterator[Explanation]:
    """One side never sampled a token where the other sampled a more likely one in the same context."""
    for label, right, wrong in evidence.directions:
        sides = (evidence.a, evidence.b)
        if not _only_copies(sides[wrong]) or _only_copies(sides[right]):
            continue
        drawn, known = (
            contexts.within(sides[n].samples.values(), "old_log_probs", "old_log_probs") for n in (wrong, right)
        )
        pairs = [
            (next(iter(mine.values()))[0], value)
            for context, mine in drawn.items()
            for token, (value, _) in known.get(context, {}).items()
            if token not in mine
        ]
        if len(pairs) >= 4 and all(mine >= theirs - contexts.NOISE for mine, theirs in pairs):
            text = (
                f"{label} always has the most likely token: none of {len(pairs)} others sampled in the same contexts "
                "is more likely. Its engine is greedy"
            )
            yield Explanation("greedy", text, parameters={"side": label, "contexts": len(pairs)})


def group_shares_seed(evidence: Evidence) -> Iterator[Explanation]:
    """On one side all samples of every group are the same."""
    copies = [_only_copies(side) for _, side in evidence.sides]
    for (label, _), mine, other in zip(evidence.sides, copies, reversed(copies), strict=True):
        if mine and not other:
            text = f"in {label} all samples of a group are equal: they were generated with the same random numbers"
            yield Explanation("group-shares-seed", text, parameters={"side": label})


def _only_copies(side: SideStep) -> bool:
    groups: dict[str, set[bytes]] = defaultdict(set)
    sizes: dict[str, int] = defaultdict(int)
    for sample in side.samples.values():
        groups[sample.sample.group_id].add(np.asarray(sample.tokens, dtype="<i8").tobytes())
        sizes[sample.sample.group_id] += 1
    several = [name for name, size in sizes.items() if size > 1]
    return bool(several) and all(len(groups[name]) == 1 for name in several)


def _shared_gaps(evidence: Evidence) -> list[float]:
    """How far both sides' log probs of a token are apart, wherever both sampled it in the same context."""
    drawn = contexts.between(evidence.samples, "rollout_log_probs").values()
    return [abs(one - other) for tokens in drawn for one, other in tokens.values()]


def _turn_of_a_draw(a: SampleTokens, b: SampleTokens) -> int:
    """The turn in which two samples first differ, if by a token that both sampled with a recorded probability; or 0."""
    place = common_prefix(a.tokens, b.tokens)
    values = [sample.quantities.get("rollout_log_probs") for sample in (a, b)]
    if place >= min(len(a.tokens), len(b.tokens)) or values[0] is None or values[1] is None:
        return 0
    own = [float(item.values[place - item.start]) for item in values if item is not None]
    drawn = a.loss_mask[place] and b.loss_mask[place] and abs(own[0] - own[1]) > 1e-6
    return int(turn_of(a.loss_mask)[place]) if drawn else 0


def other_start(evidence: Evidence) -> Iterator[Explanation]:
    """Parameters of the same shape and size that are unrelated: initialised with a different seed."""
    first = [side.updates("param") for _, side in evidence.sides]
    if not first[0] or not first[1]:
        return
    tensors = [side.tensors_of("param", places[0]) for (_, side), places in zip(evidence.sides, first, strict=True)]
    names = [name for name in tensors[0] if name in tensors[1] and tensors[0][name].shape == tensors[1][name].shape]
    # Norms and biases start alike under any seed.
    wide = [name for name in names if tensors[0][name].ndim > 1]
    if not wide:
        return
    alike = [float(np.corrcoef(tensors[0][name].ravel(), tensors[1][name].ravel())[0, 1]) for name in wide]
    if max(alike) < 0.5:
        text = f"parameters are unrelated from the start (correlation at most {max(alike):.2g}): a different seed"
        yield Explanation("seed", text, parameters={"correlation": max(alike)})


HYPOTHESES = {
    "trajectory": (
        policy_version,
        weights_not_synced,
        temperature,
        sampling_filter,
        greedy,
        group_shares_seed,
        other_start,
        low_precision,
        mismatch,
        other_choice,
    ),
}
