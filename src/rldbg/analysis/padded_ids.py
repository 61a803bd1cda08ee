"""Token ids padded to a rectangle, where no mask says what is padding.

Prompts are padded on their left and responses on their right, so rows are aligned at the end of the
response; extra columns on one side must be a run of one value, its padding.
"""

from __future__ import annotations

import numpy as np

from rldbg.analysis.measure import same_bytes
from rldbg.analysis.measured import Measured
from rldbg.analysis.row_places import RowPlace, RowsResult
from rldbg.analysis.unpadding import NO_TOKEN
from rldbg.recording import Ragged, Record


def compare_padded_ids(a: Record, b: Record, rows_a: np.ndarray, rows_b: np.ndarray) -> RowsResult:
    """Exactly, row by row; rows that are equal as recorded need no alignment."""
    ids_a, ids_b = np.asarray(a.fields["input_ids"]), np.asarray(b.fields["input_ids"])
    result = RowsResult(Measured())
    if ids_a.shape == ids_b.shape and np.array_equal(rows_a, rows_b) and same_bytes(ids_a, ids_b):
        result.measured.compared = ids_a[rows_a].size
        return result
    trained_a, trained_b = _trained(a, len(ids_a)), _trained(b, len(ids_b))
    ends_a, ends_b = _ends(a, rows_a, ids_a.shape[1]), _ends(b, rows_b, ids_b.shape[1])
    # All rows of a record show what it pads with, also those paired with another record.
    pads_a, pads_b = (
        _pad_ids(ids, _ends(record, np.arange(len(ids)), ids.shape[1])) for record, ids in ((a, ids_a), (b, ids_b))
    )
    for position, (row_a, row_b) in enumerate(zip(rows_a.tolist(), rows_b.tolist(), strict=True)):
        left = _real(ids_a[row_a], ends_a[position])
        right = _real(ids_b[row_b], ends_b[position])
        if not trained_a[row_a] and not trained_b[row_b]:
            left, right = _without_tail(left, right), _without_tail(right, left)
        _compare_row(result, position, left, right, _padding(left, pads_a), _padding(right, pads_b))
    return result


def _real(row: np.ndarray, end: int) -> np.ndarray:
    """A row without the padding that was recognised, on whichever side; else up to the end of its response."""
    real = row[row != NO_TOKEN]
    return real if len(real) < len(row) else row[:end]


def _without_tail(row: np.ndarray, other: np.ndarray) -> np.ndarray:
    """A row that no mask says the end of: columns of one value after all that the other side has are its padding."""
    tail = row[len(other) :]
    is_padding = tail.size and (tail == tail[0]).all() and np.array_equal(row[: len(other)], other)
    return other if is_padding else row


def _trained(record: Record, count: int) -> np.ndarray:
    mask = record.fields.get("response_mask")
    has_rows = mask is not None and not isinstance(mask, Ragged)
    trained: np.ndarray = (np.asarray(mask) != 0).any(axis=1) if has_rows else np.ones(count, bool)
    return trained


def _pad_ids(ids: np.ndarray, ends: list[int]) -> set[int]:
    """What a side pads with: the values after its responses, those that several columns of a row begin with,
    and what stands where padding was recognised."""
    after = {int(value) for row, end in zip(ids, ends, strict=True) for value in np.unique(row[end:])}
    return after | {int(row[0]) for row in ids if _leading(row) > 1} | {NO_TOKEN}


def _padding(row: np.ndarray, pads: set[int]) -> int:
    """How many columns of padding a row begins with."""
    return _leading(row) if len(row) and int(row[0]) in pads else 0


def _ends(record: Record, rows: np.ndarray, width: int) -> list[int]:
    """Where each row's response ends: after the last column its mask has, else at the end of the row."""
    mask = record.fields.get("response_mask")
    if mask is None or isinstance(mask, Ragged) or mask.shape[1] > width:
        return [width] * len(rows)
    trained = np.asarray(mask)[rows] != 0
    ends: list[int] = np.where(trained.any(axis=1), width - np.argmax(trained[:, ::-1], axis=1), width).tolist()
    return ends


def _compare_row(
    result: RowsResult, position: int, left: np.ndarray, right: np.ndarray, pads_left: int, pads_right: int
) -> None:
    common = min(len(left), len(right))
    skip_a, skip_b = len(left) - common, len(right) - common
    unequal = left[skip_a:] != right[skip_b:]
    # Where one side is known to be padding and the other still begins with one value, the ids of the pads may differ.
    if pads_left or pads_right:
        unequal[: max(0, min(_leading(left) - skip_a, _leading(right) - skip_b))] = False
    places = np.flatnonzero(unequal).tolist()
    longer, extra = (left, skip_a) if skip_a else (right, skip_b)
    beyond = len(places)
    place = None
    if places:
        at = places[0]
        place = RowPlace(position, at + skip_a, left[at + skip_a].item(), right[at + skip_b].item())
    elif extra > _leading(longer):
        at = _leading(longer)
        value = longer[at].item()
        place = RowPlace(position, at, value if skip_a else None, None if skip_a else value)
        beyond = extra - at
        result.lengths_differ = True
    found = Measured(compared=common, beyond=beyond, worst_excess=1.0 if place else -np.inf)
    if places:
        gap = np.abs(left[skip_a:].astype(np.float64) - right[skip_b:].astype(np.float64))[unequal]
        found.max_abs, found.sum_abs = float(gap.max()), float(gap.sum())
    result.add(found, place, place, None)


def _leading(row: np.ndarray) -> int:
    """How many equal values a row begins with."""
    other = np.flatnonzero(row != row[0]) if len(row) else np.empty(0)
    return int(other[0]) if other.size else len(row)
