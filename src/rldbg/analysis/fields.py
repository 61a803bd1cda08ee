"""One field of one block, compared: padding and masks aware, with the place of the first and the worst difference."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rldbg.analysis.measure import Measured, measure
from rldbg.analysis.pairing import Block, row_count
from rldbg.analysis.tolerances import Tolerance, Tolerances
from rldbg.recording import EncodedArray, Ragged, Record

# Which field of the same record says where a response-aligned field is meaningful.
_MASKS = {"forward_data": "response_mask", "is_loss_debug": "effective_valid"}
# What names samples, or repeats what other fields say: not compared.
_IDENTITY_KEYS = frozenset({"group_id", "run_id", "uid", "task_id", "_rldbg"})


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
    note: str = ""

    @property
    def equal(self) -> bool:
        return self.first is None


def shared_fields(block: Block) -> Iterator[str]:
    """The fields both records have, in A's order."""
    return (name for name in block.a.fields if name in block.b.fields and name not in _IDENTITY_KEYS)


def compare_field(block: Block, name: str, tolerances: Tolerances) -> FieldDifference:
    """One field of a block, whatever its type."""
    a, b = block.a.fields[name], block.b.fields[name]
    if _is_array(a) and _is_array(b):
        tolerance = tolerances.of(block.a.key.kind, name, block.a.dtype(name), block.b.dtype(name))
        if block.rows_a is None or not (_has_row_each(block.a, name) and _has_row_each(block.b, name)):
            return _compare_tensors(block, name, tolerance)
        return _compare_rows(block, name, tolerance)
    return _compare_data(block, name, tolerances)


def _is_array(value: Any) -> bool:
    return isinstance(value, Ragged | EncodedArray | np.ndarray)


def _has_row_each(record: Record, name: str) -> bool:
    """Whether a field has one row a sample; a user's kind may hold other tensors beside its samples."""
    value = record.fields[name]
    shape = (len(value),) if isinstance(value, Ragged) else value.shape
    return bool(shape) and shape[0] == row_count(record)


def _compare_tensors(block: Block, name: str, tolerance: Tolerance) -> FieldDifference:
    a, b = block.a.array(name), block.b.array(name)
    if a.shape != b.shape:
        return _shape_clash(block, name, tolerance, a.shape, b.shape)
    measured = measure(a, b, tolerance)
    return FieldDifference(
        measured,
        tolerance,
        _tensor_place(block, a, b, measured.first),
        _tensor_place(block, a, b, measured.worst),
    )


def _tensor_place(block: Block, a: np.ndarray, b: np.ndarray, flat: int | None) -> Place | None:
    if flat is None:
        return None
    index = tuple(int(part) for part in np.unravel_index(flat, a.shape))
    key = block.a.key
    name = str(block.a.fields.get("param_name", ""))
    return Place(key.rank, key.micro, None, None, None, index, a[index].item(), b[index].item(), name)


def _shape_clash(block: Block, name: str, tolerance: Tolerance, a: Any, b: Any) -> FieldDifference:
    key = block.a.key
    place = Place(
        key.rank, key.micro, None, None, None, None, list(a), list(b), str(block.a.fields.get("param_name", ""))
    )
    found = Measured(compared=1, beyond=1, max_abs=math.inf)
    return FieldDifference(found, tolerance, place, place, note=f"shapes differ: {list(a)} and {list(b)}")


def _compare_rows(block: Block, name: str, tolerance: Tolerance) -> FieldDifference:
    """Per-sample fields. Rows of equal length are compared as one array, others one by one."""
    values_a, values_b = block.a.fields[name], block.b.fields[name]
    if not isinstance(values_a, Ragged) and not isinstance(values_b, Ragged):
        a, b = _take(block.a.array(name), block.rows_a), _take(block.b.array(name), block.rows_b)
        valid_a, valid_b = _mask(block.a, block.rows_a, a), _mask(block.b, block.rows_b, b)
        if a.ndim == 1 or a.shape == b.shape:
            return _compare_dense(block, a, b, _either(valid_a, valid_b), tolerance)
        if a.ndim != 2 or b.ndim != 2:
            return _shape_clash(block, name, tolerance, a.shape, b.shape)
        return _compare_widths(block, a, b, valid_a, valid_b, tolerance)
    return _compare_ragged(block, name, tolerance)


