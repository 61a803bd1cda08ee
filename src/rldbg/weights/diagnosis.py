"""How what an engine holds differs from what the trainer sent: by fingerprints alone, tensor by tensor."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rldbg.weights.fingerprint import Box, Fingerprint
from rldbg.weights.naming import is_expert, is_fused_part
from rldbg.weights.snapshots import BaseWeight, WeightSnapshot

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
# Rounding to 3 bits of mantissa (float8) changes a norm by less than this.
_CLOSE = 2e-2
# Roundings of single elements add up in the sum like a random walk.
_CLOSE_SUM = 5e-2
_SCALE = 1e-3


@dataclass(frozen=True, slots=True)
class WeightFault:
    """A tensor of a replica that is not what was sent. `tensors` counts how many are wrong in the same way."""

    version: int
    replica: int
    name: str
    how: How
    text: str
    tensors: int = 1

    @property
    def where(self) -> str:
        return f"version {self.version} replica {self.replica} tensor {self.name}"


def faults_of(snapshots: Iterable[WeightSnapshot]) -> Iterator[WeightFault]:
    """Of every replica at every version that was sent; tensors that are wrong alike are one fault."""
    for _, faults in faults_by_replica(snapshots):
        yield from grouped_faults(faults)


def faults_by_replica(snapshots: Iterable[WeightSnapshot]) -> Iterator[tuple[WeightSnapshot, list[WeightFault]]]:
    """What each replica holds at each version that was sent, and every tensor of it that is wrong."""
    known = list(snapshots)
    sent = {item.version: item for item in known if item.side == "sent"}
    for held in known:
        if held.side == "held" and held.version in sent:
            yield held, list(_Replica(held, sent).faults())


def grouped_faults(faults: Iterable[WeightFault]) -> Iterator[WeightFault]:
    """Tensors that are wrong alike are one fault: a version that was not loaded at all, an engine in another dtype."""
    found: dict[tuple[str, str], list[WeightFault]] = {}
    for fault in faults:
        alike = {"stale": fault.text, "missing": "", "zero": "", "quantised": ""}
        key = (fault.how, alike.get(fault.how, fault.name))
        found.setdefault(key, []).append(fault)
    for members in found.values():
        first = members[0]
        yield WeightFault(first.version, first.replica, first.name, first.how, first.text, len(members))


class _Replica:
    def __init__(self, held: WeightSnapshot, sent: Mapping[int, WeightSnapshot]) -> None:
        self._held = held
        self._sent = sent[held.version]
        self._earlier = [sent[version] for version in sorted(sent, reverse=True) if version < held.version]
        self._whole = _joined(self._sent)
        self._older = [_joined(version) for version in self._earlier]

    def faults(self) -> Iterator[WeightFault]:
        pieces = self._held.by_name()
        for name, sent in self._whole.items():
            if name in pieces:
                yield from self._of_pieces(name, sent, pieces[name])
            elif not self._is_tied(sent):
                yield self._fault(name, "missing", "was sent, and the engine does not hold it")
        for name in pieces:
            if name not in self._whole:
                yield self._fault(name, "not-sent", "is held by the engine and was never sent")

    def _is_tied(self, sent: Fingerprint) -> bool:
        """A tensor that equals another one that is held: tied embeddings."""
        return any(item.total == sent.total and item.name != sent.name for item in self._held.tensors)

    def _of_pieces(self, name: str, sent: Fingerprint, held: list[Fingerprint]) -> Iterator[WeightFault]:
        """Each piece whose blocks were sent is judged alone; the others by the sum of all."""
        told = False
        for number, piece in enumerate(held):
            expected = sent.total if piece.box.is_whole else sent.part(piece.box)
            if expected is not None and (expected, sent.dtype) != (piece.total, piece.dtype):
                shard = f" shard {number} (at {list(piece.box.offset)} of {list(piece.box.global_shape)})"
                told = True
                yield self._fault(name + ("" if piece.box.is_whole else shard), *self._how(name, sent, piece))
        # Replicated pieces have one box.
        own = {piece.box: piece for piece in held}.values()
        if told or _wrapped(sum(piece.total for piece in own)) == sent.total:
            return
        if sum(math.prod(piece.box.shape) for piece in own) < math.prod(sent.box.shape):
            yield self._fault(name, "partial", "is held in part only: some of its pieces are missing")
        else:
            yield self._fault(name, "different", "is not what was sent, in one of its pieces")

    def _how(self, name: str, sent: Fingerprint, piece: Fingerprint) -> tuple[How, str]:
        if piece.norm == 0:
            return "zero", "is all zeros"
        for version, tensors in zip(self._earlier, self._older, strict=True):
            if name in tensors and tensors[name].part(piece.box) == piece.total:
                return "stale", f"is stale: it equals version {version.version}"
        if not piece.box.is_whole:
            return _changed(sent, piece)
        base = self._sent.base.get(name)
        if base is not None and base.total == piece.total:
            return "lora-missing", "is the base weight: the LoRA delta is missing"
        other = next((item for item in self._whole.values() if item.name != name and item.total == piece.total), None)
        if other:
            return _exchanged(name, other.name)
        factor = _delta_factor(base, sent, piece) if base is not None else None
        if factor is not None:
            return (
                "lora-scaled",
                f"is the base weight plus {factor:.4g} times the LoRA delta: its alpha or rank differs",
            )
        how, text = self._moved(sent, piece) or _changed(sent, piece)
        return how, text + self._by_values(name)

    def _by_values(self, name: str) -> str:
        """In how many elements and by how much, where both sides recorded values."""
        values = self._sent.values.get(name), self._held.values.get(name)
        if values[0] is None or values[1] is None or values[0].shape != values[1].shape:
            return ""
        gap = np.abs(values[0].astype(np.float64) - values[1].astype(np.float64))
        return f" ({np.count_nonzero(gap)} of {gap.size} elements differ, by up to {gap.max():.3g})"

    def _moved(self, sent: Fingerprint, piece: Fingerprint) -> tuple[How, str] | None:
        if len(sent.box.shape) == 2 and (piece.by_row, piece.by_column) == (sent.by_column, sent.by_row):
            return "transposed", "is transposed"
        if piece.by_column == sent.by_column:
            return "reordered", "has its rows in another order, as heads or parts of a fused tensor"
        if piece.by_row == sent.by_row:
            return "reordered", "has its columns in another order"
        return self._partly(sent, piece)

    def _partly(self, sent: Fingerprint, piece: Fingerprint) -> tuple[How, str] | None:
        if sent.grid.shape != piece.grid.shape:
            return None
        wrong = sent.grid != piece.grid
        if wrong.all() or not wrong.any():
            return None
        what = "not what was sent"
        for version, tensors in zip(self._earlier, self._older, strict=True):
            if sent.name in tensors and (tensors[sent.name].grid == piece.grid)[wrong].all():
                what = f"equal to version {version.version}"
                break
        return "partial", f"is {what} in {int(wrong.sum())} of {wrong.size} blocks, the first at {_first(wrong)}"

    def _fault(self, name: str, how: How, text: str) -> WeightFault:
        return WeightFault(self._held.version, self._held.replica, name, how, text)


def _joined(sent: WeightSnapshot) -> dict[str, Fingerprint]:
    """Whole tensors by name; one that was sent in pieces has no blocks, but all of its sums."""
    return {name: items[0] if items[0].box.is_whole else _whole(items) for name, items in sent.by_name().items()}


def _whole(pieces: list[Fingerprint]) -> Fingerprint:
    first = pieces[0]
    return Fingerprint(
        first.name,
        first.dtype,
        Box.whole(first.box.global_shape),
        np.asarray([[_wrapped(sum(item.total for item in pieces))]], dtype=np.int64),
        _wrapped(sum(item.by_row for item in pieces)),
        _wrapped(sum(item.by_column for item in pieces)),
        math.hypot(*(item.norm for item in pieces)),
        sum(item.sum for item in pieces),
    )


def _wrapped(value: int) -> int:
    """Modulo 2^64 and signed, as each fingerprint is."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _first(wrong: np.ndarray) -> str:
    rows, columns = wrong.nonzero()
    return f"({int(rows[0])}, {int(columns[0])})"


