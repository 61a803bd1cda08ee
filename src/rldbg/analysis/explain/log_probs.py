"""Hypotheses about log probs and entropy: shifted, filled, rounded, of a different temperature, sample or model."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rldbg.analysis.explain import contexts
from rldbg.analysis.explain.evidence import (
    Evidence,
    Explanation,
    Hypothesis,
    Recomputed,
    applied,
    fit_factor,
    largest,
    round_to,
)
from rldbg.analysis.explain.other_passes import of_rollout, ratio_always_one, reference_is_policy, taken_from
from rldbg.analysis.explain.permuted import permuted_rows
from rldbg.analysis.explain.wherever import wherever

_NOISE = 2e-5


def differs(evidence: Evidence, quantity: str) -> bool:
    """Whether both sides have a quantity and it differs by more than noise."""
    found = evidence.tokens(quantity)
    return found is not None and largest(found[0] - found[1]) > _NOISE


def shifted(quantity: str) -> Hypothesis:
    """One side's values are one token too early or too late."""

    def hypothesis(evidence: Evidence) -> Iterator[Explanation]:
        if not differs(evidence, quantity):
            return
        for offset, text in ((1, "one position later"), (-1, "one position earlier")):
            parts = []
            for one, other in evidence.with_equal_tokens:
                a, b = one.quantities.get(quantity), other.quantities.get(quantity)
                if a is None or b is None or a.start != b.start:
                    continue
                trained = np.flatnonzero(other.loss_mask) - b.start
                places = trained[
                    (trained - offset >= 0) & (trained - offset < len(a.values)) & (trained < len(b.values))
                ]
                # At the edge of a run of trained tokens the neighbour has no value of its own.
                places = places[one.loss_mask[places - offset + b.start] != 0]
                both = a.values[places], b.values[places], a.values[places - offset]
                parts.append(np.asarray(both, dtype=np.float64))
            if sum(part.shape[1] for part in parts) > 8:
                said = f"B's {quantity} are A's shifted {text}"
                given, recorded, made = np.concatenate(parts, 1)
                yield applied("shift-by-one", said, given, recorded, made, _NOISE, {"shift": offset})

    return hypothesis


def zero_filled(quantity: str) -> Hypothesis:
    """Values that one side lacks were replaced by 0."""

    def hypothesis(evidence: Evidence) -> Iterator[Explanation]:
        found = evidence.tokens(quantity)
        if found is None:
            return
        for label, full, holed in (("B", found[0], found[1]), ("A", found[1], found[0])):
            holes = (holed == 0) & (full != 0)
            if holes.any() and largest(full[holes]) > _NOISE:
                facts = {"side": label, "tokens": int(holes.sum())}
                text = f"{label}'s {quantity} are 0 at {int(holes.sum())} tokens where the other side has values"
                yield applied("zero-filled", text, full, holed, np.where(holes, 0.0, full), _NOISE, facts)

    return hypothesis


def rounded(quantity: str) -> Hypothesis:
    """One side holds the other's values after rounding to a coarser dtype."""

    def hypothesis(evidence: Evidence) -> Iterator[Explanation]:
        found = evidence.tokens(quantity)
        if found is None:
            return
        for label, fine, coarse in (("B", found[0], found[1]), ("A", found[1], found[0])):
            for dtype, bits in (("bfloat16", 8), ("float16", 11)):
                if not (np.isfinite(coarse).all() and np.array_equal(coarse, round_to(coarse, bits))) or np.array_equal(
                    fine, round_to(fine, bits)
                ):
                    continue
                # A sum of values computed coarsely is a few roundings off, in units of the largest logit (about 16).
                noise = 16 * 2.0 ** (1 - bits)
                residual = largest(coarse - fine)
                if residual <= noise:
                    text = f"{label}'s {quantity} are rounded to {dtype}"
                    facts, made = {"side": label, "dtype": dtype}, Recomputed(fine, coarse, round_to(fine, bits))
                    yield Explanation("precision", text, residual, noise, facts, recomputed=made)
                    break

    return hypothesis


