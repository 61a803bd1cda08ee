"""The hypothesis that an engine sends tokens through other experts than its trainer."""

from __future__ import annotations

from collections.abc import Iterator

from rldbg.analysis.explain.evidence import Evidence, Explanation
from rldbg.analysis.routes import RouteAgreement, route_agreement

# Fewer tokens than this may change their expert by rounding.
_EQUAL = 0.999
_SAME_WEIGHTS = 1e-3


def routing(evidence: Evidence) -> Iterator[Explanation]:
    """On one side engine and trainer choose the same experts with the same weights; on the other they do not."""
    found = [route_agreement(side.side, evidence.step) for _, side in evidence.sides]
    for (label, _), mine, other in zip(evidence.sides, found, reversed(found), strict=True):
        if mine is not None and other is not None and _fault(other) is None and (fault := _fault(mine)) is not None:
            facts = {"side": label, "agreement": mine.sets.tolist(), "layer": mine.first_layer}
            yield Explanation(fault[0], f"{label}'s engine {fault[1]}", parameters=facts)


def _fault(found: RouteAgreement) -> tuple[str, str] | None:
    if found.chosen[0] != found.chosen[1]:
        return "routing-top-k", f"chooses {found.chosen[0]} experts per token, its trainer {found.chosen[1]}"
    # What differs in one layer changes what all later ones see: the first says what is wrong.
    for layer, (sets, order, gap) in enumerate(zip(found.sets, found.order, found.weight_gap, strict=True)):
        if sets < _EQUAL:
            shares = ", ".join(f"{share:.1%}" for share in found.sets)
            return "routing-differs", f"does not choose its trainer's experts from layer {layer} on (equal: {shares})"
        if order < _EQUAL or gap > _SAME_WEIGHTS:
            return "routing-weights", f"weighs the same experts differently from layer {layer} on, by up to {gap:.3g}"
    return None


HYPOTHESES = {"trajectory": (routing,)}
