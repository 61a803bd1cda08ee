"""Checks on the experts that a mixture model chooses."""

from __future__ import annotations

from collections.abc import Iterable

from rldbg.analysis.checks.base import Check, NotApplicable, StepView, Violation
from rldbg.analysis.routes import expert_load, route_agreement
from rldbg.core import Severity

# Precision alone moves some tokens to another expert where two are nearly as likely.
_AGREEING = 0.95
_WEIGHT_GAP = 0.05
_COLLAPSED = 0.98


def _agrees(view: StepView) -> Iterable[Violation]:
    found = route_agreement(view.side, view.step)
    if found is None:
        raise NotApplicable("no routing of both the engine and the trainer")
    place = f"step {view.step}"
    if found.chosen[0] != found.chosen[1]:
        text = f"the engine chooses {found.chosen[0]} experts per token, the trainer {found.chosen[1]}"
        yield Violation(place, (text,))
        return
    layers = ", ".join(f"{share:.1%}" for share in found.sets)
    if found.sets.min() < _AGREEING:
        first = next((str(sample), int(tokens[0])) for sample, tokens in found.apart.items() if len(tokens))
        yield Violation(
            f"{place} layer {found.first_layer} sample {first[0]} token {first[1]}",
            (f"tokens with the same experts, by layer: {layers} (bound {_AGREEING:.0%})",),
        )
    elif found.weight_gap.max() > _WEIGHT_GAP:
        layer = int(found.weight_gap.argmax())
        text = f"the experts agree, but their weights differ by up to {found.weight_gap[layer]:.3g}"
        yield Violation(f"{place} layer {layer}", (text,))


def _load(view: StepView) -> Iterable[Violation]:
    load = expert_load(view.side, view.step)
    if load is None:
        raise NotApplicable("no routing of the trainer")
    for layer, shares in enumerate(load):
        if shares.min() == 0 and shares.max() >= _COLLAPSED:
            text = f"expert {int(shares.argmax())} is chosen for {shares.max():.1%} of all tokens, another for none"
            yield Violation(f"step {view.step} layer {layer}", (text,))


CHECKS = (
    Check(
        "routing-agrees",
        "engine and trainer choose the same experts",
        "tokens go through different experts in the engine and in training: other router weights, bias or precision",
        ("replay the engine's choices in the trainer", "compute the router in float32 on both sides"),
        _agrees,
        Severity.WARNING,
    ),
    Check(
        "experts-share-the-load",
        "no expert is chosen for nearly all tokens while another has none",
        "the router has collapsed: few experts do all the work, and the others are not trained",
        ("look at the load-balancing loss and the router's learning rate",),
        _load,
        Severity.WARNING,
    ),
)
