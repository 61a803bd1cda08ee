"""One field of one block, compared, with the place of the first and the worst difference."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rldbg.analysis.leaves import ABSENT, IDENTITY_KEYS, compare_leaf, is_array, is_time, leaf_pairs
from rldbg.analysis.measure import measure
from rldbg.analysis.measured import Measured
from rldbg.analysis.pairing import row_count
from rldbg.analysis.row_places import RowPlace
from rldbg.analysis.rows import Rows, compare_rows
from rldbg.analysis.stages import Stage, stage_of
from rldbg.analysis.tolerances import OF_MODEL, Tolerance, Tolerances, is_learning_rate
from rldbg.analysis.unpadding import TRAINED
from rldbg.analysis.whole import Block
from rldbg.recording import Ragged, Record

# If both sides have a parameter's tensor, these follow from it; its dtype decides its tolerance.
_FROM_TENSOR = frozenset({"dtype", "norm", "mean", "std", "hash"})
_TENSORS = ("param", "gradient")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a difference is, and the two values there."""

    rank: int
    micro: int
    row: int | None
    sample: str | None
    token: int | None
    index: tuple[int, ...] | None
    a: Any
    b: Any
    name: str = ""


@dataclass(frozen=True, slots=True)
class FieldDifference:
    """What comparing one field of one block found."""

    measured: Measured
    tolerance: Tolerance
    first: Place | None = None
    worst: Place | None = None
    odd: Place | None = None
    note: str = ""

    @property
    def equal(self) -> bool:
        return self.first is None


def compare_block(block: Block, tolerances: Tolerances) -> Iterator[tuple[str, FieldDifference]]:
    """Every field both records have, in A's order."""
    tolerances = tolerances.at(block.a.key.step, block.a.key.epoch, block.a.key.mini_batch)
    rows = None
    if block.rows_a is not None and block.rows_b is not None:
        rows = Rows(block.a, block.b, block.rows_a, block.rows_b)
    for name in shared_fields(block):
        a, b = block.a.fields[name], block.b.fields[name]
        if is_array(a) and is_array(b):
            yield name, _compare_field(block, rows, name, tolerances)
        elif block.rows_a is not None and _is_row_list(block.a, a) and _is_row_list(block.b, b):
            assert block.rows_b is not None
            chosen_a, chosen_b = [a[row] for row in block.rows_a], [b[row] for row in block.rows_b]
            yield from _compare_data(block, name, chosen_a, chosen_b, tolerances)
        elif block.rows_a is None or _is_whole(block):
            yield from _compare_data(block, name, a, b, tolerances)


def shared_fields(block: Block) -> Iterator[str]:
    """The fields both records have, in A's order, without those that follow from another field."""
    both = [name for name in block.a.fields if name in block.b.fields and name not in (*IDENTITY_KEYS, TRAINED)]
    derived = _FROM_TENSOR if any(name in both for name in _TENSORS) else ()
    return (name for name in both if name not in derived)


def _compare_field(block: Block, rows: Rows | None, name: str, tolerances: Tolerances) -> FieldDifference:
    """One array field of a block."""
    quantity = OF_MODEL if name in ("reward", "advantages") and _is_of_model(block, name) else ""
    tolerance = tolerances.of(block.a.key.kind, name, block.a.dtype(name), block.b.dtype(name), quantity)
    if rows is None or not (_has_row_each(block.a, name) and _has_row_each(block.b, name)):
        return compare_tensors(block, name, tolerance)
    found = compare_rows(rows, name, tolerance)
    if found is None:
        shapes = [list(record.fields[name].shape) for record in (block.a, block.b)]
        return _shape_clash(block, tolerance, *shapes)
    first, worst, odd = (_row_place(block, place) for place in (found.first, found.worst, found.odd))
    note = "lengths differ" if found.lengths_differ else ""
    return FieldDifference(found.measured, tolerance, first, worst, odd, note)


