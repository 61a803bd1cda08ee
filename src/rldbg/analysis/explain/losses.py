"""Hypotheses about losses, gradients and parameters: coefficients, aggregation, clipping, scaling."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from rldbg.analysis.explain.evidence import Evidence, Explanation, fit_factor, largest
from rldbg.analysis.side import Side

_NOISE = 2e-6
Hypothesis = Callable[[Evidence], Iterator[Explanation]]


def coefficient(term: str, title: str) -> Hypothesis:
    """The loss differs by a constant times one of its recorded terms."""

    def hypothesis(evidence: Evidence) -> Iterator[Explanation]:
        found = evidence.numbers("loss", "loss", term)
        if found is None:
            return
        (loss_a, loss_b), (term_a, term_b) = found
        gap = loss_b - loss_a
        if largest(gap) <= _NOISE or largest(term_a) == 0 or largest(term_a - term_b) > 1e-4 * largest(term_a):
            return
        factor = fit_factor(term_a, gap)
        residual = largest(gap - factor * term_a)
        if residual <= max(_NOISE, 1e-3 * largest(gap)):
            text = f"the losses differ by {factor:.6g} × {term}: {title} is {abs(factor):.6g} apart"
            noise = max(_NOISE, 1e-3 * largest(gap))
            yield Explanation(title.replace(" ", "-"), text, residual, noise, {"coefficient_difference": factor})

    return hypothesis


def scaled_loss(evidence: Evidence) -> Iterator[Explanation]:
    """Every loss is the other side's times one number: gradient accumulation or a mean over something else."""
    found = evidence.numbers("loss", "loss")
    if found is None:
        return
    ((a, b),) = found
    if len(a) < 2 or largest(a) == 0:
        return
    factor = fit_factor(a, b)
    residual, noise = largest(b - factor * a), max(_NOISE, 1e-4 * largest(b))
    if residual <= noise and abs(factor - 1) > 1e-3:
        text = f"B's losses are A's times {factor:.6g}"
        yield Explanation("loss-scaled", text, residual, noise, {"factor": factor})


def aggregation(evidence: Evidence) -> Iterator[Explanation]:
    """Both sides have the same loss of each token and turn them into one number by different rules."""
    rules: list[set[str]] = [set(), set()]
    first = True
    for block in evidence.blocks("is_loss_debug"):
        for index, record in enumerate((block.a, block.b)):
            if not all(name in record.fields for name in ("elementwise_loss", "effective_valid", "loss")):
                return
            values, mask = record.array("elementwise_loss").astype(np.float64), record.array("effective_valid") != 0
            loss = float(np.asarray(record.fields["loss"]))
            fit = {rule for rule, value in _aggregates(values, mask) if abs(value - loss) <= 1e-5 * max(1.0, abs(loss))}
            rules[index] = fit if first else rules[index] & fit
        first = False
    if not first and rules[0] and rules[1] and not rules[0] & rules[1]:
        a, b = (" or ".join(sorted(rule)) for rule in rules)
        yield Explanation("aggregation", f"A's loss is the {a} of its tokens, B's the {b}", 0.0, 1e-5, {"a": a, "b": b})


def _aggregates(values: np.ndarray, mask: np.ndarray) -> Iterator[tuple[str, float]]:
    kept = np.where(mask, values, 0.0)
    lengths = mask.sum(1)
    rows = np.count_nonzero(lengths)
    if rows == 0:
        return
    yield "token mean", float(kept.sum() / lengths.sum())
    yield "mean over sequences of the token mean", float((kept.sum(1) / np.maximum(lengths, 1)).sum() / rows)
    yield "mean over sequences of the token sum", float(kept.sum() / rows)
    yield "sum over a fixed length", float(kept.sum() / mask.size)
    yield "token sum", float(kept.sum())


