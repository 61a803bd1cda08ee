"""How what an engine holds differs from what the trainer sent: by fingerprints alone, tensor by tensor."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from rldbg.weights.change_kinds import (
    How,
    changed,
    delta_factor,
    dtypes_differ,
    exchanged,
    joint,
    matched_blocks,
    without,
    wrapped,
)
from rldbg.weights.fingerprint import Fingerprint
from rldbg.weights.naming import EMBEDDING, HEAD, fused_name
from rldbg.weights.snapshots import WeightSnapshot


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
    """The faults of every replica at every version that was sent; tensors that are wrong in the same way are one
    fault."""
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
        alike = {"stale": fault.text, "missing": "", "not-sent": "", "zero": "", "quantised": "", "lora-missing": ""}
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
        self._whole = self._with_head(_joined(self._sent))
        self._older = [self._with_head(_joined(version)) for version in self._earlier]
        # By name: what was sent and is held, of the pieces that are wrong, each joined.
        self._wrong: dict[str, tuple[Fingerprint, Fingerprint]] = {}

    def faults(self) -> Iterator[WeightFault]:
        pieces = self._held.by_name()
        found: list[WeightFault] = []
        for name, sent in self._whole.items():
            if name in pieces:
                found += self._of_pieces(name, sent, pieces[name])
            elif not self._is_tied(sent, pieces):
                found.append(self._fault(name, "missing", "was sent, and the engine does not hold it"))
        found += [
            self._fault(name, "not-sent", "is held by the engine and was never sent")
            for name in pieces
            if name not in self._whole and not _is_quantisation_scale(name, self._whole)
        ]
        found += [
            self._fault(name, "lora-missing", "was sent as the base weight: its LoRA delta was not merged")
            for name, base in self._sent.base.items()
            if base.delta_norm > 0 and name in self._whole and self._whole[name].total == base.total
        ]
        yield from self._fused_order(found)

    def _with_head(self, sent: dict[str, Fingerprint]) -> dict[str, Fingerprint]:
        """An engine may keep a head of its own where the trainer has the embedding only."""
        embedding = sent.get(EMBEDDING)
        if embedding is None or HEAD in sent or HEAD not in self._held.by_name():
            return sent
        return sent | {HEAD: replace(embedding, name=HEAD)}

    def _is_tied(self, sent: Fingerprint, held: Mapping[str, object]) -> bool:
        """A tensor that was sent under another name, too, which is held: tied embeddings."""
        return any(
            item.total == sent.total and name != sent.name and name in held for name, item in self._whole.items()
        )

    def _of_pieces(self, name: str, sent: Fingerprint, held: list[Fingerprint]) -> Iterator[WeightFault]:
        """Each piece whose blocks were sent is judged alone; the others by the sum of all."""
        # Replicated pieces have one box.
        own = list({(piece.box, piece.total): (number, piece) for number, piece in enumerate(held)}.values())
        covered = sum(math.prod(box.shape) for box in {piece.box for _, piece in own})
        expected = {piece.box: sent.total if piece.box.is_whole else sent.part(piece.box) for _, piece in own}
        told = all(value is not None for value in expected.values())
        wrong = [(n, piece) for n, piece in own if (expected[piece.box], sent.dtype) != (piece.total, piece.dtype)]
        if (
            not told
            and joint(piece for _, piece in own).total == sent.total
            and all(piece.dtype == sent.dtype for _, piece in own)
        ):
            return
        if not wrong and covered < math.prod(sent.box.shape):
            yield self._fault(name, "partial", "is held in part only: some of its pieces are missing")
        if not wrong:
            return
        right = [piece for _, piece in own if (expected[piece.box], sent.dtype) == (piece.total, piece.dtype)]
        is_all = covered >= math.prod(sent.box.shape)
        both = (without(sent, right), joint(piece for _, piece in wrong)) if is_all else None
        if both is not None:
            self._wrong[name] = both
        for number, piece in wrong if told else wrong[:1]:
            shard = f" shard {number} (at {list(piece.box.offset)} of {list(piece.box.global_shape)})"
            how, text = self._how(name, sent, piece, both)
            where = "" if piece.box.is_whole else shard if told else " (one of its pieces)"
            yield self._fault(name + where, how, text + self._by_values(name, piece))

    def _how(
        self, name: str, sent: Fingerprint, piece: Fingerprint, both: tuple[Fingerprint, Fingerprint] | None
    ) -> tuple[How, str]:
        """By the piece where its blocks were sent; else by what was sent and is held of all wrong pieces together."""
        if piece.norm == 0:
            return "zero", "is all zeros"
        for version, tensors in zip(self._earlier, self._older, strict=True):
            if name in tensors and tensors[name].part(piece.box) == piece.total:
                return "stale", f"is stale: it equals version {version.version}"
        base = self._sent.base.get(name)
        if base is not None and base.part(sent, piece.box) == piece.total:
            return "lora-missing", "is the base weight: the LoRA delta is missing"
        same = (item.name for item in self._whole.values() if item.name != name and item.part(piece.box) == piece.total)
        other = next(same, None)
        if other:
            return exchanged(name, other)
        if both is None:
            return dtypes_differ(sent, piece) or ("different", "is not what was sent")
        expected, joined = both
        if base is not None and joined.box.is_whole and base.total == joined.total:
            return "lora-missing", "is the base weight: the LoRA delta is missing"
        factor = delta_factor(base, expected, joined) if base is not None and joined.box.is_whole else None
        if factor is not None:
            return (
                "lora-scaled",
                f"is the base weight plus {factor:.4g} times the LoRA delta: its alpha or rank differs",
            )
        found = self._moved(expected, joined) or self._partly(sent, piece)
        chosen = sent.blocks(piece.box)
        if sent.values is None or piece.values is None or chosen is None:
            blocks = np.asarray([[expected.norm, expected.sum]]), np.asarray([[joined.norm, joined.sum]])
        else:
            blocks = matched_blocks(sent.values[chosen], piece.values)
        return found or changed(sent, piece, blocks)

    def _by_values(self, name: str, piece: Fingerprint) -> str:
        """In how many elements and by how much, where both sides recorded values."""
        sent_in = self._whole[name].box.shape
        whole, own = self._sent.values.get((name, (0,) * len(sent_in))), self._held.values.get((name, piece.box.offset))
        if whole is None or own is None or sent_in != piece.box.global_shape:
            return ""
        sent, held = (np.asarray(read(), dtype=np.float64) for read in (whole, own))
        box = tuple(slice(start, start + size) for start, size in zip(piece.box.offset, piece.box.shape, strict=True))
        gap = np.abs(sent.reshape(sent_in)[box] - held.reshape(piece.box.shape))
        return f" ({np.count_nonzero(gap)} of {gap.size} elements differ, by up to {gap.max(initial=0):.3g})"

    def _moved(self, sent: Fingerprint, held: Fingerprint) -> tuple[How, str] | None:
        if len(sent.box.shape) == 2 and (held.by_row, held.by_column) == (sent.by_column, sent.by_row):
            return "transposed", "is transposed"
        if held.by_column == sent.by_column:
            return "reordered", "has its rows in a different order, as heads or parts of a fused tensor"
        if held.by_row == sent.by_row:
            return "reordered", "has its columns in a different order"
        return None

    def _partly(self, sent: Fingerprint, piece: Fingerprint) -> tuple[How, str] | None:
        if sent.grid.shape != piece.grid.shape or not piece.box.is_whole:
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

    def _fused_order(self, found: list[WeightFault]) -> Iterator[WeightFault]:
        """Rows that only moved between the parts of one fused tensor: all parts together have the same rows."""
        parts: dict[str, list[str]] = {}
        for name in self._wrong:
            if (fused := fused_name(name)) is not None:
                parts.setdefault(fused, []).append(name)
        moved: dict[str, str] = {}
        for fused, names in parts.items():
            sums = [sum(pair[side].by_column for pair in map(self._wrong.__getitem__, names)) for side in (0, 1)]
            if len(names) > 1 and wrapped(sums[0] - sums[1]) == 0:
                moved |= dict.fromkeys(names, fused)
        for fault in found:
            name = fault.name.partition(" ")[0]
            if name in moved and fault.how in ("different", "reordered", "scaled", "quantised", "partial"):
                text = f"has rows of other parts of {moved[name]}: the parts of a fused tensor are in a different order"
                yield replace(fault, how="fused-order", text=text)
            else:
                yield fault

    def _fault(self, name: str, how: How, text: str) -> WeightFault:
        return WeightFault(self._held.version, self._held.replica, name, how, text)


def _joined(sent: WeightSnapshot) -> dict[str, Fingerprint]:
    """Whole tensors by name; one that was sent in pieces has no blocks, but all of its sums."""
    return {name: items[0] if items[0].box.is_whole else _whole(items) for name, items in sent.by_name().items()}


def _whole(pieces: list[Fingerprint]) -> Fingerprint:
    return joint({item.box: item for item in pieces}.values())


def _first(wrong: np.ndarray) -> str:
    rows, columns = wrong.nonzero()
    return f"({int(rows[0])}, {int(columns[0])})"


def _is_quantisation_scale(name: str, sent: Mapping[str, Fingerprint]) -> bool:
    """Additional tensors that an engine holds for a quantised tensor."""
    module, _, own = name.rpartition(".")
    return f"{module}.weight" in sent and own.endswith(("_scale", "_scale_inv", "_zero_point", "_scale_2"))
