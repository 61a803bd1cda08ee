"""One record as a parquet file: one row per sample where the record has samples, so that any table tool can read it.

The schema's metadata `rldbg` is a JSON object: the record's identity, `fields`, and `data` for what is not an array.
A column is stored in one of three forms, told by its description {"form", "dtype", "shape"}:
rows    a number or a list per sample; the row's own shape is `shape`
whole   one array for all samples, flat, in the first row; its shape is `shape`
Values of dtypes that parquet has not are stored as raw bits, except bfloat16, which float32 holds exactly.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rldbg.recording.formats.bounded_json import parse_json
from rldbg.recording.formats.identity import identity_of, read_identity
from rldbg.recording.formats.malformed import Malformed, reading
from rldbg.recording.formats.numpy_rebuild import checked_shape
from rldbg.recording.formats.parquet import pyarrow, read_table
from rldbg.recording.formats.tagged_json import from_json, ragged_of, to_json
from rldbg.recording.records import ENCODED_DTYPES, SCHEMA_VERSION, EncodedArray, Ragged, Record, RecordKey

_KEY = b"rldbg"
_COMPLEX = {"complex64": "float32", "complex128": "float64"}


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file read into memory."""

    path: Path
    table: Any
    metadata: Mapping[str, Any]

    def read(self) -> Record:
        with reading(self.path):
            about = self.metadata
            fields = {name: _read_column(self.table.column(name), how) for name, how in about["fields"].items()}
            fields |= {name: from_json(value) for name, value in about["data"].items()}
            return Record(
                key=RecordKey(*about["key"]),
                fields={name: fields[name] for name in about["order"]},
                source=str(self.path),
                **read_identity(about),
            )


def read_table_file(path: Path) -> TableFile:
    table = read_table(path)
    with reading(path):
        text = (table.schema.metadata or {}).get(_KEY)
        if text is None:
            raise Malformed("a parquet file that rldbg did not write", "rldbg show DIR lists recordings")
        about = parse_json(text)
        if not isinstance(about, dict) or about.get("schema_version") != SCHEMA_VERSION:
            raise Malformed("written in another format of rldbg", "upgrade rldbg to read it")
        return TableFile(path, table, about)


def write_table_file(record: Record, path: Path) -> None:
    arrow = pyarrow()
    count = max(len(record.samples), 1)
    columns: dict[str, Any] = {}
    described: dict[str, Any] = {}
    data: dict[str, Any] = {}
    for name, value in record.fields.items():
        if _is_column(value):
            columns[name], described[name] = _column(arrow, value, count, bool(record.samples))
        else:
            data[name] = to_json(value)
    if record.samples:
        columns.setdefault("sample_group", arrow.array([sample.group_id for sample in record.samples]))
        columns.setdefault("sample_run", arrow.array([sample.run_id for sample in record.samples]))
    about = identity_of(record) | {"order": list(record.fields), "fields": described, "data": data}
    table = arrow.table(columns or {"empty": arrow.nulls(count)})
    text = json.dumps(about, separators=(",", ":"))
    arrow.parquet.write_table(table.replace_schema_metadata({_KEY: text.encode()}), path, compression="zstd")


def _is_column(value: Any) -> bool:
    """Whether a value goes into a column: an array of numbers. Ragged complex rows are stored as data."""
    if isinstance(value, Ragged):
        values: Any = value.values
        return isinstance(values, EncodedArray) or values.dtype.kind in "biuf"
    return isinstance(value, EncodedArray) or (isinstance(value, np.ndarray) and value.dtype.kind in "biufc")


def _column(arrow: Any, value: Any, count: int, has_rows: bool) -> tuple[Any, dict[str, Any]]:
    if isinstance(value, Ragged):
        flat, dtype = _storable(value.values)
        if len(value) == count and has_rows:
            return _lists(arrow, value.offsets, flat), {"form": "rows", "dtype": dtype, "shape": None}
        # A table can only hold one row per sample; the rows' own lengths are then kept beside the values.
        lengths = [int(length) for length in value.lengths]
        return _first_row(arrow, flat, count), {"form": "whole", "dtype": dtype, "shape": None, "lengths": lengths}
    stored, dtype = _storable(value)
    flat = stored.reshape(-1)
    if has_rows and stored.ndim and len(stored) == count:
        how = {"form": "rows", "dtype": dtype, "shape": list(stored.shape[1:])}
        if stored.ndim == 1:
            return arrow.array(flat), how
        return _lists(arrow, np.arange(count + 1, dtype=np.int64) * math.prod(stored.shape[1:]), flat), how
    return _first_row(arrow, flat, count), {"form": "whole", "dtype": dtype, "shape": list(stored.shape)}


def _first_row(arrow: Any, flat: np.ndarray, count: int) -> Any:
    offsets = np.full(count + 1, len(flat), np.int64)
    offsets[0] = 0
    return _lists(arrow, offsets, flat)


def _lists(arrow: Any, offsets: np.ndarray, flat: np.ndarray) -> Any:
    return arrow.LargeListArray.from_arrays(arrow.array(offsets, arrow.int64()), arrow.array(flat))


def _storable(value: Any) -> tuple[np.ndarray, str]:
    """Values of a dtype that parquet has, and the name of the real one. Complex numbers are pairs along a last axis."""
    if isinstance(value, EncodedArray):
        return np.asarray(value.decode() if value.dtype == "bfloat16" else value.bits, order="C"), value.dtype
    stored = np.asarray(value, order="C")
    name = stored.dtype.name
    return (stored.reshape(*stored.shape, 1).view(_COMPLEX[name]) if name in _COMPLEX else stored), name


def _read_column(column: Any, how: Mapping[str, Any]) -> Any:
    chunk = column.combine_chunks()
    shape, count = how["shape"], len(chunk)
    is_list = how["form"] == "whole" or shape is None or len(shape) > 0
    flat = (chunk.flatten() if is_list else chunk).to_numpy(zero_copy_only=False)
    if shape is None:
        lengths = np.array(how["lengths"]) if how["form"] == "whole" else np.diff(chunk.offsets.to_numpy())
        return ragged_of(_restored(flat, how["dtype"]), lengths.astype(np.int64))
    whole = checked_shape(shape) if how["form"] == "whole" else (count, *checked_shape(shape))
    return _restored(flat.reshape(whole), how["dtype"])


def _restored(values: np.ndarray, dtype: str) -> Any:
    if dtype == "bfloat16":
        bits = np.asarray(values, np.float32, order="C").view(np.uint32) >> 16
        return EncodedArray(np.asarray(bits, np.uint16), dtype)
    if dtype in ENCODED_DTYPES:
        return EncodedArray(values.astype(ENCODED_DTYPES[dtype], copy=False), dtype)
    if dtype in _COMPLEX:
        return np.asarray(np.ascontiguousarray(values, _COMPLEX[dtype]).view(dtype)[..., 0])
    return values.astype(np.dtype(dtype), copy=False)
