"""rldbg's own file: one (kind, step, epoch, mini-batch, rank), its micro-batches concatenated, as one safetensors file.

docs/recording.md is the specification. Encoding copies no array; decoding maps the file and cuts a micro-batch out
only when it is asked for.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from rldbg.core import SampleId
from rldbg.recording.formats.bounded_json import parse_json
from rldbg.recording.formats.malformed import Malformed, reading
from rldbg.recording.formats.native_description import COMPLEX128, LENGTHS, checked_description
from rldbg.recording.formats.safetensors_file import DTYPES, ENCODE_JSON, encode_header, open_tensors
from rldbg.recording.formats.tagged_json import from_json, ragged_of, to_json
from rldbg.recording.records import SCHEMA_VERSION, EncodedArray, Ragged, Record, RecordKey

METADATA_KEY = "rldbg"

Flat = np.ndarray | EncodedArray
FieldForm = tuple[str, str]
"""The layout and dtype of a field."""


class _Absent:
    """A field that this micro-batch does not have."""


_ABSENT = _Absent()
_ABSENT_JSON = {"$absent": True}


def forms_of(fields: Mapping[str, Any]) -> dict[str, FieldForm]:
    """The form of each field of a record."""
    return {name: form_of(value) for name, value in fields.items()}


def forms_agree(first: Mapping[str, FieldForm], other: Mapping[str, FieldForm]) -> bool:
    """Whether fields can share a file: a field is one flat array there, so it has one layout and dtype."""
    return all(first.get(name, form) == form for name, form in other.items())


def can_join(first: Record, other: Record) -> bool:
    """Whether two records may share a file: one process, one step, each common field of one form."""
    return forms_agree(forms_of(first.fields), forms_of(other.fields)) and _belongs_to(first) == _belongs_to(other)


def _belongs_to(record: Record) -> tuple[Any, ...]:
    """What a file says once for all of its records."""
    kind, step, rank, _, epoch, mini_batch = record.key
    return kind, step, rank, epoch, mini_batch, record.role, record.coordinates, record.policy_version


def encode(records: Sequence[Record]) -> tuple[bytes, list[memoryview]]:
    """The header, and the buffers that follow it. The buffers are views of the arrays given, wherever contiguous."""
    first = records[0]
    for record in records[1:]:
        if _belongs_to(record) != _belongs_to(first):
            raise ValueError(f"{record.key} cannot share a file with {first.key}")
    columns: list[tuple[str, str, list[np.ndarray]]] = []
    fields = {
        name: _encode_field(name, [record.fields.get(name, _ABSENT) for record in records], columns)
        for name in dict.fromkeys(name for record in records for name in record.fields)
    }
    metadata = {
        "schema_version": SCHEMA_VERSION,
        "kind": first.key.kind,
        "step": first.key.step,
        "epoch": first.key.epoch,
        "mini_batch": first.key.mini_batch,
        "rank": first.key.rank,
        "role": first.role,
        "coordinates": dict(first.coordinates),
        "policy_version": first.policy_version,
        "micros": [record.key.micro for record in records],
        "rows": [len(record.samples) for record in records],
        "fields": fields,
        "extra": [to_json(record.extra) if record.extra else None for record in records],
    }
    columns.sort(key=lambda column: -_item_bytes(column[2]))  # widest first keeps every tensor aligned
    infos = []
    for name, dtype, parts in columns:
        nbytes = sum(part.nbytes for part in parts)
        infos.append((name, dtype, [nbytes // _item_bytes(parts)], nbytes))
    samples = ",".join(_samples_text(record.samples) for record in records if record.samples)
    hashes = ",".join(_hashes_text(_hashes_of(record)) for record in records if record.samples)
    text = f'{ENCODE_JSON(metadata)[:-1]},"samples":[{samples}],"prompt_hashes":[{hashes}]}}'
    if not text.isascii():  # half a surrogate pair is not UTF-8, but JSON has an escape for it
        text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    header = encode_header(infos, {METADATA_KEY: text})
    return header, [part.view(np.uint8).data for _, _, parts in columns for part in parts if part.nbytes]


@dataclass(frozen=True, slots=True)
class NativeFile:
    """An open file: `keys` says what it holds, `read(i)` gives the i-th record as views of the file."""

    path: Path
    keys: tuple[RecordKey, ...]
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Flat]

    def read(self, index: int) -> Record:
        with reading(self.path):
            return self._record(index)

    def _record(self, index: int) -> Record:
        metadata = self.metadata
        first = sum(metadata["rows"][:index])
        last = first + metadata["rows"][index]
        hashes = tuple(metadata["prompt_hashes"][first:last])
        fields = {
            name: value
            for name, field in metadata["fields"].items()
            if (value := self._field(name, field, index)) is not _ABSENT
        }
        return Record(
            key=self.keys[index],
            fields=fields,
            samples=tuple(SampleId(group, run) for group, run in metadata["samples"][first:last]),
            prompt_hashes=hashes if any(hashes) else (),
            role=metadata["role"],
            coordinates=metadata["coordinates"],
            policy_version=metadata["policy_version"],
            extra=from_json(metadata["extra"][index]) or {},
            source=str(self.path),
        )

    def _field(self, name: str, field: Mapping[str, Any], index: int) -> Any:
        if field["layout"] == "data":
            value = field["values"][index]
            return _ABSENT if value == _ABSENT_JSON else from_json(value)
        if field["layout"] == "dense":
            return self._dense(name, field, index)
        rows = field["rows"]
        if rows[index] is None:
            return _ABSENT
        row = sum(count or 0 for count in rows[:index])
        all_lengths = np.asarray(self.tensors[name + LENGTHS])
        lengths = all_lengths[row : row + rows[index]]
        start = int(all_lengths[:row].sum())
        return ragged_of(_slice(self._column(name, field), start, start + int(lengths.sum())), lengths)

    def _dense(self, name: str, field: Mapping[str, Any], index: int) -> Any:
        shapes = field["shapes"]
        if shapes[index] is None:
            return _ABSENT
        start = sum(math.prod(shape) for shape in shapes[:index] if shape is not None)
        values = _slice(self._column(name, field), start, start + math.prod(shapes[index]))
        if isinstance(values, EncodedArray):
            return EncodedArray(values.bits.reshape(shapes[index]), values.dtype)
        return values.reshape(shapes[index])

    def _column(self, name: str, field: Mapping[str, Any]) -> Flat:
        values = self.tensors[name]
        is_complex = field.get("dtype") == COMPLEX128 and isinstance(values, np.ndarray)
        return values.view(np.complex128) if is_complex else values  # type: ignore[union-attr]


def decode(path: Path | str) -> NativeFile:
    """Open a file and check all it says about itself."""
    texts, tensors = open_tensors(path)
    with reading(path):
        if METADATA_KEY not in texts:
            raise Malformed("a safetensors file that rldbg did not write", "rldbg show DIR lists recordings")
        metadata = checked_description(parse_json(texts[METADATA_KEY].encode("utf-8", "surrogatepass")), tensors)
        keys = tuple(
            RecordKey(
                *(metadata["kind"], metadata["step"], metadata["rank"], micro),
                *(metadata["epoch"], metadata["mini_batch"]),
            )
            for micro in metadata["micros"]
        )
        return NativeFile(Path(path), keys, metadata, tensors)


# Looked up by exact type first: each parameter of a model has many of them.
_PLAIN_DATA = frozenset({str, bool, int, float, list, dict, type(None)})
_DATA: FieldForm = ("data", "")


def form_of(value: Any) -> FieldForm:
    """A field's layout and dtype: what must agree between the records of a file."""
    if type(value) in _PLAIN_DATA:
        return _DATA
    if isinstance(value, Ragged):
        values: Any = value.values
        return "ragged", values.dtype if isinstance(values, EncodedArray) else _dtype_name(values.dtype)
    if isinstance(value, EncodedArray):
        return "dense", value.dtype
    if isinstance(value, np.ndarray) and ((name := _dtype_name(value.dtype)) in DTYPES or name == COMPLEX128):
        return "dense", name
    return _DATA


