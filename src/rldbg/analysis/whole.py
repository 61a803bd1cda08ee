"""Pairs records without rows of samples: losses, parameters, and tensors of a user's own kinds.

Every record of either side is paired with at least one of the other, or reported as left over. Copies that
only one side has (a different number of data-parallel ranks) are compared with the copy the other side has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rldbg.analysis.losses import by_mini_batch, by_samples, has_denominator, other_samples, shares_and_means
from rldbg.core import SampleId
from rldbg.recording import CannotAssemble, Record, assemble, is_sharded


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of a record of A paired with rows of a record of B. Without rows (loss, param) `rows` is None.

    `samples` names A's samples where the record itself does not.
    """

    a: Record
    b: Record
    rows_a: np.ndarray | None = None
    rows_b: np.ndarray | None = None
    samples: tuple[SampleId, ...] = ()

    def sample_of(self, position: int) -> str | None:
        """The id of the sample in the block's row, as text."""
        ids = self.a.samples or self.samples
        return str(ids[int(self.rows_a[position])]) if ids and self.rows_a is not None else None


@dataclass(frozen=True, slots=True)
class Unpaired:
    """What has no counterpart: the record, and the sample of it that is meant, if it is one."""

    record: Record
    row: int | None = None
    sample: str | None = None

    def __str__(self) -> str:
        if self.sample is not None:
            return self.sample
        name = self.record.fields.get("param_name")
        text = f"{self.record.key} {name}" if name else str(self.record.key)
        return text if self.row is None else f"{text} row {self.row}"


@dataclass(slots=True)
class Pairing:
    """All blocks of one kind at one step, how they were found, and what has no counterpart."""

    kind: str
    step: int
    method: str
    blocks: list[Block] = field(default_factory=list)
    only_a: list[Unpaired] = field(default_factory=list)
    only_b: list[Unpaired] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def pair_losses(
    kind: str,
    step: int,
    a: Sequence[Record],
    b: Sequence[Record],
    to_b: Mapping[Any, Any],
    *,
    updates_tell: bool,
) -> Pairing:
    """By the samples of each micro-batch where both sides split alike, else by mini-batch, else by rank and micro.

    Where gradients or parameters tell whether the update is the same, a loss may be recorded as a mean of its
    micro-batch on one side and as its share of the mini-batch's on the other.
    """
    pairing = Pairing(kind, step, "samples")
    others = {_content(record, None): record for record in b}
    mine = {_content(record, to_b): record for record in a}
    have_samples = all(record.samples for record in (*a, *b))
    are_distinct = len(mine) == len(a) and len(others) == len(b)
    is_one_cut = have_samples and are_distinct and set(mine) == set(others)
    if is_one_cut and updates_tell and (added := shares_and_means(a, b, (mine, others))) is not None:
        note = "one side records each micro-batch's share of the loss, the other its mean"
        return _by_mini_batch(pairing, f"{note}: both were summed per mini-batch", *added)
    if is_one_cut:
        pairing.blocks = [Block(record, others[content]) for content, record in mine.items()]
        return pairing
    cut_alike = not have_samples and {record.key[2:] for record in a} == {record.key[2:] for record in b}
    if not cut_alike and all(has_denominator(record) for record in (*a, *b)):
        note = "micro-batches are split differently: their losses were summed per mini-batch"
        return _by_mini_batch(pairing, note, by_mini_batch(a), by_mini_batch(b))
    if cut_alike and (added := other_samples(a, b)) is not None:
        note = "not all losses say which samples they are of, and only their sums agree: they were added up"
        return _by_mini_batch(pairing, note, *added)
    are_unknown = not cut_alike and not have_samples
    is_one_division = _mini_batches(_content(record, to_b) for record in a) == _mini_batches(
        _content(record, None) for record in b
    )
    if are_unknown or (have_samples and is_one_division):
        note = (
            "micro-batches are split differently and no record has a denominator: their losses were summed, or "
            "averaged over samples, whichever agrees better"
        )
        return _by_mini_batch(pairing, note, *by_samples(a, b, each_its_own=updates_tell))
    pairing.method = "key"
    _match(pairing, {record.key[2:]: record for record in a}, {record.key[2:]: record for record in b})
    return pairing


def _by_mini_batch(pairing: Pairing, note: str, a: Mapping[Any, Record], b: Mapping[Any, Record]) -> Pairing:
    pairing.method = "mini-batch"
    pairing.notes.append(note)
    _match(pairing, a, b)
    return pairing


