"""A hypothesis on the part of all tokens that a difference is confined to: a turn, a rank, an end of an answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rldbg.analysis.explain.evidence import Evidence, Explanation, Hypothesis

NOISE = 2e-5


def wherever(hypothesis: Hypothesis, quantity: str) -> Hypothesis:
    """The same hypothesis on the part of all tokens that the difference is confined to, if there is one."""

    def narrowed(evidence: Evidence) -> Iterator[Explanation]:
        found = evidence.confined(quantity, NOISE)
        inside = [] if found is None else list(hypothesis(found[1]))
        if found is not None and any(item.fits for item in inside):
            where = found[0].text
            for item in inside:
                text, facts = f"{item.explains}, {where} only", {**item.parameters, "where": where}
                yield replace(item, explains=text, parameters=facts)
        else:
            yield from hypothesis(evidence)

    narrowed.__module__, narrowed.__qualname__ = hypothesis.__module__, hypothesis.__qualname__
    return narrowed
