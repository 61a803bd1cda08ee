"""Two fingerprints that differ: sums of pieces, and what their numbers say of how one came from the other."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

import numpy as np

from rldbg.weights.fingerprint import Fingerprint
from rldbg.weights.naming import expert_of, fused_name
from rldbg.weights.places import Box
from rldbg.weights.snapshots import BaseWeight

How = Literal[
    "stale",
    "zero",
    "lora-missing",
    "lora-scaled",
    "wrong-expert",
    "fused-order",
    "wrong-tensor",
    "transposed",
    "reordered",
    "quantised",
    "scaled",
    "partial",
    "different",
    "missing",
    "not-sent",
]
# By how much of its norm a block's sum and norm may change if all elements are rounded: to a few bits, or once more in
# their own dtype (float32 unless it is listed).
_COARSE = 0.15
_ROUNDING = {"bfloat16": 4e-3, "float16": 1e-3}
_SCALE = 1e-3


def joint(pieces: Iterable[Fingerprint]) -> Fingerprint:
    """Pieces of one tensor as one, without blocks: sums add up. It is whole if they are all of it."""
    known = list(pieces)
    if len(known) == 1:
        return known[0]
    first = known[0]
    whole, covered = first.box.global_shape, sum(math.prod(item.box.shape) for item in known)
    return Fingerprint(
        first.name,
        first.dtype,
        Box.whole(whole) if covered == math.prod(whole) else Box(whole, first.box.offset, (covered,)),
        np.asarray([[wrapped(sum(item.total for item in known))]], dtype=np.int64),
        wrapped(sum(item.by_row for item in known)),
        wrapped(sum(item.by_column for item in known)),
        math.hypot(*(item.norm for item in known)),
        sum(item.sum for item in known),
    )


def without(sent: Fingerprint, right: list[Fingerprint]) -> Fingerprint:
    """What was sent of a tensor, less its pieces that are right."""
    if not right:
        return sent
    rest = joint(right)
    return replace(
        sent,
        box=Box(sent.box.global_shape, sent.box.offset, (math.prod(sent.box.shape) - math.prod(rest.box.shape),)),
        grid=np.asarray([[wrapped(sent.total - rest.total)]], dtype=np.int64),
        by_row=wrapped(sent.by_row - rest.by_row),
        by_column=wrapped(sent.by_column - rest.by_column),
        norm=math.sqrt(max(sent.norm**2 - rest.norm**2, 0.0)),
        sum=sent.sum - rest.sum,
    )


def wrapped(value: int) -> int:
    """Modulo 2^64 and signed, as each fingerprint is."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def delta_factor(base: BaseWeight, sent: Fingerprint, piece: Fingerprint) -> float | None:
    """k, if the piece is base + k * delta by its sum, and its norm agrees; None otherwise.

    |base + k delta|^2 = |base|^2 + 2 k (base, delta) + k^2 |delta|^2, and k = 1 is what was sent.
    """
    between = sent.sum - base.sum
    if not math.isfinite(base.delta_norm) or base.delta_norm == 0 or abs(between) <= _SCALE * base.delta_norm:
        return None
    factor = (piece.sum - base.sum) / between
    twice = sent.norm**2 - base.norm**2 - base.delta_norm**2
    square = base.norm**2 + factor * twice + factor**2 * base.delta_norm**2
    near = square > 0 and abs(math.sqrt(square) - piece.norm) <= _SCALE * base.delta_norm
    return factor if near and abs(factor - 1) > _SCALE else None


def exchanged(name: str, other: str) -> tuple[How, str]:
    expert, others = expert_of(name), expert_of(other)
    if expert and others and expert != others:
        return "wrong-expert", f"holds another expert's weights: {other}"
    if fused_name(name) and fused_name(other):
        return "fused-order", f"holds {other}: the parts of a fused tensor are in a different order"
    return "wrong-tensor", f"holds {other}"


def matched_blocks(sent: np.ndarray, held: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Norms and sums by block, [blocks, 2]: blocks are joined to the largest that both have."""
    shape = [math.gcd(*sizes) for sizes in zip(sent.shape[:2], held.shape[:2], strict=True)]
    found = []
    for values in (sent, held):
        high, wide = (size // own for size, own in zip(values.shape[:2], shape, strict=True))
        cells = values.reshape(shape[0], high, shape[1], wide, 2)
        joined = np.stack([np.sqrt((cells[..., 0] ** 2).sum((1, 3))), cells[..., 1].sum((1, 3))], -1)
        found.append(joined.reshape(-1, 2))
    return found[0], found[1]


def dtypes_differ(sent: Fingerprint, piece: Fingerprint) -> tuple[How, str] | None:
    if sent.dtype == piece.dtype:
        return None
    return "quantised", f"was sent in {sent.dtype} and is held in {piece.dtype}"


def changed(sent: Fingerprint, held: Fingerprint, blocks: tuple[np.ndarray, np.ndarray]) -> tuple[How, str]:
    """`blocks` are norms and sums by block of what was sent and of what is held, [blocks, 2]."""
    if (coarser := dtypes_differ(sent, held)) is not None:
        return coarser
    (sent_norms, sent_sums), (held_norms, held_sums) = (part.T for part in blocks)
    size = float(np.sqrt(np.mean(sent_norms**2)))
    if not size or not np.isfinite(held_norms).all() or not np.isfinite(held_sums).all():
        return "different", "is not what was sent"
    factor = float(sent_norms @ held_norms / (sent_norms @ sent_norms))
    factor *= -1 if held_sums @ sent_sums < 0 else 1

    def apart(by: float) -> float:
        """What is left of sums and norms of a block if all elements were multiplied, relative to a block's norm."""
        left = np.concatenate([held_sums - by * sent_sums, held_norms - abs(by) * sent_norms])
        return float(np.sqrt(np.mean(left**2))) / size

    rounding = _ROUNDING.get(sent.dtype, 1e-4)
    if apart(factor) <= rounding * abs(factor) and abs(factor - 1) > max(_SCALE, rounding):
        return "scaled", f"is scaled by {factor:.6g}"
    if apart(1.0) <= _COARSE:
        return "quantised", f"is close to what was sent (apart by {apart(1.0):.2g} of a block): quantised or rounded"
    if apart(factor) <= _COARSE * abs(factor):
        return "scaled", f"is scaled by {factor:.4g}, and quantised or rounded"
    return "different", "is not what was sent"
