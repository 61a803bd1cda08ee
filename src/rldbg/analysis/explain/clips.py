"""At which ratios each side clips, and which tokens its loss leaves out: told by the loss of each token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from rldbg.analysis.explain.aggregation import mask_of
from rldbg.analysis.explain.evidence import Evidence, Explanation, Recomputed
from rldbg.analysis.explain.passes import SideStep
from rldbg.analysis.explain.subsets import turn_of

_SAME_BOUND = 2e-3


def clipping(evidence: Evidence) -> Iterator[Explanation]:
    """The bounds at which each side's clip determined the loss of tokens: of all, or of those of some turns."""
    first, later = (list(_clipping(evidence, keep)) for keep in (_first_turn, _later_turns))
    masks = [mask_of(item) for _, side in evidence.sides for item in side.micros]
    has_turns = any(_later_turns(mask).any() for mask in masks if mask is not None)
    if has_turns and len(first) + len(later) == 1 and _agree(evidence, _later_turns if first else _first_turn):
        (item,) = first or later
        where = "in the first turn" if first else "after the first turn"
        yield replace(item, explains=f"{item.explains}, {where} only", parameters={**item.parameters, "where": where})
    else:
        yield from _clipping(evidence, lambda mask: mask)


def _agree(evidence: Evidence, keep: Callable[[np.ndarray], np.ndarray]) -> bool:
    """Whether both sides are seen to clip at the same bound there: turns without a clipped token tell nothing."""
    a, b = (_Clip.read(side, keep) for _, side in evidence.sides)
    bounds = [(a.bound(name), b.bound(name)) for name in _CLIP_TEXT] if a is not None and b is not None else []
    return any(one is not None and other is not None and abs(one - other) <= _SAME_BOUND for one, other in bounds)


def _first_turn(mask: np.ndarray) -> np.ndarray:
    return np.asarray([turn_of(row) == 1 for row in mask])


def _later_turns(mask: np.ndarray) -> np.ndarray:
    return np.asarray([turn_of(row) > 1 for row in mask])


def _clipping(evidence: Evidence, keep: Callable[[np.ndarray], np.ndarray]) -> Iterator[Explanation]:
    sides = [_Clip.read(side, keep) for _, side in evidence.sides]
    if sides[0] is None or sides[1] is None:
        return
    apart = []
    for name in ("high", "low", "dual", "floor"):
        a, b = sides[0].bound(name), sides[1].bound(name)
        if a is not None and b is not None and abs(a - b) > _SAME_BOUND:
            apart.append(f"{_CLIP_TEXT[name]} {a:.4g} in A and {b:.4g} in B")
        elif a is not None and b is None and sides[1].free_beyond(name, a):
            apart.append(f"{_CLIP_TEXT[name]} {a:.4g} in A and not at all in B")
        elif b is not None and a is None and sides[0].free_beyond(name, b):
            apart.append(f"{_CLIP_TEXT[name]} {b:.4g} in B and not at all in A")
    if apart:
        facts = {
            label: {name: side.bound(name) for name in _CLIP_TEXT}
            for label, side in zip("ab", sides, strict=True)
            if side is not None
        }
        text, made = f"the ratio is clipped differently: {'; '.join(apart)}", sides[0].clipped_as(sides[1])
        yield Explanation("clip", text, 0.0, _SAME_BOUND, facts, recomputed=made)


_CLIP_TEXT = {
    "high": "for positive advantages from above at",
    "floor": "for positive advantages from below at",
    "low": "for negative advantages from below at",
    "dual": "for negative advantages from above at",
}