@lru_cache(maxsize=64)  # numpy makes the name again each time it is asked for
def _dtype_name(dtype: np.dtype) -> str:
    return dtype.name


def _encode_field(name: str, values: list[Any], columns: list[tuple[str, str, list[np.ndarray]]]) -> dict[str, Any]:
    """What the header says about a field; its arrays are added to the columns."""
    present = [value for value in values if value is not _ABSENT]
    forms = set(map(form_of, present))
    if len(forms) > 1:
        raise ValueError(f"records whose {name} differs in layout or dtype cannot share a file: {sorted(forms)}")
    ((layout, dtype),) = forms
    if layout == "data":
        return {"layout": "data", "values": [_ABSENT_JSON if value is _ABSENT else to_json(value) for value in values]}
    field: dict[str, Any] = {"layout": layout}
    if dtype == COMPLEX128:
        field["dtype"] = dtype
        dtype = "float64"
    if layout == "dense":
        field["shapes"] = [None if value is _ABSENT else list(value.shape) for value in values]
        columns.append((name, dtype, [_flat(value) for value in present]))
    else:
        field["rows"] = [None if value is _ABSENT else len(value) for value in values]
        columns.append((name, dtype, [_flat(value.values) for value in present]))
        columns.append((name + LENGTHS, "int64", [_flat(value.lengths.astype(np.int64)) for value in present]))
    return field


def _flat(value: Flat) -> np.ndarray:
    """The array's numbers in file order; a view when it is contiguous and little-endian already."""
    bits = value.bits if isinstance(value, EncodedArray) else value
    flat = np.ascontiguousarray(bits.astype(bits.dtype.newbyteorder("<"), copy=False)).reshape(-1)
    return flat.view(np.float64) if flat.dtype == np.complex128 else flat


def _item_bytes(parts: list[np.ndarray]) -> int:
    return int(parts[0].itemsize)


def _hashes_of(record: Record) -> tuple[str, ...]:
    """One hash per sample; the empty text where a record has samples but no hashes."""
    return (record.prompt_hashes or ("",) * len(record.samples))[: len(record.samples)]


# A micro-batch is recorded as several kinds, one after the other, each with the same samples.
@lru_cache(maxsize=8)
def _samples_text(samples: tuple[SampleId, ...]) -> str:
    return ENCODE_JSON(samples)[1:-1]


@lru_cache(maxsize=8)
def _hashes_text(hashes: tuple[str, ...]) -> str:
    return ENCODE_JSON(hashes)[1:-1]


def _slice(values: Flat, start: int, stop: int) -> Flat:
    if isinstance(values, EncodedArray):
        return EncodedArray(values.bits[start:stop], values.dtype)
    return values[start:stop]
