"""Losses of two runs that split their mini-batches differently: micro-batches add up to the mini-batch's loss.

Where a record says by what its mini-batch is divided (`extra_info.denominator`), the loss of a micro-batch is its share
of the whole. Where none does, it is a share, a mean of its own, or a share of its rank's loss, which data parallelism
averages over ranks: whichever brings the two sides closer. Where gradients or parameters tell that a loss is the same,
one side may record its shares and the other its means.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

from rldbg.analysis.leaves import is_number
from rldbg.recording import Record

_METRICS_THAT_ADD_UP = ("loss", "pg_loss", "entropy_loss", "kl_loss", "entropy", "tokens")
# Relative: losses that agree, whatever others do.
_SAME = 1e-4
_CLOSER = 0.1
_NEAR_ZERO = 1e-2
# Facts of the mini-batch that every one of its micro-batches repeats.
_SHARED_FACTS = ("denominator", "aggregation")


def terms_of(records: Sequence[Record]) -> list[str]:
    """The loss and its terms, by their names: those of tokens add up, and so does the critic's."""
    return list(dict.fromkeys(name for record in records for name in record.fields if name.endswith("loss")))


def has_denominator(record: Record) -> bool:
    info = record.fields.get("extra_info")
    return isinstance(info, Mapping) and is_number(info.get("denominator"))


def by_mini_batch(records: Sequence[Record]) -> dict[tuple[int, int], Record]:
    """One record per mini-batch, by (epoch, mini_batch): losses added, facts shared."""
    groups: dict[tuple[int, int], list[Record]] = defaultdict(list)
    for record in sorted(records, key=lambda record: record.key):
        groups[record.key.epoch, record.key.mini_batch].append(record)
    return {place: _added(members) for place, members in groups.items()}


Reduced = dict[tuple[int, int], Record]


def by_samples(a: Sequence[Record], b: Sequence[Record], *, each_its_own: bool) -> tuple[Reduced, Reduced]:
    """One record per mini-batch of both sides, without denominators: losses added, or averaged by samples or ranks.

    `each_its_own` lets the sides do so differently.
    """
    tried = [(_reduced(a, weights), _reduced(b, weights)) for weights in (_all_one, _shares, _per_rank)]
    if each_its_own:
        tried += _each_its_own(a, b)
    floor = _floor((*a, *b))
    return min(tried, key=lambda sides: _apart(sides[0], sides[1], floor))


def shares_and_means(
    a: Sequence[Record], b: Sequence[Record], paired: tuple[Mapping[Any, Record], Mapping[Any, Record]]
) -> tuple[Reduced, Reduced] | None:
    """One record per mini-batch, if one side records shares of it and the other means; None if as `paired` they agree.

    The number of micro-batches is a factor that no rounding comes near.
    """
    floor = _floor((*a, *b))
    best = min(_each_its_own(a, b), key=lambda sides: _apart(sides[0], sides[1], floor))
    return best if _median_gap(*best, floor) < _CLOSER * _median_gap(*paired, floor) else None


def other_samples(a: Sequence[Record], b: Sequence[Record]) -> tuple[Reduced, Reduced] | None:
    """One record per mini-batch, if the losses of micro-batches with the same numbers differ and their sums do not."""
    floor = _floor((*a, *b))
    by_key = [{record.key[2:]: record for record in side} for side in (a, b)]
    if not any(gap > _SAME for gap in _gaps(by_key[0], by_key[1], floor)):
        return None
    added = by_samples(a, b, each_its_own=False)
    return None if any(gap > _SAME for gap in _gaps(*added, floor)) else added


def _floor(records: Iterable[Record]) -> float:
    """Losses smaller than this are what rounding leaves where micro-batches cancel."""
    return max((_NEAR_ZERO * abs(float(record.fields.get("loss", 0.0))) for record in records), default=0.0)


def _each_its_own(a: Sequence[Record], b: Sequence[Record]) -> list[tuple[Reduced, Reduced]]:
    return [(_reduced(a, one), _reduced(b, other)) for one, other in permutations((_all_one, _shares))]


def _all_one(members: Sequence[Record]) -> list[float]:
    return [1.0] * len(members)


def _shares(members: Sequence[Record]) -> list[float]:
    samples = sum(len(record.samples) for record in members)
    return [len(record.samples) / samples if samples else 1 / len(members) for record in members]


def _per_rank(members: Sequence[Record]) -> list[float]:
    return [1 / len({record.key.rank for record in members})] * len(members)


def _reduced(records: Sequence[Record], weights_of: Callable[[Sequence[Record]], list[float]]) -> Reduced:
    groups: dict[tuple[int, int], list[Record]] = defaultdict(list)
    for record in sorted(records, key=lambda record: record.key):
        groups[record.key.epoch, record.key.mini_batch].append(record)
    found = {}
    for place, members in groups.items():
        samples = tuple(sample for record in members for sample in record.samples)
        fields = _sums([record.fields for record in members], terms_of(members), weights_of(members))
        found[place] = replace(members[0], fields=fields, samples=samples)
    return found


def _apart(a: Mapping[Any, Record], b: Mapping[Any, Record], floor: float) -> tuple[int, float]:
    """How many mini-batches differ, and the median of their relative differences: a fault in some mini-batches must not
    decide how all of them are added up."""
    gaps = [0.0, *_gaps(a, b, floor)]
    return sum(gap > _SAME for gap in gaps), sorted(gaps)[len(gaps) // 2]


def _median_gap(a: Mapping[Any, Record], b: Mapping[Any, Record], floor: float) -> float:
    gaps = sorted(_gaps(a, b, floor))
    return gaps[len(gaps) // 2] if gaps else 0.0


def _gaps(a: Mapping[Any, Record], b: Mapping[Any, Record], floor: float) -> Iterator[float]:
    for place in a.keys() & b.keys():
        one, other = (float(side[place].fields.get("loss", 0.0)) for side in (a, b))
        yield abs(one - other) / max(abs(one), abs(other), floor, 1e-12)


def _added(records: Sequence[Record]) -> Record:
    first = records[0]
    fields: dict[str, Any] = _sums([record.fields for record in records], terms_of(records))
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


def _sums(
    parts: Sequence[Mapping[str, Any]], names: Sequence[str], weights: Sequence[float] | None = None
) -> dict[str, float]:
    factors = [1.0] * len(parts) if weights is None else weights
    return {
        name: float(sum(factor * float(part[name]) for factor, part in zip(factors, parts, strict=True)))
        for name in names
        if all(is_number(part.get(name)) for part in parts)
    }