class _Clip:
    """The ratio each token had, and the one its loss was computed with (loss = -used * advantage)."""

    def __init__(self, ratio: np.ndarray, used: np.ndarray, positive: np.ndarray) -> None:
        above, below = ratio > used + 1e-4 * ratio, ratio < used - 1e-4 * used
        self._ratio, self._used = ratio, used
        self._chosen = {
            "high": positive & above,
            "floor": positive & below,
            "low": ~positive & below,
            "dual": ~positive & above,
        }
        self._free = {"high": positive, "floor": positive, "low": ~positive, "dual": ~positive}
        self._untouched = ~above & ~below

    @classmethod
    def read(cls, side: SideStep, keep: Callable[[np.ndarray], np.ndarray]) -> _Clip | None:
        parts: list[list[np.ndarray]] = [[], [], []]
        for item in side.micros:
            names = ("prob_ratio", "elementwise_loss", "advantages")
            ratio, loss, advantage = (item.array("is_loss_debug", name) for name in names)
            mask = mask_of(item)
            if ratio is None or loss is None or advantage is None or mask is None:
                continue
            # A token that is left out was not clipped.
            counts = keep(mask) & (np.abs(advantage) > 1e-6) & (loss != 0)
            for part, values in zip(parts, (ratio, -loss / np.where(counts, advantage, 1), advantage > 0), strict=True):
                part.append(values[counts])
        if not parts[0]:
            return None
        ratio, used, positive = (np.concatenate(part) for part in parts)
        return cls(ratio, used, positive)

    def bound(self, name: str) -> float | None:
        """The single value the clip used; None when it never applied, or applied at several values."""
        values = self._used[self._chosen[name]]
        # A loss that uses a ratio of 1 for every token shows no clip.
        if not (self._untouched & (np.abs(self._ratio - 1) > 1e-3)).any():
            return None
        if values.size == 0 or float(values.max() - values.min()) > 1e-3 * float(values.max()):
            return None
        # Tokens without a loss are left out, not clipped.
        return float(np.median(values)) or None

    def clipped_as(self, other: _Clip) -> Recomputed | None:
        """The ratio that this side's losses would use with the other's bounds; None where the tokens are others."""
        if len(self._ratio) != len(other._ratio) or not np.array_equal(self._free["high"], other._free["high"]):
            return None
        made = self._ratio.copy()
        for name, limit in (("high", np.minimum), ("dual", np.minimum), ("floor", np.maximum), ("low", np.maximum)):
            bound = other.bound(name)
            if bound is not None:
                made = np.where(self._free[name], limit(made, bound), made)
        return Recomputed(self._used, other._used, made)

    def free_beyond(self, name: str, bound: float) -> bool:
        """Whether a token passed a bound of the other side unclipped."""
        beyond = self._ratio > bound * 1.001 if name in ("high", "dual") else self._ratio < bound * 0.999
        return bool((self._free[name] & self._untouched & beyond).any())


def left_out(evidence: Evidence) -> Iterator[Explanation]:
    """The loss of one side does not count tokens that the mask holds."""
    a, b = (_token_losses(side) for _, side in evidence.sides)
    if a is None or b is None or len(a) != len(b):
        return
    for label, own, other in (("A", a, b), ("B", b, a)):
        missing = (own == 0) & (other != 0)
        if missing.any() and not ((other == 0) & (own != 0)).any():
            text = f"{label}'s loss leaves out {int(missing.sum())} of {len(own)} tokens that its mask holds"
            made = Recomputed(a, b, np.where(missing, 0.0, a) if label == "B" else np.where(missing, b, a))
            # That the rest is equal is not asked of passes after the first difference.
            yield Explanation("tokens-left-out", text, 0.0, 1e-5, {"side": label}, recomputed=made)


def _token_losses(side: SideStep) -> np.ndarray | None:
    """The loss of each trained token that has an advantage, in order."""
    found = []
    for item in side.micros:
        loss, advantage = (item.array("is_loss_debug", name) for name in ("elementwise_loss", "advantages"))
        mask = mask_of(item)
        if loss is None or advantage is None or mask is None or mask.shape != loss.shape:
            return None
        found.append(loss[mask & (np.abs(advantage) > 1e-6)])
    return np.concatenate(found) if found else None
