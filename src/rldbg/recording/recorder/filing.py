"""A batch becomes a file: put together, written under a temporary name, named, noted in the journal."""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rldbg.core import Identity
from rldbg.recording.formats import native
from rldbg.recording.formats.jsonl_file import encode_jsonl
from rldbg.recording.formats.nexrl_dict import to_dict
from rldbg.recording.formats.pt_writer import encode_pt
from rldbg.recording.kinds import Shape
from rldbg.recording.recorder import naming, whole_file
from rldbg.recording.recorder.gathering import Batch, Handed
from rldbg.recording.recorder.journal import Journal
from rldbg.recording.recorder.retention import Retention
from rldbg.recording.recorder.schema import shape_of
from rldbg.recording.recorder.settings import Format
from rldbg.recording.recorder.ticket import Ticket
from rldbg.recording.recorder.trajectories import prompt_hashes
from rldbg.recording.records import EncodedArray, Record, RecordKey

Offer = Callable[[Callable[[], None]], None]


class OverBudget(Exception):
    """The next file would take more disk than the recording may have."""


class Filing:
    """Writes batches into the recording's folder; any number of threads may do so at once."""

    def __init__(
        self, directory: Path, format: Format, identity: Identity, journal: Journal, retention: Retention
    ) -> None:
        self._directory = str(directory)
        self._format = format
        self._identity = identity
        self._journal = journal
        self._retention = retention
        self._folders: set[str] = set()

    def encode(self, batch: Batch) -> list[memoryview]:
        """The bytes of the file; arrays are passed through, not copied. An error here concerns this batch alone."""
        records = [record for handed in batch.records for record in self._records(handed)]
        if self._format == "safetensors":
            header, arrays = native.encode(records)
            return _bytes([header, *arrays])
        (record,) = records
        content = to_dict(record)
        return _bytes(encode_pt(content) if self._format == "pt" else [encode_jsonl(content)])

    def file(self, batch: Batch, buffers: list[memoryview], offer: Offer) -> None:
        """Writes one file. OSError and OverBudget end the recording."""
        first = batch.records[0].ticket
        size = sum(buffer.nbytes for buffer in buffers)
        if not self._retention.admits(size):
            raise OverBudget(f"the budget is reached: {first.key} would add {size} bytes")
        self._make_folder(first.key.kind)
        stem = naming.stem(first.key, first.scope, self._format)
        # Two parts of one name may be written at once, so the temporary name also has the number of a record.
        own = f"{self._journal.writer}-{batch.records[0].ids[0]}"
        temporary = self._path(f"{first.key.kind}/.{stem.rpartition('/')[2]}.{own}.tmp")
        try:
            size, crc32 = whole_file.write(temporary, buffers, offer)
            part = whole_file.give_name(temporary, lambda number: self._path(naming.part(stem, number, self._format)))
        except BaseException:
            # Frees space for the journal's last lines on a full disk.
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
            raise
        name = naming.part(stem, part, self._format)
        self._journal.done([id for record in batch.records for id in record.ids], name, size, crc32)
        for old in self._retention.added(first.key.step, name, size):
            Path(self._path(old)).unlink(missing_ok=True)
            self._journal.delete(old, "retention")

    def _records(self, handed: Handed) -> list[Record]:
        ticket, fields = handed.ticket, handed.snapshot.fields
        if ticket.unfold is not None:
            unfolded = zip(ticket.keys, ticket.unfold(fields), strict=True)
            return [self._record(ticket, key, fields) for key, fields in unfolded]
        kind = ticket.key.kind
        fields = {
            name: _number(value) if shape_of(kind, name) is Shape.NUMBER else value for name, value in fields.items()
        }
        return [self._record(ticket, ticket.key, fields)]

    def _record(self, ticket: Ticket, key: RecordKey, fields: dict[str, Any]) -> Record:
        return Record(
            key=key,
            fields=fields,
            samples=ticket.samples,
            prompt_hashes=ticket.prompt_hashes or prompt_hashes(key.kind, fields),
            role=self._identity.role,
            coordinates=self._identity.coordinates,
            policy_version=ticket.policy_version,
        )

    def _make_folder(self, kind: str) -> None:
        if kind not in self._folders:
            Path(self._path(kind)).mkdir(exist_ok=True)
            self._folders.add(kind)

    def _path(self, name: str) -> str:
        # Plain strings: pathlib would take a fifth of the time of a small file.
        return f"{self._directory}/{name}"


def _number(value: Any) -> Any:
    """A declared number that came as a tensor of one value, exactly as a Python number."""
    if isinstance(value, EncodedArray) and value.bits.size == 1:
        return value.decode().item()
    return value.item() if isinstance(value, np.ndarray) and value.size == 1 else value


def _bytes(buffers: Sequence[Any]) -> list[memoryview]:
    views = [
        buffer.reshape(-1).view(np.uint8).data if isinstance(buffer, np.ndarray) else memoryview(buffer).cast("B")
        for buffer in buffers
    ]
    return [view for view in views if view.nbytes]
