"""Per-sample fields of a block, compared row by row and token by token, whatever padding either side has.

A row's values lie in one run of the field's flat values: all of a ragged row, the response of a padded one, the
attended part of a padded sequence. Runs are compared from their starts; extra values on one side must be padding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rldbg.analysis.flat_arrays import RecordedArray
from rldbg.analysis.measure import measure
from rldbg.analysis.measured import Measured
from rldbg.analysis.padded_ids import compare_padded_ids
from rldbg.analysis.row_places import RowPlace, RowsResult
from rldbg.analysis.tolerances import Tolerance
from rldbg.analysis.unpadding import SEQUENCE_KINDS, TRAINED
from rldbg.recording import EncodedArray, Ragged, Record

# Which field of the same record says where a response-aligned field is meaningful.
_RESPONSE_MASKS = {
    "forward_data": "response_mask",
    "is_loss_debug": "effective_valid",
    "value_loss": "response_mask",
    "old_log_probs": TRAINED,
}
# Of whole sequences, what is used where a token is trained on; engines and trainers leave anything elsewhere.
_USED_WHERE_TRAINED = frozenset({"logprobs", "advantages", "values", "returns"})
# Padded whole sequences; the prompt may be padded on its left.
_SEQUENCE_FIELDS = frozenset({"input_ids", "attention_mask", "position_ids", "loss_mask"})
_MASKS = frozenset(_RESPONSE_MASKS.values())
_ROWS_AT_ONCE_ELEMENTS = 1 << 21
_MASKS_KEPT = 16


@dataclass(frozen=True, slots=True)
class _Runs:
    """Where each chosen row lies in the flat values: `starts` and `lengths`; `valid` marks flat elements that count."""

    flat: RecordedArray
    starts: np.ndarray
    lengths: np.ndarray
    columns: np.ndarray
    valid: np.ndarray | None
    is_masked: bool

    def take(self, source: RecordedArray, chosen: slice, lengths: np.ndarray) -> RecordedArray:
        """The first `lengths` elements of the chosen runs, one after another."""
        starts = self.starts[chosen]
        if len(starts) and np.array_equal(starts[1:], starts[:-1] + lengths[:-1]):
            return source[int(starts[0]) : int(starts[0] + lengths.sum())]
        within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return source[np.repeat(starts, lengths) + within]


class Rows:
    """The rows of a block and where they count. Masks are computed once for all fields of a block."""

    def __init__(self, a: Record, b: Record, rows_a: np.ndarray, rows_b: np.ndarray) -> None:
        self.a, self.b, self.rows_a, self.rows_b = a, b, rows_a, rows_b
        self._valid: dict[tuple[str | None, str | None, int], np.ndarray | None] = {}

    def is_masked(self, name: str) -> bool:
        return _mask_name(self.a, name) is not None and _mask_name(self.b, name) is not None

    def valid(self, name: str, part: slice, shape: tuple[int, ...]) -> np.ndarray | None:
        """Where some rows of a field count: where either side says so, as a token that only one side trains on must
        not be hidden. None when all of them do."""
        if not self.is_masked(name):
            return None
        key = (_mask_name(self.a, name), _mask_name(self.b, name), part.start)
        if key not in self._valid:
            if len(self._valid) >= _MASKS_KEPT:
                self._valid.clear()
            self._valid[key] = self._either(name, part)
        valid = self._valid[key]
        if valid is None or valid.shape != shape[:2]:
            return None
        return np.broadcast_to(valid.reshape(valid.shape + (1,) * (len(shape) - valid.ndim)), shape)

    def _either(self, name: str, part: slice) -> np.ndarray | None:
        """Where one side or the other says that it counts; None when one of them says so everywhere."""
        for record, rows in ((self.a, self.rows_a), (self.b, self.rows_b)):
            mask = record.fields[str(_mask_name(record, name))]
            if isinstance(mask, np.ndarray) and mask.size and np.asarray(_chosen(mask, rows[part])).min() > 0:
                return None
        mask_a, mask_b = _mask(self.a, self.rows_a[part], name), _mask(self.b, self.rows_b[part], name)
        return None if mask_a is None or mask_b is None else mask_a | mask_b


def compare_rows(rows: Rows, name: str, tolerance: Tolerance) -> RowsResult | None:
    """None when rows have shapes that cannot be compared."""
    a, b, rows_a, rows_b = rows.a, rows.b, rows.rows_a, rows.rows_b
    values_a, values_b = a.fields[name], b.fields[name]
    if not isinstance(values_a, Ragged) and not isinstance(values_b, Ragged):
        if name == "input_ids" and not ("attention_mask" in a.fields and "attention_mask" in b.fields):
            return compare_padded_ids(a, b, rows_a, rows_b)
        if values_a.shape[1:] == values_b.shape[1:] and _same_padding(a, b, rows_a, rows_b, name):
            return _compare_dense(rows, name, tolerance)
        if len(values_a.shape) != 2 or len(values_b.shape) != 2:
            return None
    elif any(_is_deep(value) for value in (values_a, values_b)):
        return _compare_deep(values_a, values_b, rows_a, rows_b, tolerance)
    return _compare_runs(_runs(a, rows_a, name), _runs(b, rows_b, name), tolerance)


def _is_deep(value: RecordedArray | Ragged) -> bool:
    """Whether a token has more than one value."""
    return len(value.values.shape) > 1 if isinstance(value, Ragged) else len(value.shape) > 2


def _in_order(rows: np.ndarray, count: int) -> bool:
    return len(rows) == count and bool((rows == np.arange(count)).all())


def _chosen(array: RecordedArray, rows: np.ndarray) -> RecordedArray:
    """The rows in order; a view when they follow each other."""
    if len(rows) and bool((np.diff(rows) == 1).all()):
        return array[int(rows[0]) : int(rows[-1]) + 1]
    return array[rows]


def _mask_name(record: Record, name: str) -> str | None:
    """The field that says where `name` counts; a mask itself says where it counts."""
    if name in _MASKS:
        return None
    if name in _SEQUENCE_FIELDS and "attention_mask" in record.fields:
        return "attention_mask"
    if record.key.kind in SEQUENCE_KINDS:
        return "loss_mask" if name in _USED_WHERE_TRAINED and "loss_mask" in record.fields else None
    found = _RESPONSE_MASKS.get(record.key.kind)
    return found if found in record.fields and name not in _SEQUENCE_FIELDS else None


def _mask(record: Record, rows: np.ndarray, name: str) -> np.ndarray | None:
    """[rows, columns], where the field counts; None when the record does not say."""
    mask_name = _mask_name(record, name)
    if mask_name is None or isinstance(record.fields[mask_name], Ragged):
        return None
    mask = np.asarray(_chosen(record.fields[mask_name], rows)) != 0
    return mask if mask.shape == (len(rows), *record.fields[name].shape[1:2]) else None


def _ragged_mask(record: Record, name: str, value: Ragged) -> np.ndarray | None:
    """Where the flat values of a ragged response count, if the record's mask has the same rows."""
    mask = record.fields.get(_mask_name(record, name) or "")
    if name in _SEQUENCE_FIELDS or not isinstance(mask, Ragged) or not np.array_equal(mask.offsets, value.offsets):
        return None
    valid: np.ndarray = np.asarray(mask.values) != 0
    return valid