def _take(array: np.ndarray, rows: np.ndarray | None) -> np.ndarray:
    """The rows in order; a view when they are all of them as they stand."""
    assert rows is not None
    if len(rows) == len(array) and np.array_equal(rows, np.arange(len(rows))):
        return array
    taken: np.ndarray = array[rows]
    return taken


def _mask(record: Record, rows: np.ndarray | None, like: np.ndarray) -> np.ndarray | None:
    name = _MASKS.get(record.key.kind)
    if name is None or name not in record.fields or isinstance(record.fields[name], Ragged):
        return None
    mask = _take(record.array(name), rows)
    return mask != 0 if mask.shape == like.shape else None


def _either(a: np.ndarray | None, b: np.ndarray | None) -> np.ndarray | None:
    """Valid where either side says so: a token only one side trains on must not be hidden."""
    return None if a is None or b is None else a | b


def _compare_dense(
    block: Block, a: np.ndarray, b: np.ndarray, valid: np.ndarray | None, tolerance: Tolerance
) -> FieldDifference:
    measured = measure(a, b, tolerance, valid)
    return FieldDifference(
        measured, tolerance, _row_place(block, a, b, measured.first), _row_place(block, a, b, measured.worst)
    )


def _row_place(block: Block, a: np.ndarray, b: np.ndarray, flat: int | None) -> Place | None:
    if flat is None:
        return None
    index = tuple(int(part) for part in np.unravel_index(flat, a.shape))
    token = index[1] if len(index) > 1 else None
    return _place(block, index[0], token, a[index].item(), b[index].item())


def _place(block: Block, position: int, token: int | None, a: Any, b: Any) -> Place:
    assert block.rows_a is not None
    row = int(block.rows_a[position])
    sample = str(block.a.samples[row]) if block.a.samples else None
    return Place(block.a.key.rank, block.a.key.micro, row, sample, token, None, a, b)


def _compare_widths(
    block: Block,
    a: np.ndarray,
    b: np.ndarray,
    valid_a: np.ndarray | None,
    valid_b: np.ndarray | None,
    tolerance: Tolerance,
) -> FieldDifference:
    """Padded to different widths: the extra columns must be padding, which is masked out or zero."""
    width = min(a.shape[1], b.shape[1])
    wide, mask = (a, valid_a) if a.shape[1] > width else (b, valid_b)
    extra = (wide[:, width:] != 0) if mask is None else mask[:, width:]
    valid = _either(None if valid_a is None else valid_a[:, :width], None if valid_b is None else valid_b[:, :width])
    inner = _compare_dense(
        block, np.ascontiguousarray(a[:, :width]), np.ascontiguousarray(b[:, :width]), valid, tolerance
    )
    if not extra.any():
        return inner
    row = int(np.argmax(extra.any(axis=1)))
    token = width + int(np.argmax(extra[row]))
    value = wide[row, token].item()
    place = _place(block, row, token, value if wide is a else None, value if wide is b else None)
    inner.measured.beyond += int(extra.sum())
    inner.measured.compared += int(extra.sum())
    return FieldDifference(
        inner.measured, tolerance, inner.first or place, inner.worst or place, note="lengths of responses differ"
    )


def _compare_ragged(block: Block, name: str, tolerance: Tolerance) -> FieldDifference:
    total = Measured()
    first: Place | None = None
    worst: Place | None = None
    note = ""
    flat = _whole_flat(block, name)
    if flat is not None:
        measured = measure(*flat, tolerance)
        if measured.beyond == 0:
            return FieldDifference(measured, tolerance)
    rows_a, rows_b = _row_reader(block.a, name), _row_reader(block.b, name)
    assert block.rows_a is not None and block.rows_b is not None
    for position, (row_a, row_b) in enumerate(zip(block.rows_a, block.rows_b, strict=True)):
        a, b = rows_a(int(row_a)), rows_b(int(row_b))
        length = min(len(a), len(b))
        measured = measure(a[:length], b[:length], tolerance)
        if len(a) != len(b):
            measured.beyond += abs(len(a) - len(b))
            measured.compared += abs(len(a) - len(b))
            note = "lengths differ"
            if measured.first is None:
                measured.first = measured.worst = length
                measured.worst_excess = math.inf
        if measured.first is not None:
            first = first or _place(block, position, measured.first, _at(a, measured.first), _at(b, measured.first))
            if measured.worst is not None and measured.worst_excess > total.worst_excess:
                total.worst_excess = measured.worst_excess
                worst = _place(block, position, measured.worst, _at(a, measured.worst), _at(b, measured.worst))
        total.add(measured)
    return FieldDifference(total, tolerance, first, worst, note)


