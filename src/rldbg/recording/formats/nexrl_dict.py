"""Records as the dictionaries of the NexRL document, key for key, and back; `_rldbg` holds what is not in them.

The dictionaries hold numpy arrays where the document has tensors and AsList where it has lists of numbers; pt_writer
and jsonl_file know both. Reading accepts their output and files of NexRL itself, which have no `_rldbg`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from rldbg.core import SampleId
from rldbg.recording.formats.identity import identity_of, read_identity
from rldbg.recording.formats.malformed import Malformed, reading
from rldbg.recording.formats.nexrl_rows import form_of
from rldbg.recording.formats.plain_data import with_lists
from rldbg.recording.formats.sidecar import FieldRestorer, Sidecar, undescribed_tensor
from rldbg.recording.formats.typed_values import is_number_array
from rldbg.recording.kinds import KINDS, Kind, Scope, Shape
from rldbg.recording.records import SCHEMA_VERSION, Ragged, Record, RecordKey, hashes_of_prompts

OWN_KEY = "_rldbg"
# Keys the document derives from a tensor, and the field each is the shape of.
_SHAPE_KEYS = {
    "old_log_probs": {"shape": "old_log_probs"},
    "forward_data": {"log_probs_shape": "log_probs", "entropy_shape": "entropy"},
}
_TENSOR_SHAPES = frozenset({Shape.RESPONSE, Shape.TENSOR, Shape.SAMPLES, Shape.TOKENS})


def to_dict(record: Record) -> dict[str, Any]:
    """The documented dictionary of this record."""
    own = identity_of(record)
    form = form_of(record.key.kind)
    if form is not None:
        rows = form.to_dict(record.fields, record.samples, own)
        return {"step": record.key.step} | rows | {OWN_KEY: own}
    schema = KINDS.get(record.key.kind)
    sidecar = Sidecar()
    result = _place(record.key, schema)
    own["fields"] = {}
    for name, value in record.fields.items():
        is_documented = (schema is None or schema.field(name) is not None) and name not in result and name != OWN_KEY
        (result if is_documented else own["fields"])[name] = _entry(name, value, record.key.kind, schema, sidecar)
    for key, name in _SHAPE_KEYS.get(record.key.kind, {}).items():
        if name in result:
            result[key] = list(np.shape(result[name]))
    return result | {OWN_KEY: own | sidecar.to_dict()}


def from_dict(kind: str, data: Any, *, key: RecordKey | None = None, source: str = "") -> Record:
    """The record in a dictionary. `key` is what the file's name says; `_rldbg` knows better where it is present."""
    with reading(source or "a NexRL dictionary"):
        if not isinstance(data, dict):
            raise Malformed(f"holds a {type(data).__name__} where NexRL writes a dictionary")
        own = data.get(OWN_KEY, {})
        if not isinstance(own, dict):
            raise Malformed(f"{OWN_KEY} is not a mapping")
        if own.get("schema_version", SCHEMA_VERSION) != SCHEMA_VERSION:
            raise Malformed(f"written in format {own['schema_version']!r:.20} of rldbg", "upgrade rldbg to read it")
        form = form_of(kind)
        fields, beyond = form.from_dict(data, own) if form is not None else _plain_fields(kind, data, own)
        about = read_identity(own | {"extra": with_lists(own.get("extra", {}))})
        about["extra"] |= beyond
        if not own:
            about["samples"] = _named_samples(fields)
            about["prompt_hashes"] = _hashes(fields) if about["samples"] else ()
        return Record(key=_key(kind, data, own, key), fields=fields, source=source, **about)


def _place(key: RecordKey, schema: Kind | None) -> dict[str, Any]:
    scope = Scope.MICRO if schema is None else schema.scope
    place: dict[str, Any] = {"step": key.step}
    if scope != Scope.STEP:
        place["rank"] = key.rank
    if scope == Scope.MICRO:
        place["micro_idx"] = key.micro
    return place


def _entry(name: str, value: Any, kind: str, schema: Kind | None, sidecar: Sidecar) -> Any:
    field = schema.field(name) if schema is not None else None
    written = sidecar.whole(name, value)
    # The document has floats here; the service's is_loss_debug may keep its loss a tensor.
    if field is None or field.shape != Shape.NUMBER or kind == "is_loss_debug" or not is_number_array(written):
        return written
    numbers = np.asarray(written)
    return float(numbers.reshape(())) if numbers.size == 1 else written


def _plain_fields(kind: str, data: dict[str, Any], own: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    schema = KINDS.get(kind)
    described = FieldRestorer(own)
    skipped = {OWN_KEY, "step", *_place(RecordKey(kind, 0), schema), *_SHAPE_KEYS.get(kind, {})}
    fields: dict[str, Any] = {}
    beyond: dict[str, Any] = {}
    stored = {name: value for name, value in data.items() if name not in skipped}
    for name, value in (stored | own.get("fields", {})).items():
        field = schema.field(name) if schema is not None else None
        if described.knows(name):
            fields[name] = described.whole(name, value)
        elif own or (field is not None and field.shape not in _TENSOR_SHAPES):
            fields[name] = described.data(name, value)
        elif schema is None or field is not None:
            fields[name] = undescribed_tensor(value, _named_dtype(kind, data))
        else:
            beyond[name] = value
    return fields, beyond


def _named_dtype(kind: str, data: dict[str, Any]) -> str | None:
    """Parameters and gradients say their dtype beside the tensor, as text: torch.bfloat16."""
    text = data.get("dtype")
    if kind not in ("param", "gradient") or not isinstance(text, str):
        return None
    return text.removeprefix("torch.")


def _key(kind: str, data: dict[str, Any], own: dict[str, Any], key: RecordKey | None) -> RecordKey:
    if "key" in own:
        stored = own["key"]
        if not isinstance(stored, list) or len(stored) != 6 or stored[0] != kind:
            raise Malformed(f"{OWN_KEY} names another record: {stored!r:.60}")
        if not all(type(part) is int for part in stored[1:]):
            raise Malformed(f"{OWN_KEY} has no proper key: {stored!r:.60}")
        return RecordKey(*stored)
    if key is not None:
        return key
    places = [data.get("step"), data.get("rank", 0), data.get("micro_idx", 0)]
    if not all(type(place) is int for place in places):
        raise Malformed(f"has no step, rank and micro_idx: {places!r:.60}")
    return RecordKey(kind, *places)


def _named_samples(fields: Mapping[str, Any]) -> tuple[SampleId, ...]:
    """The sample ids in the samples' extra fields, if all of them have one."""
    ids = [_sample_id(row) for row in fields.get("extra_fields", ())]
    return tuple(found for found in ids if found is not None) if None not in ids else ()


def _sample_id(row: Any) -> SampleId | None:
    """The sample id in a sample's extra fields; None if they have no group and run."""
    if not isinstance(row, dict):
        return None
    group, run = row.get("group_id"), row.get("run_id")
    group = row.get("uid") if group is None else group
    if isinstance(run, str) and run.isdecimal():
        run = int(run)
    if group is None or isinstance(run, bool) or not isinstance(run, int | np.integer):
        return None
    return SampleId(str(group), int(run))


def _hashes(fields: Mapping[str, Any]) -> tuple[str, ...]:
    tokens, mask = fields.get("tokens"), fields.get("loss_mask")
    is_whole = isinstance(tokens, Ragged) and isinstance(mask, Ragged) and np.array_equal(tokens.offsets, mask.offsets)
    return hashes_of_prompts(tokens, mask) if is_whole else ()  # type: ignore[arg-type]
