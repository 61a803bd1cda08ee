"""Hypotheses about how the rollout sampled its tokens: seeds, weights, temperature, filters, limits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from rldbg.analysis.explain import contexts
from rldbg.analysis.explain.evidence import Evidence, Explanation, largest
from rldbg.analysis.explain.passes import SideStep
from rldbg.analysis.samples import common_prefix
from rldbg.analysis.tokens import SampleTokens

_SAME = 1e-3
_ROUNDED = 16 * 2.0**-8


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
    """One side's tokens come from older weights."""
    lags = [_lag(side) for _, side in evidence.sides]
    if None not in lags and lags[0] != lags[1]:
        yield Explanation(
            "policy-version",
            f"the rollout's weights lag the policy by {lags[0]} steps in A and {lags[1]} in B: weights were not synced",
            parameters={"lag_a": lags[0], "lag_b": lags[1]},
        )


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
        own, reference = _policy_and_reference_gap(sides[wrong])
        other, _ = _policy_and_reference_gap(sides[right])
        if own is None or reference is None or other is None:
            continue
        if largest(reference) <= contexts.NOISE < _SAME < largest(own) and largest(other) <= _SAME:
            text = (
                f"{label}'s rollout log probs are those of the reference model, up to {largest(own):.3g} off its own "
                "policy's: the engine still has the weights it started with"
            )
            yield Explanation("weights-not-synced", text, largest(reference), contexts.NOISE, {"side": label})


def _policy_and_reference_gap(side: SideStep) -> tuple[np.ndarray | None, np.ndarray | None]:
    name = trainer_name(side)
    return (None if name is None else _gap(side, name)), _gap(side, "ref_log_probs")


def temperature(evidence: Evidence) -> Iterator[Explanation]:
    """Rollout and trainer divide logits by different temperatures, on one side only."""
    fits = []
    for _, side in evidence.sides:
        name = trainer_name(side)
        fits.append(
            contexts.fit_temperature(
                contexts.within(_untouched(side, name) if name else (), "rollout_log_probs", name or "")
            )
        )
    apart = abs(fits[0].factor - fits[1].factor) > 0.01
    if apart and fits[0].fits and fits[1].fits and min(fit.factor for fit in fits) > 0.01:
        ratios = [1 / fit.factor for fit in fits]
        text = f"the rollout's temperature is {ratios[0]:.4g} times the trainer's in A and {ratios[1]:.4g} times in B"
        residual = max(fit.residual for fit in fits)
        facts = {"a": ratios[0], "b": ratios[1]}
        yield Explanation("temperature", text, residual, contexts.NOISE * 5, facts, share=0.99)


def sampling_filter(evidence: Evidence) -> Iterator[Explanation]:
    """One rollout's log probs are renormalised over fewer tokens: too high by one amount per context."""
    filtered = []
    for _, side in evidence.sides:
        name = trainer_name(side)
        samples = _untouched(side, name) if name else []
        # A log prob of exactly 0 is a missing one, not one raised by a filter.
        parts = list(contexts.offsets(contexts.within(samples, "rollout_log_probs", name or ""), skip_zeros=True))
        filtered.append(_is_filtered(parts) if parts else None)
    for (label, _), mine, other in zip(evidence.sides, filtered, reversed(filtered), strict=True):
        if mine is not None and other is not None and mine[0] and not other[0]:
            text = (
                f"{label}'s rollout log probs are renormalised over a part of the vocabulary (top-k or top-p): "
                f"up to {mine[1]:.3g} above the trainer's, by the same amount for all tokens of a context"
            )
            yield Explanation("sampling-filter", text, mine[2], contexts.NOISE, {"side": label, "largest": mine[1]})


def _is_filtered(parts: list[np.ndarray]) -> tuple[bool, float, float]:
    every = np.concatenate(parts)
    spread = max((float(part.max() - part.min()) for part in parts if len(part) > 1), default=float("inf"))
    known = sum(len(part) > 1 for part in parts) >= 2
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
        unbiased = abs(float(mine.mean())) <= 4 * spread / np.sqrt(len(mine))
        if unbiased and contexts.NOISE < largest(mine) <= _ROUNDED and largest(other) <= contexts.NOISE:
            text = (
                f"{label}'s rollout log probs scatter around its trainer's, without bias and by {spread:.2g}: "
                "as weights or logits of lower precision make them do"
            )
            yield Explanation("precision", text, largest(mine), _ROUNDED, {"side": label, "scatter": spread}, 0.9)


def mismatch(evidence: Evidence) -> Iterator[Explanation]:
    """Engine and trainer disagree about the same tokens on one side only: the fault lies between them."""
    gaps = [None if (name := trainer_name(side)) is None else _gap(side, name) for _, side in evidence.sides]
    for (label, _), mine, other in zip(evidence.sides, gaps, reversed(gaps), strict=True):
        if mine is not None and other is not None and largest(mine) > _SAME and largest(other) <= contexts.NOISE:
            text = (
                f"{label}'s engine and trainer disagree on the tokens they share, by up to {largest(mine):.3g}; the "
                "other side's agree: weights that were not all synced, or different code in the engine"
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


def seed(evidence: Evidence) -> Iterator[Explanation]:
    """Different tokens sampled from the same distribution."""
    differ = sum(_parts_by_a_draw(a, b) for a, b in evidence.samples)
    if differ < 2:
        return
    gaps = [
        abs(one - other)
        for drawn in contexts.between(evidence.samples, "rollout_log_probs").values()
        for one, other in drawn.values()
    ]
    if len(gaps) >= 2 and max(gaps) <= contexts.NOISE:
        text = (
            f"{differ} of {len(evidence.samples)} samples have different tokens, sampled from the same probabilities "
            f"(equal at all {len(gaps)} tokens both sampled): different random numbers, so a different seed"
        )
        share = differ / len(evidence.samples)
        yield Explanation("seed", text, max(gaps), contexts.NOISE, {"samples_that_differ": differ}, min(share + 0.5, 1))


def _parts_by_a_draw(a: SampleTokens, b: SampleTokens) -> bool:
    """Whether two samples first differ in a token that both sampled, with a recorded probability on each side."""
    place = common_prefix(a.tokens, b.tokens)
    values = [sample.quantities.get("rollout_log_probs") for sample in (a, b)]
    if place >= min(len(a.tokens), len(b.tokens)) or values[0] is None or values[1] is None:
        return False
    own = [float(item.values[place - item.start]) for item in values if item is not None]
    return bool(a.loss_mask[place] and b.loss_mask[place] and abs(own[0] - own[1]) > 1e-6)


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
        seed,
    ),
}