def _delta_factor(base: BaseWeight, sent: Fingerprint, piece: Fingerprint) -> float | None:
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


def _exchanged(name: str, other: str) -> tuple[How, str]:
    if is_expert(name) and is_expert(other):
        return "wrong-expert", f"holds another expert's weights: {other}"
    if is_fused_part(name) and is_fused_part(other):
        return "fused-order", f"holds {other}: the parts of a fused tensor are in another order"
    return "wrong-tensor", f"holds {other}"


def _changed(sent: Fingerprint, piece: Fingerprint) -> tuple[How, str]:
    if sent.dtype != piece.dtype:
        return "quantised", f"was sent in {sent.dtype} and is held in {piece.dtype}"
    if piece.box.is_whole and sent.norm:
        ratio = piece.norm / sent.norm
        stretched = abs(piece.sum - ratio * sent.sum) <= _SCALE * max(abs(piece.sum), piece.norm)
        if abs(ratio - 1) > _SCALE and stretched:
            return "scaled", f"is scaled by {ratio:.6g}"
        near = abs(piece.sum - sent.sum) <= _CLOSE_SUM * sent.norm
        if abs(ratio - 1) <= _CLOSE and near:
            return "quantised", f"is close to what was sent (norm off by {abs(ratio - 1):.2g}): quantised or rounded"
    return "different", "is not what was sent, nor any earlier version"
