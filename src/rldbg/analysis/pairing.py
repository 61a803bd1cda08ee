"""Pairs rows of A's records with the matching rows of B's records, whatever file, rank or order they are in.

A block is a run of rows of one record of A and as many rows of one record of B; comparing works on blocks, so that
equal recordings are compared at the speed of reading them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rldbg.analysis.losses import terms_of
from rldbg.analysis.samples import SamplePairs, StepSamples, pair_samples, token_bytes
from rldbg.analysis.side import ROLLOUT_KINDS, Side
from rldbg.analysis.whole import Block, Pairing, Unpaired, pair_losses, pair_tensors
from rldbg.core import SampleId
from rldbg.recording import KINDS, Ragged, Record

# Kinds that hold the same data under two names, by mode; a trainer's service has old log probs among its loss data.
_ALIASES = (ROLLOUT_KINDS, ("old_log_probs", "is_loss_debug"))
_OLD, _OLD_MASK = "old_log_probs", "effective_valid"


# A record and the samples of its rows, None where they are not known.
_Named = tuple[Record, tuple[SampleId, ...] | None]


def kinds_to_pair(a: Side, b: Side) -> list[tuple[str, str]]:
    """Kinds both sides have, and kinds that only one side has but the other has by another name."""
    in_a, in_b = set(a.kinds()), set(b.kinds())
    pairs = [(kind, kind) for kind in a.kinds() if kind in in_b]
    for one, other in _ALIASES:
        for left, right in ((one, other), (other, one)):
            if left in in_a - in_b and right in in_b - in_a:
                pairs.append((left, right))
    return pairs


def pair_kind(
    a: Side, b: Side, kinds: tuple[str, str], step: int, samples_a: StepSamples, samples_b: StepSamples
) -> Pairing:
    """The blocks of one kind at one step; `kinds` is what A and what B call it."""
    kind = kinds[0]
    records_a = list(a.records(kind, step))
    records_b = list(b.records(kinds[1], step))
    if kind == "loss":
        are_named = all(record.samples for record in (*records_a, *records_b))
        records_a, records_b = _losses(a, step, records_a, samples_a), _losses(b, step, records_b, samples_b)
        return _pair_losses(kind, step, (a, records_a, samples_a), (b, records_b, samples_b), are_named=are_named)
    if not _has_rows(kind, records_a, records_b):
        return pair_tensors(kind, step, records_a, records_b)
    pairing = Pairing(kind, step, "ids")
    for copy_a, copy_b in _copies(records_a, records_b):
        part = _pair_rows(kind, step, copy_a, copy_b, samples_a, samples_b)
        pairing.method = part.method
        pairing.blocks += part.blocks
        pairing.only_a += part.only_a
        pairing.only_b += part.only_b
    if set(kinds) == {"old_log_probs", "is_loss_debug"}:
        pairing.blocks = [_masked_like_losses(block) for block in pairing.blocks]
    are_named = all(record.samples for record in (*records_a, *records_b))
    if kind == "value_loss" and (are_named or any(not _is_whole(block) for block in pairing.blocks)):
        mine, others = ([*map(_numbers, records)] for records in (records_a, records_b))
        losses = _pair_losses(kind, step, (a, mine, samples_a), (b, others, samples_b), are_named=True)
        if losses.method != "samples":
            # Cut differently, or shares on one side and means on the other: losses belong to no row.
            pairing.blocks = [*map(_without_numbers, pairing.blocks), *losses.blocks]
            pairing.notes += losses.notes
    return pairing


_Losses = tuple[Side, list[Record], StepSamples]


def _pair_losses(kind: str, step: int, a: _Losses, b: _Losses, *, are_named: bool) -> Pairing:
    (side_a, records_a, samples_a), (side_b, records_b, samples_b) = a, b
    pairs = pair_samples(_ids(records_a), _ids(records_b), samples_a, samples_b)
    to_b = pairs.to_b
    if not are_named or pairs.method != "ids":
        # Samples with equal tokens are interchangeable, and go by the name of the first of them.
        names = _first_alike(samples_b)
        to_b = {sample: names.get(partner, partner) for sample, partner in to_b.items()}
        records_b = [
            replace(item, samples=tuple(names.get(sample, sample) for sample in item.samples)) for item in records_b
        ]
    updates_tell = any(
        all(step in side.steps(of_update) for side in (side_a, side_b)) for of_update in ("gradient", "param")
    )
    return pair_losses(kind, step, records_a, records_b, to_b, updates_tell=updates_tell)


def _is_whole(block: Block) -> bool:
    rows = ((block.a, block.rows_a), (block.b, block.rows_b))
    return all(chosen is None or len(chosen) == row_count(record) for record, chosen in rows)


def _numbers(record: Record) -> Record:
    """A record of losses of tokens without the tokens."""
    return replace(record, fields={name: record.fields[name] for name in terms_of([record])})


def _without_numbers(block: Block) -> Block:
    """A block of tokens without the losses of their records."""
    losses = terms_of([block.a, block.b])
    a, b = (
        replace(record, fields={name: value for name, value in record.fields.items() if name not in losses})
        for record in (block.a, block.b)
    )
    return replace(block, a=a, b=b)


def _ids(records: Sequence[Record]) -> list[SampleId]:
    return [sample for record in records for sample in record.samples]


def _losses(side: Side, step: int, records: list[Record], known: StepSamples) -> list[Record]:
    """Losses with the samples of the pass that made them, where the loop recorded those with the pass only."""
    if all(record.samples for record in records):
        return records
    passes: dict[tuple[int, ...], tuple[SampleId, ...]] = {}
    for kind in ("batch_inputs", "forward_data"):
        of_kind: dict[tuple[int, ...], tuple[SampleId, ...]] = defaultdict(tuple)
        for record, ids in _with_samples(list(side.records(kind, step)), known):
            of_kind[record.key[2:]] += ids or ()  # a loop may call its model several times per micro-batch
        passes |= {key: ids for key, ids in of_kind.items() if ids}
    return [replace(record, samples=record.samples or passes.get(record.key[2:], ())) for record in records]


def _first_alike(known: StepSamples) -> dict[SampleId, SampleId]:
    """Maps samples with equal tokens to the first of them."""
    first: dict[bytes, SampleId] = {}
    return {
        sample: first.setdefault(token_bytes(known.tokens[sample]), sample) for sample in sorted(known.tokens, key=str)
    }


def _copies(a: Sequence[Record], b: Sequence[Record]) -> list[tuple[list[Record], list[Record]]]:
    """Ranks that differ only in tensor, pipeline or context parallelism have the same samples: one pair per copy."""
    copies_a, copies_b = _by_copy(a), _by_copy(b)
    if not copies_a or not copies_b:
        return [(list(a), list(b))]
    pairs = []
    for place in sorted({*copies_a, *copies_b}):
        mine = place if place in copies_a else min(copies_a)
        other = place if place in copies_b else min(copies_b)
        if (mine, other) not in pairs:
            pairs.append((mine, other))
    return [(copies_a[mine], copies_b[other]) for mine, other in pairs]


def _by_copy(records: Sequence[Record]) -> dict[tuple[tuple[str, int], ...], list[Record]]:
    groups: dict[tuple[tuple[str, int], ...], list[Record]] = defaultdict(list)
    for record in records:
        groups[tuple(sorted(item for item in record.coordinates.items() if item[0] != "dp"))].append(record)
    return groups


def _pair_rows(
    kind: str, step: int, a: Sequence[Record], b: Sequence[Record], samples_a: StepSamples, samples_b: StepSamples
) -> Pairing:
    named_a, named_b = _with_samples(a, samples_a), _with_samples(b, samples_b)
    if all(ids is not None for _, ids in named_a) and all(ids is not None for _, ids in named_b):
        return _pair_by_sample(kind, step, named_a, named_b, samples_a, samples_b)
    return _pair_by_place(kind, step, a, b)


def _has_rows(kind: str, *sides: Sequence[Record]) -> bool:
    """Whether records of this kind have one row per sample."""
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
    if any(not record.samples and "input_ids" in record.fields for record in records):
        for sample in sorted(known.tokens, key=str):
            by_tokens[token_bytes(known.tokens[sample])].append(sample)
    # Samples with equal tokens are given out in turn, once per optimizer step.
    taken: dict[tuple[int, int], dict[bytes, int]] = defaultdict(lambda: defaultdict(int))
    return [
        (record, record.samples or _find_samples(record, by_tokens, taken[record.key.epoch, record.key.mini_batch]))
        for record in records
    ]


def _find_samples(
    record: Record, by_tokens: Mapping[bytes, list[SampleId]], taken: dict[bytes, int]
) -> tuple[SampleId, ...] | None:
    """The samples whose tokens a record's input_ids are, ignoring padding on either side."""
    ids = record.fields.get("input_ids")
    if ids is None or not by_tokens:
        return None
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
    named_a: Sequence[_Named],
    named_b: Sequence[_Named],
    samples_a: StepSamples,
    samples_b: StepSamples,
) -> Pairing:
    if _in_step(named_a, named_b) and not (samples_a.made_up_ids or samples_b.made_up_ids):
        return Pairing(kind, step, "ids", [_whole(one, other) for one, other in zip(named_a, named_b, strict=True)])
    # A sample meets itself in the same update, whatever micro-batch it is in there.
    named_a, named_b = (sorted(named, key=lambda item: item[0].key[4:]) for named in (named_a, named_b))
    ids_a = [sample for _, ids in named_a for sample in ids or ()]
    ids_b = [sample for _, ids in named_b for sample in ids or ()]
    pairs = pair_samples(ids_a, ids_b, samples_a, samples_b)
    pairing = Pairing(kind, step, pairs.method)
    places = _places(named_b)
    for record, ids in named_a:
        pairing.blocks.extend(_blocks_of(record, ids or (), pairs, places, pairing))
    left = [(record, row, sample) for (sample, _), queue in places.items() for record, row in queue]
    pairing.only_b += [Unpaired(record, row, str(sample)) for record, row, sample in left]
    return pairing


