"""How the experts that the engine chose agree with those of the trainer's first pass, by layer and token."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rldbg.analysis.side import Side
from rldbg.core import SampleId

ExpertRows = dict[SampleId, tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True, slots=True)
class RouteAgreement:
    """By layer: the share of tokens with the same set of experts, with the same order, and the largest gap of weights
    where the sets agree. `apart` has the tokens of each sample where any layer differs."""

    chosen: tuple[int, int]
    tokens: int
    sets: np.ndarray
    order: np.ndarray
    weight_gap: np.ndarray
    apart: dict[SampleId, np.ndarray]

    @property
    def first_layer(self) -> int | None:
        """The first layer in which some token has other experts."""
        layers = np.flatnonzero(self.sets < 1)
        return int(layers[0]) if layers.size else None


def route_agreement(side: Side, step: int) -> RouteAgreement | None:
    """None where one of both was not recorded."""
    rollout, trainer = _rows(side, "rollout_routing", step), _rows(side, "routing", step)
    pairs = [(sample, rollout[sample], trainer[sample]) for sample in rollout if sample in trainer]
    if not pairs:
        return None
    chosen = pairs[0][1][0].shape[-1], pairs[0][2][0].shape[-1]
    slots = min(chosen)
    same_set, same_order, gaps, apart = [], [], [], {}
    for sample, (mine, my_weights), (theirs, their_weights) in pairs:
        length = min(len(mine), len(theirs))
        known = (mine[:length] >= 0).all((1, 2)) & (theirs[:length] >= 0).all((1, 2))
        one, other = mine[:length][known], theirs[:length][known]
        in_order = (one[..., :slots] == other[..., :slots]).all(-1) & (chosen[0] == chosen[1])
        equal = in_order if chosen[0] != chosen[1] else (np.sort(one, -1) == np.sort(other, -1)).all(-1)
        gap = np.abs(my_weights[:length][known][..., :slots] - their_weights[:length][known][..., :slots]).max(-1)
        same_set.append(equal)
        same_order.append(in_order)
        gaps.append(np.where(in_order, gap, 0.0))
        apart[sample] = np.flatnonzero(known)[~equal.all(-1)]
    sets, order, gap = np.concatenate(same_set), np.concatenate(same_order), np.concatenate(gaps)
    return RouteAgreement(chosen, len(sets), sets.mean(0), order.mean(0), gap.max(0), apart)


def agreement_by_token(engine: np.ndarray, trainer: np.ndarray) -> np.ndarray:
    """The share of layers in which each token has the same set of experts on both sides, from [T, layers, k] of one
    sample.

    NaN where one of both has no experts of a token.
    """
    length = min(len(engine), len(trainer))
    mine, theirs = engine[:length], trainer[:length]
    known = (mine >= 0).all((1, 2)) & (theirs >= 0).all((1, 2))
    if mine.shape[-1] != theirs.shape[-1]:
        return np.where(known, 0.0, np.nan)
    return np.where(known, (np.sort(mine, -1) == np.sort(theirs, -1)).all(-1).mean(-1), np.nan)


def expert_load(side: Side, step: int) -> np.ndarray | None:
    """[layers, experts]: the share of all tokens of the trainer for which each expert was chosen."""
    rows = _rows(side, "routing", step)
    if not rows:
        return None
    every = np.concatenate([experts[(experts >= 0).all((1, 2))] for experts, _ in rows.values()])
    count = int(every.max()) + 1
    return np.stack([np.bincount(layer.ravel(), minlength=count) / len(layer) for layer in every.transpose(1, 0, 2)])


def _rows(side: Side, kind: str, step: int) -> ExpertRows:
    """Rows of passes before any update of the step: later ones route by other weights."""
    found: ExpertRows = {}
    for record in side.not_compared(kind, step):
        if (record.key.epoch, record.key.mini_batch) == (0, 0):
            experts, weights = record.array("experts"), record.array("expert_weights")
            found |= {sample: (experts[row], weights[row]) for row, sample in enumerate(record.samples)}
    return found
