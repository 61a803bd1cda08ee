"""Losses of two runs that split their mini-batches differently: micro-batches add up to the mini-batch's loss.

That holds where a record says by what its mini-batch is divided (`extra_info.denominator`): the loss of a micro-batch
is then its share of the whole, not a mean of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rldbg.analysis.leaves import is_number
from rldbg.recording import Record

_ADDS_UP = ("loss", "pg_loss", "entropy_loss", "kl_loss")
_METRICS_THAT_ADD_UP = (*_ADDS_UP, "entropy", "tokens")
# Facts of the mini-batch that every one of its micro-batches repeats.
_SHARED_FACTS = ("denominator", "aggregation")


def has_denominator(record: Record) -> bool:
    info = record.fields.get("extra_info")
    return isinstance(info, Mapping) and is_number(info.get("denominator"))


def by_mini_batch(records: Sequence[Record]) -> dict[tuple[int, int], Record]:
    """One record per mini-batch, by (epoch, mini_batch): losses added, facts shared."""
    groups: dict[tuple[int, int], list[Record]] = defaultdict(list)
    for record in sorted(records, key=lambda record: record.key):
        groups[record.key.epoch, record.key.mini_batch].append(record)
    return {place: _added(members) for place, members in groups.items()}


def _added(records: Sequence[Record]) -> Record:
    first = records[0]
    fields: dict[str, Any] = _sums([record.fields for record in records], _ADDS_UP)
    metrics = [record.fields.get("metrics") for record in records]
    if all(isinstance(item, Mapping) for item in metrics):
        fields["metrics"] = _sums([item for item in metrics if isinstance(item, Mapping)], _METRICS_THAT_ADD_UP)
    info = [record.fields["extra_info"] for record in records]
    fields["extra_info"] = {
        name: values[0] if len(set(values)) == 1 else values
        for name in _SHARED_FACTS
        if (values := [item.get(name) for item in info])
    }
    samples = tuple(sample for record in records for sample in record.samples)
    return replace(first, fields=fields, samples=samples)


def _sums(parts: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, float]:
    return {
        name: float(sum(float(part[name]) for part in parts))
        for name in names
        if all(is_number(part.get(name)) for part in parts)
    }