def _mini_batches(contents: Iterable[tuple[Any, ...]]) -> dict[tuple[Any, ...], list[str]]:
    """The samples of each mini-batch, however it is cut."""
    found: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for epoch, mini_batch, names in contents:
        found[epoch, mini_batch] += names
    return {place: sorted(names) for place, names in found.items()}


def _content(record: Record, to_b: Mapping[Any, Any] | None) -> tuple[Any, ...]:
    """What a micro-batch is, whatever rank or number it has: its samples, in the names of B."""
    names = record.samples if to_b is None else tuple(to_b.get(sample, sample) for sample in record.samples)
    return (record.key.epoch, record.key.mini_batch, tuple(sorted(map(str, names))))


def pair_tensors(kind: str, step: int, a: Sequence[Record], b: Sequence[Record]) -> Pairing:
    """Parameters by name, other tensors by their number; shards are assembled if they differ in layout."""
    pairing = Pairing(kind, step, "key")
    groups_a, groups_b = _groups(a), _groups(b)
    for key, members in groups_a.items():
        others = groups_b.pop(key, [])
        if not others:
            pairing.only_a.extend(Unpaired(record) for record in members)
        else:
            _pair_group(pairing, members, others)
    pairing.only_b.extend(Unpaired(record) for members in groups_b.values() for record in members)
    return pairing


def _groups(records: Iterable[Record]) -> dict[tuple[Any, ...], list[Record]]:
    """Records that are about the same thing on different ranks."""
    groups: dict[tuple[Any, ...], list[Record]] = defaultdict(list)
    for record in records:
        key = record.key
        name = record.fields.get("param_name")
        groups[name if name else key.micro, key.epoch, key.mini_batch].append(record)
    return groups


def _pair_group(pairing: Pairing, a: list[Record], b: list[Record]) -> None:
    if _cut_alike(a, b):
        _match(pairing, {record.key.rank: record for record in a}, {record.key.rank: record for record in b})
        return
    try:
        wholes_a, wholes_b = assemble(a), assemble(b)
    except CannotAssemble as reason:
        pairing.notes.append(f"{a[0].key}: {reason}")
        pairing.only_a.extend(Unpaired(record) for record in a)
        pairing.only_b.extend(Unpaired(record) for record in b)
        return
    ranks_a = {record.key.rank: record for record in wholes_a}
    ranks_b = {record.key.rank: record for record in wholes_b}
    if not (_are_copies(wholes_a) and _are_copies(wholes_b)):
        common = ranks_a.keys() & ranks_b.keys() if pairing.kind == "training_metrics" else ()
        # Each rank notes its metrics: with other ranks on the other side there are more of them, not other ones.
        kept = [{rank: found[rank] for rank in common} if common else found for found in (ranks_a, ranks_b)]
        _match(pairing, *kept)
        return
    seen = set()
    for rank in sorted({*ranks_a, *ranks_b}):
        one, other = (ranks.get(rank, ranks[min(ranks)]) for ranks in (ranks_a, ranks_b))
        if (one.key, other.key) not in seen:
            seen.add((one.key, other.key))
            pairing.blocks.append(Block(one, other))


def _cut_alike(a: Sequence[Record], b: Sequence[Record]) -> bool:
    def cut(records: Sequence[Record]) -> dict[int, tuple[bool, dict[str, int], list[tuple[int, ...]]]]:
        return {
            record.key.rank: (
                is_sharded(record),
                dict(record.coordinates) if is_sharded(record) else {},
                [np.shape(value) for value in record.fields.values() if isinstance(value, np.ndarray)]
                if is_sharded(record)
                else [],
            )
            for record in records
        }

    return len(a) == len(b) and cut(a) == cut(b)


def _are_copies(records: Sequence[Record]) -> bool:
    """Whether ranks hold the same thing: parameters do; other tensors unless they stand apart in data parallelism."""
    if len(records) == 1 or "param_name" in records[0].fields:
        return True
    places = {record.coordinates.get("dp", 0) for record in records}
    return len(places) == 1 and all(record.coordinates for record in records)


def _match(pairing: Pairing, a: Mapping[Any, Record], b: Mapping[Any, Record]) -> None:
    """Pairs equal keys; the rest is left over."""
    for key, record in a.items():
        if key in b:
            pairing.blocks.append(Block(record, b[key]))
        else:
            pairing.only_a.append(Unpaired(record))
    pairing.only_b.extend(Unpaired(record) for key, record in b.items() if key not in a)
