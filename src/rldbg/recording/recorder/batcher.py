"""Which records share a file, and when that file is due. Pure bookkeeping: no threads, no clock, no disk.

A record that is alone in its file is due at once. Micro-batches of one (kind, step, epoch, mini-batch) wait for each
other until the step ends, a later step of their kind begins, they are asked for, or they have waited long enough.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Event
from typing import NamedTuple

from rldbg.recording.formats import native
from rldbg.recording.recorder.record_header import RecordHeader
from rldbg.recording.recorder.snapshot import Snapshot


@dataclass(slots=True, eq=False)
class QueuedRecord:
    """One record handed over, or several that came as one: what they are, and their data."""

    ids: tuple[int, ...]
    header: RecordHeader
    snapshot: Snapshot
    written: Event | None = None
    """Set when the record is written or given up, for a caller who waits for that."""


@dataclass(slots=True, eq=False)
class FileBatch:
    """The records of one file, in the order they came."""

    since: float
    records: list[QueuedRecord] = field(default_factory=list)
    forms: dict[str, native.FieldForm] = field(default_factory=dict)

    def append(self, record: QueuedRecord, forms: Mapping[str, native.FieldForm]) -> None:
        self.records.append(record)
        self.forms.update(forms)


class _Place(NamedTuple):
    kind: str
    step: int
    rank: int
    epoch: int
    mini_batch: int


class Batcher:
    """Open batches. Every record added leaves in exactly one batch that a method returned."""

    def __init__(self, wait_s: float, most_bytes: int) -> None:
        self._wait_s = wait_s
        self._most_bytes = most_bytes
        self._open: dict[_Place, FileBatch] = {}
        self._bytes = 0

    def add(self, record: QueuedRecord, now: float) -> list[FileBatch]:
        """Takes a record and returns the batches that are due because of it."""
        key = record.header.key
        due = self._close_where(lambda place: place.kind == key.kind and place.step < key.step)
        if record.header.alone:
            return [*due, FileBatch(now, [record])]
        place = _Place(key.kind, key.step, key.rank, key.epoch, key.mini_batch)
        forms = _forms(record)
        if place in self._open and not native.forms_agree(self._open[place].forms, forms):
            due.append(self._close(place))
        self._open.setdefault(place, FileBatch(now)).append(record, forms)
        self._bytes += record.snapshot.memory.size
        if record.header.last:
            due.append(self._close(place))
        if self._bytes > self._most_bytes:
            due += self.close_all()
        return due

    def end_step(self, step: int) -> list[FileBatch]:
        """What belongs to this step or an earlier one."""
        return self._close_where(lambda place: place.step <= step)

    def overdue(self, now: float) -> list[FileBatch]:
        return [self._close(place) for place, batch in list(self._open.items()) if now >= batch.since + self._wait_s]

    def close_all(self) -> list[FileBatch]:
        return self._close_where(lambda place: True)

    def deadline(self) -> float | None:
        """When the oldest batch is overdue; None while nothing waits."""
        return min((batch.since + self._wait_s for batch in self._open.values()), default=None)

    def _close_where(self, chosen: Callable[[_Place], bool]) -> list[FileBatch]:
        return [self._close(place) for place in list(self._open) if chosen(place)]

    def _close(self, place: _Place) -> FileBatch:
        batch = self._open.pop(place)
        self._bytes -= sum(record.snapshot.memory.size for record in batch.records)
        return batch


def _forms(record: QueuedRecord) -> dict[str, native.FieldForm]:
    """What must agree within a file; the names with @ stand for what the header says once for all."""
    fields = record.snapshot.fields
    if record.header.unfold is None:
        forms = native.forms_of(fields)
    else:  # parameters: their values have one dtype, which begins another file when it changes
        forms = {record.header.key.kind: native.form_of(next(iter(fields.values())))}
    forms["@policy_version"] = ("data", str(record.header.policy_version))
    forms["@identity"] = ("data", f"{bool(record.header.samples)} {bool(record.header.prompt_hashes)}")
    return forms