def temperature(quantity: str) -> Hypothesis:
    """Log probs of logits divided by a different temperature."""

    def hypothesis(evidence: Evidence) -> Iterator[Explanation]:
        if not differs(evidence, quantity):
            return
        found = evidence.tokens(quantity)
        if found is not None and largest(found[1] - fit_factor(*found) * found[0]) <= 5 * _NOISE:
            return  # a different unit, not a different distribution
        fit = contexts.fit_temperature(contexts.between(evidence.now, quantity))
        if fit.fits and abs(fit.factor - 1) > 0.01:
            # The factor is A's inverse temperature in units of B's.
            text = f"B's {quantity} are those of logits divided by {fit.factor:.4g} times A's temperature"
            facts = {"temperature_ratio": fit.factor, "pairs": fit.pairs}
            noise = contexts.NOISE * max(1.0, fit.factor)
            made = fit.recomputed("B: log p between tokens of a context", "A: log p between tokens of a context")
            yield Explanation("temperature", text, fit.residual, noise, facts, share=0.99, recomputed=made)
        elif not fit.fits:
            yield from _by_entropy(evidence, quantity)

    return hypothesis


def _by_entropy(evidence: Evidence, quantity: str) -> Iterator[Explanation]:
    """Without shared contexts: with inverse temperature β, d log p / dβ = (log p + entropy) / β.

    The trapezoid rule over both sides predicts the difference to third order in the change of β.
    """
    parts: list[list[np.ndarray]] = [[], [], [], []]
    for one, other in evidence.now:
        a, b = one.trained(quantity, "entropy"), other.trained(quantity, "entropy")
        if a is not None and b is not None and len(a[0]) == len(b[0]):
            for part, values in zip(parts, (*a[:2], *b[:2]), strict=True):
                part.append(values)
    if not parts[0]:
        return
    log_a, entropy_a, log_b, entropy_b = (np.concatenate(part).astype(np.float64) for part in parts)
    gap = log_b - log_a
    spread = float(np.sqrt((gap**2).mean()))
    if len(gap) < 8 or spread <= _NOISE or largest(entropy_a - entropy_b) <= _NOISE:
        return
    betas = np.exp(np.linspace(np.log(0.2), np.log(5.0), 2001))[:, None]
    predicted = (betas - 1) / 2 * ((log_a + entropy_a) + (log_b + entropy_b) / betas)
    errors = np.sqrt(((gap - predicted) ** 2).mean(1))
    best, left = float(betas[int(np.argmin(errors)), 0]), float(errors.min())
    if abs(best - 1) > 0.02:
        text = f"B's {quantity} are those of logits divided by {1 / best:.3g} times A's temperature"
        facts = {"temperature_ratio": 1 / best}
        made = Recomputed(log_a, log_b, log_a + predicted[int(np.argmin(errors))])
        share = max(0.0, 1 - left / spread)
        yield Explanation("temperature", text, left, 0.1 * spread, facts, share, recomputed=made)


def softmax_twice(quantity: str) -> Hypothesis:
    """One side's log probs treat probabilities as logits."""

    def hypothesis(evidence: Evidence) -> Iterator[Explanation]:
        if not differs(evidence, quantity):
            return
        draws = contexts.between(evidence.now, quantity)
        turned = {context: {token: pair[::-1] for token, pair in drawn.items()} for context, drawn in draws.items()}
        for label, known in (("B", draws), ("A", turned)):
            before, after = contexts.softmax_of_probabilities(known)
            if len(before) >= 4 and largest(before) > _NOISE:
                text = f"{label}'s {quantity} are normalised twice: a softmax of probabilities, not of logits"
                nothing = np.zeros_like(before)
                yield applied(
                    "softmax-twice", text, nothing, before, before - after, contexts.NOISE, {"side": label}, 0.995
                )

    return hypothesis


def scaled(quantity: str) -> Hypothesis:
    """One factor for all values."""

    def hypothesis(evidence: Evidence) -> Iterator[Explanation]:
        found = evidence.tokens(quantity)
        if found is None or not differs(evidence, quantity):
            return
        a, b = found
        factor = fit_factor(a, b)
        noise = _NOISE * max(1.0, abs(factor)) * 5
        if abs(factor - 1) > 1e-3:
            text = f"B's {quantity} are A's times {factor:.6g}"
            yield applied("scaled", text, a, b, factor * a, noise, {"factor": factor})

    return hypothesis


def offset(quantity: str) -> Hypothesis:
    """One number added to all values."""

    def hypothesis(evidence: Evidence) -> Iterator[Explanation]:
        found = evidence.tokens(quantity)
        if found is None or not differs(evidence, quantity):
            return
        gap = found[1] - found[0]
        middle = float(np.median(gap))
        if len(gap) > 3 and abs(middle) > 5 * _NOISE:
            text = f"B's {quantity} are A's plus {middle:.6g}"
            yield applied("offset", text, *found, found[0] + middle, 5 * _NOISE, {"offset": middle})

    return hypothesis


