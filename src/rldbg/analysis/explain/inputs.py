"""Hypotheses about the ids that the model is given: tokens that no sample has, lacks, or has changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from rldbg.analysis.explain.evidence import Evidence, Explanation
from rldbg.analysis.explain.passes import SideStep
from rldbg.analysis.samples import common_prefix
from rldbg.core import SampleId

_TEXTS = {
    "tokens-added": "gives the model {what} that its samples do not have",
    "tokens-missing": "does not give the model {what} of its samples",
    "tokens-changed": "gives the model different tokens from those of its samples, at {what}",
}


def input_ids(evidence: Evidence) -> Iterator[Explanation]:
    """On one side the attended ids are not the sample's tokens, and on the other they are."""
    faults = [faults_of(evidence.a, evidence.b), faults_of(evidence.b, evidence.a)]
    for (label, _), mine, other in zip(evidence.sides, faults, reversed(faults), strict=True):
        counted = Counter(fault for fault in mine.values() if fault is not None)
        if not counted or any(fault is not None for fault in other.values()) or not other:
            continue
        names = {name for name, _ in counted}
        if len(names) > 1:
            continue
        (name, what), rows = counted.most_common(1)[0][0], sum(counted.values())
        text = f"{label} {_TEXTS[name].format(what=what)} (in {rows} rows)"
        yield Explanation(name, text, parameters={"side": label, "rows": rows})


def _rows(side: SideStep) -> Iterator[tuple[SampleId, np.ndarray, np.ndarray]]:
    for item in side.micros:
        record = item.records.get("batch_inputs")
        if record is not None and {"input_ids", "attention_mask"} <= record.fields.keys():
            rows = zip(record.samples, record.rows("input_ids"), record.rows("attention_mask"), strict=False)
            yield from ((sample, np.asarray(ids), np.asarray(seen)) for sample, ids, seen in rows)


def faults_of(side: SideStep, other: SideStep) -> dict[SampleId, tuple[str, str] | None]:
    """By sample, how its attended ids differ from its tokens; None where they do not.

    More ids that are all padding are no tokens that were added: the attention mask covers padding. What padding is, the
    other side tells, by the ids that it does not attend to.
    """
    padding = {int(value) for _, ids, seen in _rows(other) for value in ids[seen == 0]}
    found: dict[SampleId, tuple[str, str] | None] = {}
    for sample, ids, seen in _rows(side):
        if sample in side.samples:
            given = int(np.count_nonzero(np.isin(ids, sorted(padding), invert=True) | (seen != 0)))
            found.setdefault(sample, _fault(ids[seen != 0], given, side.samples[sample].tokens, padding))
    return found


def _fault(attended: np.ndarray, given: int, tokens: np.ndarray, padding: set[int]) -> tuple[str, str] | None:
    if np.array_equal(attended, tokens):
        return None
    more = len(attended) - len(tokens)
    head = common_prefix(attended, tokens)
    tail = min(common_prefix(attended[::-1], tokens[::-1]), min(len(attended), len(tokens)) - head)
    if more > 0:
        added = attended[head : len(attended) - tail]
        if head + tail < len(tokens) or set(added.tolist()) <= padding:
            return None
        # A first token that is there twice was added before the sample, wherever the two are told apart.
        is_before = head == 0 or common_prefix(attended[::-1], tokens[::-1]) == len(tokens)
        where = "before" if is_before else "after" if tail == 0 else "inside"
        return "tokens-added", f"{more} token(s) ({', '.join(map(str, added[:4].tolist()))}) {where} the sample"
    if more < 0:
        if head + tail < len(attended) or given >= len(tokens):
            return None  # the ids are there, but not attended
        return "tokens-missing", f"{-more} token(s) from position {head} on"
    return "tokens-changed", f"position {head} of {len(tokens)}"


_ALL = (input_ids,)
HYPOTHESES = {"old_log_probs": _ALL, "forward": _ALL, "advantage": _ALL}