def _whole_flat(block: Block, name: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Both sides as flat values, when all their rows stand in the same order with the same lengths."""
    a, b = block.a.fields[name], block.b.fields[name]
    if not (isinstance(a, Ragged) and isinstance(b, Ragged)) or len(a) != len(b):
        return None
    assert block.rows_a is not None and block.rows_b is not None
    order = np.arange(len(a))
    in_order = np.array_equal(block.rows_a, order) and np.array_equal(block.rows_b, order)
    if not in_order or not np.array_equal(a.offsets, b.offsets):
        return None
    return block.a.array(name), block.b.array(name)


def _row_reader(record: Record, name: str) -> Any:
    value = record.fields[name]
    return value.__getitem__ if isinstance(value, Ragged) else record.array(name).__getitem__


def _at(row: np.ndarray, token: int) -> Any:
    return row[token].item() if token < len(row) else None


def _compare_data(block: Block, name: str, tolerances: Tolerances) -> FieldDifference:
    """Numbers, text and JSON-like data, leaf by leaf."""
    total = Measured()
    first: Place | None = None
    worst: Place | None = None
    tolerance = tolerances.of(block.a.key.kind, name, "float32", "float32")
    for path, a, b in _leaf_pairs(*_data_rows(block, name)):
        measured = _compare_leaf(a, b, tolerance)
        total.add(measured)
        if measured.beyond:
            place = Place(block.a.key.rank, block.a.key.micro, None, None, None, None, a, b, path)
            first = first or place
            if measured.max_abs >= total.max_abs:
                worst = place
    return FieldDifference(total, tolerance, first, worst)


def _data_rows(block: Block, name: str) -> tuple[Any, Any]:
    """Lists with one entry a sample are put in the order of the block."""
    a, b = block.a.fields[name], block.b.fields[name]
    if block.rows_a is None or not (isinstance(a, list | tuple) and isinstance(b, list | tuple)):
        return a, b
    assert block.rows_b is not None
    return [a[row] for row in block.rows_a if row < len(a)], [b[row] for row in block.rows_b if row < len(b)]


_ABSENT = "(absent)"


def _leaf_pairs(a: Any, b: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in dict.fromkeys([*a, *b]):
            if key not in _IDENTITY_KEYS:
                yield from _leaf_pairs(a.get(key, _ABSENT), b.get(key, _ABSENT), f"{path}.{key}" if path else str(key))
    elif isinstance(a, list | tuple) and isinstance(b, list | tuple):
        for position in range(max(len(a), len(b))):
            left = a[position] if position < len(a) else _ABSENT
            right = b[position] if position < len(b) else _ABSENT
            yield from _leaf_pairs(left, right, f"{path}[{position}]")
    else:
        yield path, a, b


def _compare_leaf(a: Any, b: Any, tolerance: Tolerance) -> Measured:
    if _is_number(a) and _is_number(b):
        return measure(np.asarray([a], dtype=np.float64), np.asarray([b], dtype=np.float64), tolerance)
    if _is_array(a) or _is_array(b):
        a, b = np.asarray(a), np.asarray(b)
        if a.shape == b.shape and a.dtype.kind in "fiub" and b.dtype.kind in "fiub":
            return measure(a.reshape(-1), b.reshape(-1), tolerance)
        return Measured(compared=1, beyond=int(a.shape != b.shape or not np.array_equal(a, b)))
    return Measured(compared=1, beyond=int(a != b))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)
