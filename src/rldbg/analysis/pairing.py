"""Rows of A's records put beside the rows of B's records that mean the same, whatever file, rank or order they lie in.

A block is a run of rows of one record of A and as many rows of one record of B; comparing works on blocks, so that
equal recordings are compared at the speed of reading them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rldbg.analysis.samples import SamplePairs, StepSamples, pair_samples
from rldbg.analysis.side import Side
from rldbg.core import SampleId
from rldbg.recording import KINDS, Ragged, Record, RecordKey

# Kinds that hold the same data under two names, by mode.
_ALIASES = (("trajectory", "prepared_trajectories"),)


def kinds_to_pair(a: Side, b: Side) -> list[tuple[str, str]]:
    """Kinds both sides have, and kinds that only one side has but the other has by another name."""
    in_a, in_b = set(a.kinds()), set(b.kinds())
    pairs = [(kind, kind) for kind in a.kinds() if kind in in_b]
    for one, other in _ALIASES:
        for left, right in ((one, other), (other, one)):
            if left in in_a - in_b and right in in_b - in_a:
                pairs.append((left, right))
    return pairs


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of a record of A beside rows of a record of B. Without rows (loss, param) `rows` is None."""

    a: Record
    b: Record
    rows_a: np.ndarray | None = None
    rows_b: np.ndarray | None = None


@dataclass(slots=True)
class Pairing:
    """All blocks of one kind at one step, how they were found, and what found no partner."""

    kind: str
    step: int
    method: str
    blocks: list[Block] = field(default_factory=list)
    only_a: list[str] = field(default_factory=list)
    only_b: list[str] = field(default_factory=list)


def pair_kind(
    a: Side, b: Side, kinds: tuple[str, str], step: int, samples_a: StepSamples, samples_b: StepSamples
) -> Pairing:
    """The blocks of one kind at one step; `kinds` is what A and what B call it."""
    kind = kinds[0]
    records_a = list(a.records(kind, step))
    records_b = list(b.records(kinds[1], step))
    if not _has_rows(kind, records_a, records_b):
        return _pair_whole(kind, step, records_a, records_b)
    named_a, named_b = _with_samples(records_a, samples_a), _with_samples(records_b, samples_b)
    if all(ids is not None for _, ids in named_a) and all(ids is not None for _, ids in named_b):
        return _pair_by_sample(kind, step, named_a, named_b, samples_a, samples_b)
    return _pair_by_place(kind, step, records_a, records_b)


def _has_rows(kind: str, *sides: Sequence[Record]) -> bool:
    """Whether records of this kind have one row a sample."""
    if kind in KINDS:
        return KINDS[kind].has_samples and kind != "loss"
    return all(bool(record.samples) for side in sides for record in side)


def row_count(record: Record) -> int:
    """How many samples a record holds."""
    if record.samples:
        return len(record.samples)
    for value in record.fields.values():
        if isinstance(value, Ragged):
            return len(value)
        shape: tuple[int, ...] = getattr(value, "shape", ())
        if shape:
            return shape[0]
    return 0


def _with_samples(records: Sequence[Record], known: StepSamples) -> list[tuple[Record, tuple[SampleId, ...] | None]]:
    """Each record with the samples of its rows: its own, else found through input_ids; None when unknown."""
    by_tokens: dict[bytes, list[SampleId]] = defaultdict(list)
    for sample, tokens in known.tokens.items():
        by_tokens[np.asarray(tokens, dtype="<i8").tobytes()].append(sample)
    return [(record, record.samples or _find_samples(record, by_tokens)) for record in records]


def _find_samples(record: Record, by_tokens: Mapping[bytes, list[SampleId]]) -> tuple[SampleId, ...] | None:
    """The samples whose tokens a record's input_ids are, ignoring padding on either side."""
    ids = record.fields.get("input_ids")
    if ids is None or not by_tokens:
        return None
    taken: dict[bytes, int] = defaultdict(int)
    longest = max(len(tokens) for tokens in by_tokens) // 8
    found = []
    for row in record.rows("input_ids"):
        wide = np.asarray(row, dtype="<i8")
        match = next((key for key in _unpadded(wide, longest) if key in by_tokens), None)
        if match is None or taken[match] >= len(by_tokens[match]):
            return None
        found.append(by_tokens[match][taken[match]])
        taken[match] += 1
    return tuple(found)


def _unpadded(row: np.ndarray, longest: int) -> Iterator[bytes]:
    """The row as it is, then without the run of equal values at its end, its start, or both."""
    yield row.tobytes()
    if row.size == 0:
        return
    pads = (row[0], row[-1])
    starts = range(_run(row, pads[0]) + 1)
    ends = range(_run(row[::-1], pads[1]) + 1)
    for start in starts:
        for end in ends:
            if 0 < row.size - start - end <= longest:
                yield row[start : row.size - end].tobytes()