def _same_padding(a: Record, b: Record, rows_a: np.ndarray, rows_b: np.ndarray, name: str) -> bool:
    """Columns mean the same on both sides: responses start in column 0; sequences must be padded alike."""
    if name not in _SEQUENCE_FIELDS or len(a.fields[name].shape) < 2:
        return True
    mask_a, mask_b = _mask(a, rows_a, name), _mask(b, rows_b, name)
    if mask_a is None or mask_b is None:
        return True
    return bool(np.array_equal(np.argmax(mask_a, axis=1), np.argmax(mask_b, axis=1)))


def _compare_dense(rows: Rows, name: str, tolerance: Tolerance) -> RowsResult:
    """Rows of equal width, many at a time."""
    rows_a, rows_b = rows.rows_a, rows.rows_b
    values_a, values_b = rows.a.fields[name], rows.b.fields[name]
    if not rows.is_masked(name) and _in_order(rows_a, len(values_a)) and _in_order(rows_b, len(values_b)):
        steps = [slice(0, len(rows_a))]
    else:
        steps = list(_slices(np.full(len(rows_a), max(1, int(np.prod(values_a.shape[1:]))))))
    result = RowsResult(Measured())
    for part in steps:
        left, right = _chosen(values_a, rows_a[part]), _chosen(values_b, rows_b[part])
        measured = measure(left, right, tolerance, rows.valid(name, part, left.shape))

        def place(
            flat: int | None, left: RecordedArray = left, right: RecordedArray = right, first: int = part.start
        ) -> RowPlace | None:
            if flat is None:
                return None
            index = np.unravel_index(flat, left.shape)
            column = int(index[1]) if len(index) > 1 else None
            return RowPlace(first + int(index[0]), column, _item(left, index), _item(right, index))

        result.add(measured, place(measured.first), place(measured.worst), place(measured.odd))
    return result


def _item(array: RecordedArray, index: tuple[np.intp, ...]) -> object:
    """One element as a Python number."""
    return np.asarray(array[tuple(int(part) for part in index)]).item()


def _slices(lengths: np.ndarray) -> Iterator[slice]:
    """Runs of rows with about a million elements each."""
    start = 0
    ends = np.cumsum(lengths)
    while start < len(lengths):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + _ROWS_AT_ONCE_ELEMENTS, side="right")))
        yield slice(start, stop)
        start = stop