_ROWS_LOOKED_AT, _FEWEST_REWARDS = 16, 4
_TOLD_APART, _MANY_AMOUNTS = 1000, 100


def _is_of_model(block: Block, name: str) -> bool:
    """Whether rewards, or advantages, follow from what a model computed: a critic's, or with a KL in the reward.

    Rules give most samples the same reward on both sides, to the last bit: one that rounding moves in most samples, by
    as many amounts, is a sum of log probs.
    """
    if name == "advantages" and _is_of_critic(block.a) and _is_of_critic(block.b):
        return True
    if block.rows_a is None or block.rows_b is None or not all("reward" in side.fields for side in (block.a, block.b)):
        return False
    a, b = (np.asarray(side.array("reward"), np.float32).reshape(-1) for side in (block.a, block.b))
    if len(a) != row_count(block.a) or len(b) != row_count(block.b):
        return False
    one, other = a[block.rows_a], b[block.rows_b]
    apart = one != other
    if len(apart) < _FEWEST_REWARDS or 2 * int(np.count_nonzero(apart)) <= len(apart):
        return False
    return not _are_few(one[apart].astype(np.float64) - other[apart], float(np.spacing(np.abs(one).max())))


def _are_few(gaps: np.ndarray, spacing: float) -> bool:
    """Whether many samples are apart by a few amounts, as by a rule for all or for each length: noise has no two alike.

    Amounts are told apart to a thousandth of the largest, where single precision does so.
    """
    largest = float(np.abs(gaps).max())
    amounts = len(np.unique(np.round(_TOLD_APART * gaps / largest))) if np.isfinite(largest) else 1
    return largest > _TOLD_APART * spacing and amounts <= min(len(gaps) / 2, _MANY_AMOUNTS)


def _is_of_critic(record: Record) -> bool:
    """Whether advantages differ from token to token in most samples, and so follow from what a model computed."""
    rows = [np.asarray(row) for row in itertools.islice(record.rows("advantages"), _ROWS_LOOKED_AT)]
    told = [len(np.unique(row[row != 0])) > 1 for row in rows if np.count_nonzero(row) > 1]
    return 2 * sum(told) > len(told)


def _is_whole(block: Block) -> bool:
    """Whether a block holds all rows of both records, so that what belongs to no row can be compared too."""
    assert block.rows_a is not None and block.rows_b is not None
    return len(block.rows_a) == row_count(block.a) and len(block.rows_b) == row_count(block.b)


def _has_row_each(record: Record, name: str) -> bool:
    """Whether a field has one row per sample; a user's kind may hold other tensors beside its samples."""
    value = record.fields[name]
    shape = (len(value),) if isinstance(value, Ragged) else value.shape
    return bool(shape) and shape[0] == row_count(record)


