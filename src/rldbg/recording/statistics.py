"""Summary statistics of a field: size, dtype, range, and how many values are not finite."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rldbg.recording.records import EncodedArray, Ragged, Record

_PREVIEW = 60


@dataclass(frozen=True, slots=True)
class FieldStatistics:
    """One field of one record. The extremes and the mean are of the finite values only; None when there are none."""

    name: str
    shape: str
    dtype: str
    min: float | None = None
    mean: float | None = None
    max: float | None = None
    nan: int = 0
    inf: int = 0
    preview: str = ""


def statistics_of(record: Record) -> list[FieldStatistics]:
    """Every field of a record in order, then what `extra` holds beyond them. A field of named numbers, as metrics are,
    is followed by each of them."""
    named = [*record.fields.items(), *((f"extra.{name}", value) for name, value in record.extra.items())]
    return [described for name, value in named for described in (_describe(name, value), *_named_numbers(name, value))]


def _named_numbers(name: str, value: Any) -> Iterator[FieldStatistics]:
    if isinstance(value, Mapping):
        for key, number in value.items():
            if _is_number(number):
                yield _numbers(f"{name}.{key}", "scalar", np.asarray(number))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def _describe(name: str, value: Any) -> FieldStatistics:
    if isinstance(value, Ragged):
        return _numbers(name, _ragged_shape(value), value.values)
    if isinstance(value, np.ndarray | EncodedArray):
        return _numbers(name, "×".join(map(str, value.shape)) or "scalar", value)
    if not _is_number(value):
        return FieldStatistics(name, _data_shape(value), type(value).__name__, preview=_preview(value))
    return _numbers(name, "scalar", np.asarray(value))


def _numbers(name: str, shape: str, values: Any) -> FieldStatistics:
    dtype = values.dtype if isinstance(values, EncodedArray) else values.dtype.name
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        return FieldStatistics(name, shape, dtype, preview=_preview(array.tolist()))
    if array.dtype.kind != "f":
        if not array.size:
            return FieldStatistics(name, shape, dtype)
        return FieldStatistics(name, shape, dtype, float(array.min()), float(array.mean()), float(array.max()))
    finite = array[np.isfinite(array)]
    nan = int(np.isnan(array).sum())
    inf = array.size - finite.size - nan
    if not finite.size:
        return FieldStatistics(name, shape, dtype, nan=nan, inf=inf)
    mean = float(finite.mean(dtype=np.float64))
    return FieldStatistics(name, shape, dtype, float(finite.min()), mean, float(finite.max()), nan, inf)


def _ragged_shape(value: Ragged) -> str:
    lengths = value.lengths
    if not len(lengths):
        return "0 rows"
    low, high = int(lengths.min()), int(lengths.max())
    return f"{len(lengths)}×{low}" if low == high else f"{len(lengths)}×({low}–{high})"


def _data_shape(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{len(value)} keys"
    return f"{len(value)} items" if isinstance(value, list | tuple) else ""


def _preview(value: Any) -> str:
    text = str(list(value) if isinstance(value, Mapping) and len(value) > 3 else value)
    return text if len(text) <= _PREVIEW else text[: _PREVIEW - 1] + "…"