def clipping(evidence: Evidence) -> Iterator[Explanation]:
    """The bounds of the ratio each side's clip shows, from the tokens where it decided the loss."""
    bounds = [_clip_bounds(evidence, index) for index in (0, 1)]
    if bounds[0] is None or bounds[1] is None or bounds[0] == bounds[1]:
        return
    apart = [name for name in ("low", "high", "dual") if bounds[0][name] != bounds[1][name]]
    text = ", ".join(f"{name} {bounds[0][name]} in A and {bounds[1][name]} in B" for name in apart)
    yield Explanation(
        "clip", f"the ratio is clipped by other bounds: {text}", 0.0, 1e-3, {"a": bounds[0], "b": bounds[1]}
    )


def _clip_bounds(evidence: Evidence, index: int) -> dict[str, float | None] | None:
    found = evidence.side_tokens(index, "prob_ratio", "advantages", "elementwise_loss")
    if found is None:
        return None
    ratio, advantage, loss = found
    decided = (np.abs(loss + ratio * advantage) > 1e-5) & (np.abs(advantage) > 1e-6)
    implied = -loss[decided] / advantage[decided]
    positive = advantage[decided] > 0
    low_side = ~positive & (implied < 1)
    return {
        "high": _common(implied[positive]),
        "low": _common(implied[low_side]),
        "dual": _common(implied[~positive & (implied >= 1)]),
    }


def _common(values: np.ndarray) -> float | None:
    """The one value all of these are, to three digits; None when there are none or they disagree."""
    if values.size == 0 or float(values.max() - values.min()) > 1e-3:
        return None
    return round(float(np.median(values)), 3)


def scaled_gradient(evidence: Evidence) -> Iterator[Explanation]:
    """Every gradient is the other side's times one number."""
    yield from _scaled(evidence, "gradient", "gradient-scaled", "B's gradients are A's times")


def _scaled(evidence: Evidence, kind: str, id: str, text: str) -> Iterator[Explanation]:
    blocks = [block for block in evidence.blocks(kind) if kind in block.a.fields and kind in block.b.fields]
    parts = [(block.a.array(kind).reshape(-1), block.b.array(kind).reshape(-1)) for block in blocks]
    parts = [(a, b) for a, b in parts if a.shape == b.shape]
    if not parts:
        return
    a, b = (np.concatenate([part[n] for part in parts]).astype(np.float64) for n in (0, 1))
    if largest(a) == 0 or not np.isfinite(a).all() or not np.isfinite(b).all():
        return
    factor = fit_factor(a, b)
    residual, noise = largest(b - factor * a), 1e-3 * largest(b)
    if residual <= noise and abs(factor - 1) > 1e-3:
        yield Explanation(id, f"{text} {factor:.6g}", residual, noise, {"factor": factor})


def drifted_replica(evidence: Evidence) -> Iterator[Explanation]:
    """Within one side the replicas disagree, and within the other they do not."""
    odd = [_odd_ranks(side, evidence.step) for side in (evidence.a, evidence.b)]
    for label, mine, other in (("A", odd[0], odd[1]), ("B", odd[1], odd[0])):
        if mine and not other:
            text = f"in {label}, the parameters of rank {', '.join(map(str, mine))} are not those of the other ranks"
            yield Explanation("replica-drift", text, 0.0, 0.0, {"side": label, "ranks": mine})


def _odd_ranks(side: Side, step: int) -> list[int]:
    by_name: dict[str, dict[int, bytes]] = {}
    for record in side.records("param", step):
        if "param" in record.fields and not record.coordinates.keys() & {"tp", "pp", "fsdp"}:
            name = str(record.fields["param_name"])
            by_name.setdefault(name, {})[record.key.rank] = record.array("param").tobytes()
    odd = set()
    for values in by_name.values():
        if len(set(values.values())) > 1:
            common = max(set(values.values()), key=list(values.values()).count)
            odd |= {rank for rank, value in values.items() if value != common}
    return sorted(odd)


HYPOTHESES = {
    "ratio": (clipping,),
    "loss": (
        clipping,
        aggregation,
        coefficient("entropy_loss", "entropy coefficient"),
        coefficient("kl_loss", "KL coefficient"),
        scaled_loss,
    ),
    "gradient": (scaled_gradient, coefficient("entropy_loss", "entropy coefficient"), scaled_loss),
    "parameter": (drifted_replica,),
}
