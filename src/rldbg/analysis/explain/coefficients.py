"""The weight of each recorded term in the loss, told on each side by its own numbers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rldbg.analysis.explain.evidence import Evidence, Explanation, Recomputed, largest
from rldbg.analysis.explain.passes import SideStep

_NOISE = 2e-6
_POLICY = "pg_loss"


def coefficients(evidence: Evidence) -> Iterator[Explanation]:
    """The loss weights its terms differently."""
    in_a, in_b = _weights(evidence.a), _weights(evidence.b)
    if in_a is None or in_b is None:
        return
    for name in dict.fromkeys((*in_a[0], *in_b[0])):
        a, b = (
            weights.get(name, None if name in terms_of(side) else 0.0)
            for (weights, _), side in ((in_a, evidence.a), (in_b, evidence.b))
        )
        residual = max(in_a[1], in_b[1])
        if a is None or b is None or abs(a - b) <= 1e-3 * max(abs(a), abs(b), 1e-3):
            continue
        # What the two weights make of the term must be more than what they leave unexplained.
        term = max(abs(item.number("loss", name) or 0.0) for _, side in evidence.sides for item in side.micros)
        if abs(a - b) * term > max(residual, noise_of(evidence)):
            word = name.removesuffix("_loss").replace("_", " ").replace("kl", "KL")
            # The entropy is subtracted: its coefficient is a positive number.
            sign = -1.0 if name == "entropy_loss" else 1.0
            text = (
                f"the {word} coefficient is {_plain(sign * a)} in A and {_plain(sign * b)} in B; "
                f"with these values the recorded terms reproduce both losses to within {residual:.1e}"
            )
            facts, made = {"a": sign * a, "b": sign * b}, _weighted(evidence, in_b[0])
            title = f"{name.removesuffix('_loss').replace('_', '-')}-coefficient"
            yield Explanation(title, text, residual, noise_of(evidence), facts, recomputed=made)


def terms_of(side: SideStep) -> list[str]:
    """The terms of the loss that a side recorded, by their names."""
    names = dict.fromkeys(
        name
        for item in side.micros
        if "loss" in item.records
        for name in item.records["loss"].fields
        if name.endswith("_loss") and item.number("loss", name) is not None
    )
    return list(names)


def _weighted(evidence: Evidence, weights: dict[str, float]) -> Recomputed | None:
    """A's loss terms with B's weights, beside both sides' losses, pass by pass."""
    others = {(item.update, item.rank, item.micro): item.number("loss", "loss") for item in evidence.b.micros}
    rows = []
    for item in evidence.a.micros:
        number = item.number("loss", _POLICY)
        terms = sum(weight * (item.number("loss", name) or 0.0) for name, weight in weights.items())
        made = None if number is None else number + terms
        rows.append((item.number("loss", "loss"), others.get((item.update, item.rank, item.micro)), made))
    return Recomputed.of_rows(rows)


def _plain(value: float) -> str:
    return f"{0.0 if abs(value) < 1e-7 else value:.6g}"


def noise_of(evidence: Evidence) -> float:
    losses = [abs(item.number("loss", "loss") or 0.0) for _, side in evidence.sides for item in side.micros]
    return _NOISE * max([1.0, *losses])


def _weights(side: SideStep) -> tuple[dict[str, float], float] | None:
    """The weight of each term in the loss, when one set of weights fits all passes, and the residual."""
    names = ["loss", _POLICY, *(name for name in terms_of(side) if name != _POLICY)]
    rows = []
    for item in side.micros:
        parts = [item.number("loss", name) for name in names]
        rows.append([0.0 if part is None else part for part in parts])
        if parts[0] is None or parts[1] is None:
            return None
    table = np.asarray(rows, dtype=np.float64).reshape(-1, len(names))
    used = [column for column in range(2, len(names)) if largest(table[:, column]) > 1e-6]
    if len(table) <= len(used) or not np.isfinite(table).all():
        return None
    columns, rest = table[:, used], table[:, 0] - table[:, 1]
    # Terms in one proportion in all passes share their weights in any way.
    if used and np.linalg.matrix_rank(columns / np.abs(columns).max(0), 1e-3) < len(used):
        return None
    weights = np.linalg.lstsq(columns, rest, rcond=None)[0] if used else np.zeros(0)
    left = largest(rest - columns @ weights)
    if left > _NOISE * max(1.0, largest(table[:, 0])):
        return None
    return dict(zip((names[column] for column in used), map(float, weights), strict=True)), left
