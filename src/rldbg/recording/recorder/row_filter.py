"""Recording only some samples: the rows of the others are left out before anything is copied."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from rldbg.core import SampleId
from rldbg.recording.recorder.schema import row_count
from rldbg.recording.records import EncodedArray, Ragged


def kept_rows(samples: tuple[SampleId, ...], wanted: frozenset[SampleId]) -> list[int] | None:
    """Indices of the rows to keep, or None to keep the record as it is."""
    if not samples:
        return None
    rows = [row for row, sample in enumerate(samples) if sample in wanted]
    return None if len(rows) == len(samples) else rows


def select(fields: Mapping[str, Any], rows: list[int], count: int) -> dict[str, Any]:
    """The fields with only these of `count` rows; what has no rows stays."""
    return {name: _select(value, rows) if row_count(value) == count else value for name, value in fields.items()}


def _select(value: Any, rows: list[int]) -> Any:
    if isinstance(value, Ragged):
        kept = np.concatenate([np.arange(*value.offsets[row : row + 2]) for row in rows])
        return Ragged(value.values[kept], np.concatenate([[0], np.cumsum(value.lengths[rows])]))
    if isinstance(value, EncodedArray):
        return EncodedArray(value.bits[rows], value.dtype)
    if isinstance(value, list | tuple):
        return [value[row] for row in rows]
    if getattr(value, "is_nested", False):
        parts = value.unbind()
        return [parts[row] for row in rows]
    if isinstance(value, np.ndarray) or hasattr(value, "index_select"):
        return value[rows]
    return value