def _in_step(named_a: Sequence[_Named], named_b: Sequence[_Named]) -> bool:
    """Whether both sides have the same samples in the same order of the same records, as two runs of one setup have."""
    if len(named_a) != len(named_b):
        return False
    return all(a.key[2:] == b.key[2:] and ids == others for (a, ids), (b, others) in zip(named_a, named_b, strict=True))


def _whole(one: _Named, other: _Named) -> Block:
    rows = np.arange(len(one[1] or ()))
    return Block(one[0], other[0], rows, rows, one[1] or ())


_Place = tuple[Record, int]


def _places(named: Sequence[_Named]) -> dict[tuple[SampleId, int], list[_Place]]:
    """The place of each sample of B, by epoch; a sample that occurs twice has two places."""
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
    """The rows of one record of A, grouped by the record of B they are paired with."""
    # By identity: a loop that calls its model several times per micro-batch has several records of one key.
    meets: dict[int, tuple[Record, list[int], list[int]]] = {}
    for row, sample in enumerate(ids):
        partner = pairs.to_b.get(sample)
        queue = places.get((partner, record.key.epoch)) if partner is not None else None
        if not queue:
            pairing.only_a.append(Unpaired(record, row, str(sample)))
            continue
        other, other_row = queue.pop(0)
        _, rows_a, rows_b = meets.setdefault(id(other), (other, [], []))
        rows_a.append(row)
        rows_b.append(other_row)
    for other, rows_a, rows_b in meets.values():
        yield Block(record, other, np.asarray(rows_a), np.asarray(rows_b), ids)