def bounded(quantity: str) -> Hypothesis:
    """One side's values are clipped at a bound."""

    def hypothesis(evidence: Evidence) -> Iterator[Explanation]:
        found = evidence.tokens(quantity)
        if found is None or not differs(evidence, quantity):
            return
        for label, full, cut in (("B", found[0], found[1]), ("A", found[1], found[0])):
            bounds = float(cut.min()), float(cut.max())
            if len(np.unique(cut)) > 2 and (full.min() < bounds[0] - _NOISE or full.max() > bounds[1] + _NOISE):
                sides = [f"below {bounds[0]:.6g}"] if full.min() < bounds[0] - _NOISE else []
                sides += [f"above {bounds[1]:.6g}"] if full.max() > bounds[1] + _NOISE else []
                text = f"{label}'s {quantity} are cut off {' and '.join(sides)}"
                facts = {"side": label, "bounds": list(bounds)}
                yield applied("clipped", text, full, cut, np.clip(full, *bounds), _NOISE, facts)

    return hypothesis


def permuted(quantity: str) -> Hypothesis:
    """Values assigned to the wrong samples."""

    def hypothesis(evidence: Evidence) -> Iterator[Explanation]:
        a, b = [], []
        for one, other in evidence.with_equal_tokens:
            mine, theirs = one.quantities.get(quantity), other.quantities.get(quantity)
            if mine is not None and theirs is not None:
                a.append(mine.values.astype(np.float64))
                b.append(theirs.values.astype(np.float64))
        moved = permuted_rows(a, b, _NOISE) if len(a) > 1 else 0
        if moved > 1:
            text = f"{moved} rows of B's {quantity} are those of different samples of A"
            yield Explanation("rows-permuted", text, parameters={"rows": moved})

    return hypothesis


def other_filter(quantity: str) -> Hypothesis:
    """One side's log probs are normalised over fewer tokens: higher by one amount for all tokens of a context."""

    def hypothesis(evidence: Evidence) -> Iterator[Explanation]:
        if not differs(evidence, quantity):
            return
        draws = contexts.between(evidence.now, quantity)
        for label, sign in (("B", -1.0), ("A", 1.0)):
            parts = [sign * part for part in contexts.offsets(draws)]
            several = [part for part in parts if len(part) > 1]
            if len(several) < 4 or min(float(part.min()) for part in parts) < -contexts.NOISE:
                continue
            spread = max(float(np.ptp(part)) for part in several)
            middles = [float(part.mean()) for part in several]
            if max(middles) - min(middles) > 50 * contexts.NOISE:
                text = f"{label}'s {quantity} are normalised over a part of the vocabulary (top-k or top-p)"
                yield Explanation("sampling-filter", text, spread, contexts.NOISE, {"side": label})

    return hypothesis


def reference_differs(evidence: Evidence) -> Iterator[Explanation]:
    """Of all log probs only those of the reference differ: it is a different model."""
    known = {name: evidence.tokens(name) for name in ("ref_log_probs", "log_probs", "entropy")}
    if known["ref_log_probs"] is None or known["log_probs"] is None or not differs(evidence, "ref_log_probs"):
        return
    if not differs(evidence, "log_probs") and not differs(evidence, "entropy"):
        text = (
            "only the reference's log probs differ, those of the policy agree: a different reference model, or its log "
            "probs at the wrong positions"
        )
        yield Explanation("reference-differs", text)


def _all(quantity: str) -> tuple[Hypothesis, ...]:
    return (
        *(wherever(rule(quantity), quantity) for rule in (zero_filled, shifted, rounded, scaled, offset, bounded)),
        *(wherever(rule(quantity), quantity) for rule in (temperature, softmax_twice, other_filter)),
        permuted(quantity),
    )


HYPOTHESES = {
    "trajectory": (
        *(
            wherever(rule("rollout_log_probs"), "rollout_log_probs")
            for rule in (zero_filled, shifted, rounded, scaled, offset, bounded)
        ),
        permuted("rollout_log_probs"),
    ),
    "old_log_probs": (
        ratio_always_one,
        taken_from("old_log_probs", "ref_log_probs", "of-reference", "its reference model"),
        of_rollout,
        *_all("old_log_probs"),
        contexts.scatter,
    ),
    "forward": (
        reference_is_policy,
        taken_from("ref_log_probs", "old_log_probs", "reference-is-old-policy", "the policy before the step"),
        taken_from("ref_log_probs", "rollout_log_probs", "reference-is-rollout", "the rollout"),
        *_all("log_probs"),
        *_all("ref_log_probs"),
        reference_differs,
        contexts.scatter,
        scaled("entropy"),
        rounded("entropy"),
    ),
}
