"""From what a trainer calls record() with to a header and the fields that will be copied.

The rows of samples that are not wanted are left out before anything is copied.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from rldbg.core import SampleId
from rldbg.recording.kinds import Scope
from rldbg.recording.layouts import step_files
from rldbg.recording.recorder import schema, trajectories
from rldbg.recording.recorder.later import Later
from rldbg.recording.recorder.record_header import RecordHeader
from rldbg.recording.recorder.sample_ids import SampleIds
from rldbg.recording.recorder.settings import RecorderSettings
from rldbg.recording.records import EncodedArray, Ragged, RecordKey


class RecordCall(NamedTuple):
    """The arguments of one record() call, as they were given."""

    key: RecordKey
    has_micro: bool
    samples: Iterable[Any] | None
    prompt_hashes: tuple[str, ...]
    policy_version: int | None
    fields: Mapping[str, Any]


class Prepared(NamedTuple):
    header: RecordHeader
    fields: Mapping[str, Any]


def prepare(call: RecordCall, settings: RecorderSettings, sample_ids: SampleIds) -> Prepared | None:
    """What is to be recorded; None when the sample filter leaves nothing. ValueError when it cannot be recorded."""
    key = call.key
    if not step_files.is_kind_name(key.kind):
        raise ValueError(f"{key.kind!r} cannot be the name of a kind: use letters, digits, _ and -")
    fields = _columns(key.kind, call.fields)
    samples = sample_ids.named_by(fields) if call.samples is None else sample_ids.given(call.samples)
    hashes = call.prompt_hashes
    rows = None if settings.samples is None else _kept_rows(samples, settings.samples)
    if rows is not None:
        if not rows:
            return None
        fields = _select_rows(fields, rows, len(samples))
        hashes = tuple(hashes[row] for row in rows) if hashes else ()
        samples = tuple(samples[row] for row in rows)
    scope = step_files.scope_of(key.kind, call.has_micro)
    header = RecordHeader(
        key=key,
        scope=scope,
        rows=schema.rows_of(key.kind, fields, len(samples)),
        alone=settings.format != "safetensors" or scope is not Scope.MICRO,
        samples=samples,
        prompt_hashes=hashes,
        policy_version=call.policy_version,
    )
    return Prepared(header, fields)


def _columns(kind: str, fields: Mapping[str, Any]) -> Mapping[str, Any]:
    if kind not in trajectories.TRAJECTORY_KINDS or "trajectories" not in fields:
        return fields
    others = {name: value for name, value in fields.items() if name != "trajectories"}
    return trajectories.columns(fields["trajectories"]) | others


def _kept_rows(samples: tuple[SampleId, ...], wanted: frozenset[SampleId]) -> list[int] | None:
    """Indices of the rows to keep, or None to keep the record as it is."""
    if not samples:
        return None
    rows = [row for row, sample in enumerate(samples) if sample in wanted]
    return None if len(rows) == len(samples) else rows


def _select_rows(fields: Mapping[str, Any], rows: list[int], count: int) -> dict[str, Any]:
    """The fields with only these of `count` rows; what has no rows stays."""

    def selected(value: Any) -> Any:
        if isinstance(value, Later):
            return Later(lambda: _select_rows(value.make(), rows, count), value.nbytes)
        return _select_value(value, rows) if schema.row_count(value) == count else value

    return {name: selected(value) for name, value in fields.items()}


def _select_value(value: Any, rows: list[int]) -> Any:
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