def _parts_of_one(a: Sequence[Record], b: Sequence[Record]) -> Iterator[Block]:
    """One side has the whole step in one record, the other in parts: in the order of ranks and micro-batches."""
    start = 0
    for part in a if len(b) == 1 else b:
        own = np.arange(row_count(part))
        whole = own + start
        start += len(own)
        yield Block(part, b[0], own, whole) if len(b) == 1 else Block(a[0], part, whole, own)


def _pair_by_place(kind: str, step: int, a: Sequence[Record], b: Sequence[Record]) -> Pairing:
    """Row by row, pairing records with the same (rank, micro, epoch, mini-batch)."""
    pairing = Pairing(kind, step, "place")
    if 1 in (len(a), len(b)) and len(a) != len(b) and sum(map(row_count, a)) == sum(map(row_count, b)):
        pairing.blocks += _parts_of_one(a, b)
        return pairing
    others = {record.key[2:]: record for record in b}
    for record in a:
        other = others.pop(record.key[2:], None)
        if other is None:
            pairing.only_a.append(Unpaired(record))
            continue
        rows_a, rows_b = row_count(record), row_count(other)
        common = np.arange(min(rows_a, rows_b))
        pairing.blocks.append(Block(record, other, common, common))
        for side, rows, whose in ((pairing.only_a, rows_a, record), (pairing.only_b, rows_b, other)):
            side.extend(Unpaired(whose, row) for row in range(len(common), rows))
    pairing.only_b.extend(Unpaired(record) for record in others.values())
    return pairing


def _masked_like_losses(block: Block) -> Block:
    """The block with the old log probs of one side as the other side has them; as it is if that says no mask.

    A trainer records them for whole responses and without a mask; a service has them among the data of its losses and
    says which tokens count. So the trainer's rows get the shape and the mask of the service's, and a token that is not
    trained on cannot differ.
    """
    if block.rows_a is None or block.rows_b is None:
        return block
    if block.a.key.kind == _OLD:
        shaped = _shaped_like(block.a, block.rows_a, block.b, block.rows_b)
        return block if shaped is None else replace(block, a=shaped, rows_a=np.arange(len(block.rows_a)), samples=())
    shaped = _shaped_like(block.b, block.rows_b, block.a, block.rows_a)
    return block if shaped is None else replace(block, b=shaped, rows_b=np.arange(len(block.rows_b)))


def _shaped_like(record: Record, rows: np.ndarray, other: Record, other_rows: np.ndarray) -> Record | None:
    model, mask = other.fields.get(_OLD), other.fields.get(_OLD_MASK)
    if model is None or mask is None or isinstance(model, Ragged) or isinstance(mask, Ragged):
        return None
    valid = other.array(_OLD_MASK)[other_rows]
    values = np.zeros(valid.shape, np.float32)
    every = list(record.rows(_OLD))
    for place, row in enumerate(rows.tolist()):
        width = min(len(every[row]), valid.shape[1])
        values[place, :width] = every[row][:width]
    ids = tuple(record.samples[row] for row in rows.tolist()) if record.samples else ()
    key = record.key._replace(kind=other.key.kind)
    return replace(record, key=key, fields={_OLD: values, _OLD_MASK: valid}, samples=ids, prompt_hashes=())