def _runs(record: Record, rows: np.ndarray, name: str) -> _Runs:
    value = record.fields[name]
    if isinstance(value, Ragged):
        lengths, valid = value.lengths[rows], _ragged_mask(record, name, value)
        return _Runs(value.values, value.offsets[:-1][rows], lengths, np.zeros(len(rows), np.int64), valid, True)
    width = value.shape[1]
    flat = EncodedArray(value.bits.reshape(-1), value.dtype) if isinstance(value, EncodedArray) else value.reshape(-1)
    mask = _mask(record, rows, name)
    if mask is None:
        start = np.zeros(len(rows), np.int64)
        return _Runs(flat, rows * width, np.full(len(rows), width), start, None, False)
    is_sequence = name in _SEQUENCE_FIELDS
    first = np.argmax(mask, axis=1) if is_sequence else np.zeros(len(rows), np.int64)
    last = np.where(mask.any(axis=1), width - np.argmax(mask[:, ::-1], axis=1), first)
    valid = None
    if not is_sequence:
        valid = np.zeros(len(value) * width, dtype=bool)
        valid.reshape(len(value), width)[rows] = mask
    return _Runs(flat, rows * width + first, last - first, first, valid, True)


def _compare_runs(a: _Runs, b: _Runs, tolerance: Tolerance) -> RowsResult:
    result = RowsResult(Measured())
    common = np.minimum(a.lengths, b.lengths)
    for part in _slices(common):
        lengths = common[part]
        left, right = a.take(a.flat, part, lengths), b.take(b.flat, part, lengths)
        valid = None
        if a.valid is not None and b.valid is not None:
            valid = np.asarray(a.take(a.valid, part, lengths)) | np.asarray(b.take(b.valid, part, lengths))
        measured = measure(left, right, tolerance, valid)
        ends = np.cumsum(lengths)

        def place(
            flat: int | None,
            ends: np.ndarray = ends,
            lengths: np.ndarray = lengths,
            left: RecordedArray = left,
            right: RecordedArray = right,
            first: int = part.start,
        ) -> RowPlace | None:
            if flat is None:
                return None
            row = int(np.searchsorted(ends, flat, side="right"))
            column = flat - int(ends[row] - lengths[row])
            position = first + row
            return RowPlace(
                position,
                column + int(a.columns[position]),
                _item(left, (np.intp(flat),)),
                _item(right, (np.intp(flat),)),
            )

        result.add(measured, place(measured.first), place(measured.worst), place(measured.odd))
    _compare_tails(result, a, b, common)
    return result


def _compare_tails(result: RowsResult, a: _Runs, b: _Runs, common: np.ndarray) -> None:
    """Extra values on one side must be padding: masked out, or zero where nothing says what counts."""
    for runs, is_a in ((a, True), (b, False)):
        for position in np.flatnonzero(runs.lengths > common):
            start, stop = runs.starts[position] + common[position], runs.starts[position] + runs.lengths[position]
            tail = np.asarray(runs.flat[int(start) : int(stop)])
            counts = tail != 0
            if runs.is_masked:
                counts = np.ones(len(tail), bool) if runs.valid is None else runs.valid[int(start) : int(stop)]
            if not counts.any():
                continue
            at = int(np.argmax(counts))
            value = tail[at].item()
            column = int(common[position]) + at + int(runs.columns[position])
            place = RowPlace(int(position), column, value if is_a else None, None if is_a else value)
            missing = int(np.count_nonzero(counts))
            measured = Measured(compared=missing, beyond=missing, worst_excess=float("inf"))
            result.lengths_differ = True
            result.add(measured, place, place, None)


def _compare_deep(
    a: Ragged | RecordedArray, b: Ragged | RecordedArray, rows_a: np.ndarray, rows_b: np.ndarray, tolerance: Tolerance
) -> RowsResult | None:
    """Ragged rows of vectors (experts of a token): row by row, their shapes must agree."""
    result = RowsResult(Measured())
    for position, (row_a, row_b) in enumerate(zip(rows_a.tolist(), rows_b.tolist(), strict=True)):
        left, right = np.asarray(a[row_a]), np.asarray(b[row_b])
        if left.shape[1:] != right.shape[1:]:
            return None
        length = min(len(left), len(right))
        measured = measure(left[:length], right[:length], tolerance)
        places = []
        for flat in (measured.first, measured.worst, measured.odd):
            index = None if flat is None else np.unravel_index(flat, left[:length].shape)
            places.append(
                None if index is None else RowPlace(position, int(index[0]), left[index].item(), right[index].item())
            )
        if len(left) != len(right):
            measured.beyond += 1
            result.lengths_differ = True
            places[0] = places[0] or RowPlace(position, length, list(left.shape), list(right.shape))
        result.add(measured, *places)
    return result