def _run(row: np.ndarray, value: Any) -> int:
    other = np.flatnonzero(row != value)
    return int(other[0]) if other.size else len(row)


def _pair_by_sample(
    kind: str,
    step: int,
    named_a: Sequence[tuple[Record, tuple[SampleId, ...] | None]],
    named_b: Sequence[tuple[Record, tuple[SampleId, ...] | None]],
    samples_a: StepSamples,
    samples_b: StepSamples,
) -> Pairing:
    ids_a = [sample for _, ids in named_a for sample in ids or ()]
    ids_b = [sample for _, ids in named_b for sample in ids or ()]
    pairs = pair_samples(ids_a, ids_b, samples_a, samples_b)
    pairing = Pairing(kind, step, pairs.method)
    pairing.only_a = [str(sample) for sample in pairs.only_a]
    pairing.only_b = [str(sample) for sample in pairs.only_b]
    places = _places(named_b)
    for record, ids in named_a:
        pairing.blocks.extend(_blocks_of(record, ids or (), pairs, places, pairing))
    pairing.only_b += [str(sample) for (sample, _), queue in places.items() for _ in queue if sample in _values(pairs)]
    return pairing


def _values(pairs: SamplePairs) -> set[SampleId]:
    return set(pairs.to_b.values())


_Place = tuple[Record, int]


def _places(named: Sequence[tuple[Record, tuple[SampleId, ...] | None]]) -> dict[tuple[SampleId, int], list[_Place]]:
    """Where each sample of B lies, by epoch; a sample that occurs twice has two places."""
    places: dict[tuple[SampleId, int], list[_Place]] = defaultdict(list)
    for record, ids in named:
        for row, sample in enumerate(ids or ()):
            places[sample, record.key.epoch].append((record, row))
    return places


def _blocks_of(
    record: Record,
    ids: tuple[SampleId, ...],
    pairs: SamplePairs,
    places: dict[tuple[SampleId, int], list[_Place]],
    pairing: Pairing,
) -> Iterator[Block]:
    """The rows of one record of A, grouped by the record of B they meet."""
    meets: dict[RecordKey, tuple[Record, list[int], list[int]]] = {}
    for row, sample in enumerate(ids):
        partner = pairs.to_b.get(sample)
        if partner is None:
            continue
        queue = places.get((partner, record.key.epoch))
        if not queue:
            pairing.only_a.append(str(sample))
            continue
        other, other_row = queue.pop(0)
        _, rows_a, rows_b = meets.setdefault(other.key, (other, [], []))
        rows_a.append(row)
        rows_b.append(other_row)
    for other, rows_a, rows_b in meets.values():
        yield Block(record, other, np.asarray(rows_a), np.asarray(rows_b))


def _pair_by_place(kind: str, step: int, a: Sequence[Record], b: Sequence[Record]) -> Pairing:
    """Row by row, records with the same (rank, micro, epoch, mini-batch) beside each other."""
    pairing = Pairing(kind, step, "place")
    others = {record.key: record for record in b}
    for record in a:
        other = others.pop(record.key, None)
        if other is None:
            pairing.only_a.append(str(record.key))
            continue
        rows_a, rows_b = row_count(record), row_count(other)
        common = np.arange(min(rows_a, rows_b))
        pairing.blocks.append(Block(record, other, common, common))
        for side, rows, key in ((pairing.only_a, rows_a, record.key), (pairing.only_b, rows_b, other.key)):
            side.extend(f"{key} row {row}" for row in range(len(common), rows))
    pairing.only_b.extend(str(key) for key in others)
    return pairing


def _pair_whole(kind: str, step: int, a: Sequence[Record], b: Sequence[Record]) -> Pairing:
    """Records without rows: parameters by name and rank, the rest by rank and micro-batch."""
    pairing = Pairing(kind, step, "key")
    others = {_whole_key(record): record for record in b}
    for record in a:
        other = others.pop(_whole_key(record), None)
        if other is None:
            pairing.only_a.append(_title(record))
        else:
            pairing.blocks.append(Block(record, other))
    pairing.only_b.extend(_title(record) for record in others.values())
    return pairing


def _whole_key(record: Record) -> tuple[Any, ...]:
    key = record.key
    if "param_name" in record.fields:
        return (record.fields["param_name"], key.rank, key.epoch, key.mini_batch)
    return (key.rank, key.micro, key.epoch, key.mini_batch)


def _title(record: Record) -> str:
    name = record.fields.get("param_name")
    return f"{record.key} {name}" if name else str(record.key)
