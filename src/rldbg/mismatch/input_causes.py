"""Causes seen in what the trainer gave its model: other tokens, padding that is attended, positions that jump."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from rldbg.analysis import SideStep
from rldbg.core import SampleId
from rldbg.mismatch.claims import Claim, Unexplained, whole

_TEXTS = {
    "tokens-changed": "the trainer gave its model different tokens from those of the rollout",
    "padding-attended": "the trainer's model attends to padding",
    "tokens-not-attended": "the trainer's model does not attend to some of the sample's tokens",
    "positions": "the trainer's position ids do not count the sample's tokens one by one",
    "packing": "position ids continue from the sample that is packed before: its tokens are this one's context",
}


def inputs(state: Unexplained) -> Iterator[Claim]:
    """Tokens at or after the first fault of their sample's row in batch_inputs."""
    chosen = {name: np.zeros(len(state.table), dtype=bool) for name in _TEXTS}
    for step, side in state.table.sides.items():
        faults = dict(_faults(side))
        for number, place in enumerate(state.table.places):
            found = faults.get(place.tokens.sample) if place.step == step else None
            if found is not None:
                rows = state.table.rows(number)
                chosen[found[0]][rows] = state.table.position[rows] >= found[1]
    for name, behind in chosen.items():
        affected = behind & state.apart
        if affected.any():
            samples = len(np.unique(state.table.place[affected]))
            yield whole(name, f"{_TEXTS[name]} (in {samples} samples)", affected, samples=samples)


def _faults(side: SideStep) -> Iterator[tuple[SampleId, tuple[str, int]]]:
    """By sample, the first thing wrong with its row and the token from which it matters."""
    for record in side.side.records("batch_inputs", side.step):
        if "input_ids" not in record.fields:
            continue
        ids = list(record.rows("input_ids"))
        masks = list(record.rows("attention_mask")) if "attention_mask" in record.fields else [None] * len(ids)
        positions = list(record.rows("position_ids")) if "position_ids" in record.fields else [None] * len(ids)
        rows = [tuple(map(np.asarray, row)) for row in zip(ids, masks, positions, strict=False)]
        if len(rows) < len(record.samples):
            yield from _packed(side, record.samples, rows)
            continue
        for sample, row in zip(record.samples, rows, strict=False):
            known = side.samples.get(sample)
            fault = None if known is None else _fault(known.tokens, *row)
            if fault is not None:
                yield sample, fault


def _packed(
    side: SideStep, samples: Sequence[SampleId], rows: list[tuple[np.ndarray, ...]]
) -> Iterator[tuple[SampleId, tuple[str, int]]]:
    """Rows that hold several samples, one after the other; rows that hold anything else are not judged."""
    waiting = list(samples)
    for ids, mask, positions in rows:
        attended = np.ones(len(ids), dtype=bool) if mask.ndim == 0 else mask != 0
        seen, start = ids[attended], 0
        numbers = positions[attended] if positions.ndim and len(positions) == len(ids) else None
        while waiting and start < len(seen):
            known = side.samples.get(waiting[0])
            length = 0 if known is None else len(known.tokens)
            if known is None or not np.array_equal(seen[start : start + length], known.tokens):
                break
            own = None if numbers is None else numbers[start : start + length]
            if own is not None and start and own[0] != 0:
                yield waiting[0], ("packing", 0)
            elif own is not None and (jumps := np.flatnonzero(np.diff(own) != 1)).size:
                yield waiting[0], ("positions", int(jumps[0]) + 1)
            del waiting[0]
            start += length


def _fault(tokens: np.ndarray, ids: np.ndarray, mask: np.ndarray, positions: np.ndarray) -> tuple[str, int] | None:
    attended = np.ones(len(ids), dtype=bool) if mask.ndim == 0 else mask != 0
    seen = ids[attended]
    if len(seen) == len(tokens) and np.array_equal(seen, tokens):
        if positions.ndim and len(positions) == len(ids):
            jumps = np.flatnonzero(np.diff(positions[attended]) != 1)
            return ("positions", int(jumps[0]) + 1) if jumps.size else None
        return None
    if len(seen) > len(tokens) and _ends_with(seen, tokens):
        return "padding-attended", 0
    if len(seen) < len(tokens) and _ends_with(tokens, seen):
        return "tokens-not-attended", 0
    length = min(len(seen), len(tokens))
    apart = np.flatnonzero(seen[:length] != tokens[:length])
    return "tokens-changed", int(apart[0]) if apart.size else length


def _ends_with(longer: np.ndarray, shorter: np.ndarray) -> bool:
    return len(shorter) > 0 and np.array_equal(longer[len(longer) - len(shorter) :], shorter)


RULES = (inputs,)
