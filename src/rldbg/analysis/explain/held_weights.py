"""The hypothesis that an engine holds other weights than it was sent; fingerprints decide it exactly."""

from __future__ import annotations

from collections.abc import Iterator

from rldbg.analysis.explain.evidence import Evidence, Explanation


def held_weights(evidence: Evidence) -> Iterator[Explanation]:
    """On one side the engine holds what was sent, and on the other it does not."""
    found = [side.side.weight_faults for _, side in evidence.sides]
    for (label, _), mine, other in zip(evidence.sides, found, reversed(found), strict=True):
        if mine is None or other is None or other.get(evidence.step):
            continue
        for fault in mine.get(evidence.step, ()):
            text = f"{label}'s engine does not hold what was sent: {fault.where} {fault.text}"
            text += f"; the same for {fault.tensors - 1} other tensors" if fault.tensors > 1 else ""
            facts = {"side": label, "version": fault.version, "replica": fault.replica, "tensor": fault.name}
            yield Explanation(f"held-{fault.how}", text, parameters=facts, together="held-weights")


HYPOTHESES = {"trajectory": (held_weights,)}