def _is_row_list(record: Record, value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == row_count(record)


def compare_tensors(
    block: Block, name: str, tolerance: Tolerance, allowance: np.ndarray | None = None
) -> FieldDifference:
    """A field without rows; `allowance` is added to the tolerance of each element."""
    a, b = (_tensor(record.fields[name]) for record in (block.a, block.b))
    if a.shape != b.shape:
        return _shape_clash(block, tolerance, list(a.shape), list(b.shape))
    measured = measure(a, b, tolerance, allowance=allowance)
    first, worst, odd = (_tensor_place(block, a, b, flat) for flat in (measured.first, measured.worst, measured.odd))
    return FieldDifference(measured, tolerance, first, worst, odd)


def _tensor(value: Any) -> Any:
    return value.values if isinstance(value, Ragged) else value


def _tensor_place(block: Block, a: Any, b: Any, flat: int | None) -> Place | None:
    if flat is None:
        return None
    index = tuple(int(part) for part in np.unravel_index(flat, a.shape))
    value_a, value_b = (np.asarray(side[index]).item() for side in (a, b))
    key = block.a.key
    return Place(key.rank, key.micro, None, None, None, index, value_a, value_b, _name(block))


def _name(block: Block) -> str:
    """The parameter, or the call with its module, that a record is about; a user's kind may have neither as text."""
    fields = block.a.fields
    names = [fields.get("param_name")] if "param_name" in fields else [fields.get("name"), fields.get("module")]
    return " in ".join(name for name in names if isinstance(name, str) and name)


def _shape_clash(block: Block, tolerance: Tolerance, a: list[int], b: list[int]) -> FieldDifference:
    key = block.a.key
    place = Place(key.rank, key.micro, None, None, None, None, a, b, _name(block))
    found = Measured(compared=1, beyond=1, max_abs=math.inf)
    return FieldDifference(found, tolerance, place, place, note=f"shapes differ: {a} and {b}")


def _row_place(block: Block, place: RowPlace | None) -> Place | None:
    if place is None:
        return None
    assert block.rows_a is not None
    row = int(block.rows_a[place.position])
    sample = block.sample_of(place.position)
    key = block.a.key
    return Place(key.rank, key.micro, row, sample, place.column, None, place.a, place.b)


def _compare_data(
    block: Block, name: str, a: Any, b: Any, tolerances: Tolerances
) -> Iterator[tuple[str, FieldDifference]]:
    """Data that is not an array; what a sample holds beside its tokens is compared key by key."""
    is_extra = name == "extra_fields" and isinstance(a, list | tuple)
    is_metric = stage_of(block.a.key.kind, name) is Stage.METRICS
    leaves: dict[str, list[tuple[str, Any, Any]]] = defaultdict(list)
    for path, left, right in leaf_pairs(a, b):
        if is_metric and is_time(path):
            continue
        # What only one side records with its losses, or counts, says nothing about the other side's: an option adds it.
        if (is_metric or name == "extra_info") and (left is ABSENT or right is ABSENT):
            continue
        key = path.partition("].")[2].partition(".")[0] if is_extra else ""
        leaves[f"{name}.{key}" if key else name].append((path, left, right))
    for field, pairs in leaves.items():
        # Extra data that only one framework records about its samples is not a difference between them.
        if is_extra and any(all(pair[side] is ABSENT for pair in pairs) for side in (1, 2)):
            continue
        yield field, _compare_leaves(block, field, pairs, tolerances)


def _compare_leaves(
    block: Block, name: str, leaves: list[tuple[str, Any, Any]], tolerances: Tolerances
) -> FieldDifference:
    total = Measured()
    first: Place | None = None
    worst: Place | None = None
    usual = tolerances.of(block.a.key.kind, name, "float32", "float32")
    for path, a, b in leaves:
        is_rate = is_learning_rate(path)
        tolerance = tolerances.of(block.a.key.kind, name, "float32", "float32", path) if is_rate else usual
        measured = compare_leaf(a, b, tolerance)
        if measured.beyond:
            place = _leaf_place(block, path, a, b)
            first = first or place
            if worst is None or measured.max_abs > total.max_abs:
                worst = place
        total.add(measured)
    return FieldDifference(total, tolerance, first, worst)


def _leaf_place(block: Block, path: str, a: Any, b: Any) -> Place:
    """For a list with one entry per sample, the place names the sample."""
    key = block.a.key
    row, sample = None, None
    if block.rows_a is not None and path.startswith("["):
        position = int(path[1 : path.index("]")])
        if position < len(block.rows_a):
            row, sample = int(block.rows_a[position]), block.sample_of(position)
            path = path[path.index("]") + 1 :].lstrip(".")
    return Place(key.rank, key.micro, row, sample, None, None, _shown(a), _shown(b), path or _name(block))


def _shown(value: Any) -> Any:
    """Arrays inside data are named by their shape, everything else as it is."""
    if is_array(value):
        return f"array of shape {list(np.shape(_tensor(value)))}"
    return dict(value) if isinstance(value, Mapping) else value
