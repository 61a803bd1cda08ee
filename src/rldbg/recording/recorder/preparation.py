"""From what a trainer calls record() with to a ticket and the fields that will be copied."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from rldbg.recording.kinds import Scope
from rldbg.recording.recorder import naming, row_filter, schema, trajectories
from rldbg.recording.recorder.sample_ids import SampleIds
from rldbg.recording.recorder.settings import RecorderSettings
from rldbg.recording.recorder.ticket import Ticket
from rldbg.recording.records import RecordKey


class Call(NamedTuple):
    """The arguments of one record() call, as they were given."""

    key: RecordKey
    has_micro: bool
    samples: Iterable[Any] | None
    prompt_hashes: tuple[str, ...]
    policy_version: int | None
    fields: Mapping[str, Any]


class Prepared(NamedTuple):
    ticket: Ticket
    fields: Mapping[str, Any]


def prepare(call: Call, settings: RecorderSettings, sample_ids: SampleIds) -> Prepared | None:
    """What is to be recorded; None when the sample filter leaves nothing. ValueError when it cannot be recorded."""
    key = call.key
    if not naming.is_kind_name(key.kind):
        raise ValueError(f"{key.kind!r} cannot be the name of a kind: use letters, digits, _ and -")
    fields = _columns(key.kind, call.fields)
    samples = sample_ids.named_by(fields) if call.samples is None else sample_ids.given(call.samples)
    hashes = call.prompt_hashes
    rows = None if settings.samples is None else row_filter.kept_rows(samples, settings.samples)
    if rows is not None:
        if not rows:
            return None
        fields = row_filter.select(fields, rows, len(samples))
        hashes = tuple(hashes[row] for row in rows) if hashes else ()
        samples = tuple(samples[row] for row in rows)
    scope = naming.scope_of(key.kind, call.has_micro)
    ticket = Ticket(
        key=key,
        scope=scope,
        rows=schema.rows_of(key.kind, fields, len(samples)),
        alone=settings.format != "safetensors" or scope is not Scope.MICRO,
        samples=samples,
        prompt_hashes=hashes,
        policy_version=call.policy_version,
    )
    return Prepared(ticket, fields)


def _columns(kind: str, fields: Mapping[str, Any]) -> Mapping[str, Any]:
    if kind not in trajectories.TRAJECTORY_KINDS or "trajectories" not in fields:
        return fields
    others = {name: value for name, value in fields.items() if name != "trajectories"}
    return trajectories.columns(fields["trajectories"]) | others
