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
from rldbg.recording.journal import JournalWriter
from rldbg.recording.kinds import Shape
from rldbg.recording.layouts import step_files
from rldbg.recording.layouts.step_files import Format
from rldbg.recording.recorder import whole_file
from rldbg.recording.recorder.batcher import FileBatch, QueuedRecord
from rldbg.recording.recorder.record_header import RecordHeader
from rldbg.recording.recorder.retention import Retention
from rldbg.recording.recorder.schema import shape_of
from rldbg.recording.recorder.trajectories import prompt_hashes
from rldbg.recording.records import EncodedArray, Record, RecordKey

Offer = Callable[[Callable[[], None]], None]


class OverBudget(Exception):
    """The next file would take more disk than the recording may have."""


class FileWriter:
    """Writes batches into the recording's folder; any number of threads may do so at once."""

    def __init__(
        self, directory: Path, format: Format, identity: Identity, journal: JournalWriter, retention: Retention
    ) -> None:
        self._directory = str(directory)
        self._format = format
        self._identity = identity
        self._journal = journal
        self._retention = retention
        self._folders: set[str] = set()

    def encode(self, batch: FileBatch) -> list[memoryview]:
        """The bytes of the file; arrays are passed through, not copied. An error here concerns this batch alone."""
        records = [record for handed in batch.records for record in self._records(handed)]
        if self._format == "safetensors":
            header, arrays = native.encode(records)
            return _bytes([header, *arrays])
        (record,) = records
        content = to_dict(record)
        return _bytes(encode_pt(content) if self._format == "pt" else [encode_jsonl(content)])

    def file(self, batch: FileBatch, buffers: list[memoryview], offer: Offer) -> None:
        """Writes one file. OSError and OverBudget end the recording."""
        first = batch.records[0].header
        size = sum(buffer.nbytes for buffer in buffers)
        if not self._retention.admits(size):
            raise OverBudget(f"the budget is reached: {first.key} would add {size} bytes")
        self._make_folder(first.key.kind)
        stem = step_files.stem(first.key, first.scope, self._format)
        # Two parts of one name may be written at once, so the temporary name also has the number of a record.
        own = f"{self._journal.writer}-{batch.records[0].ids[0]}"
        temporary = self._path(f"{first.key.kind}/.{stem.rpartition('/')[2]}.{own}.tmp")
        try:
            size, crc32 = whole_file.write(temporary, buffers, offer)
            part = whole_file.give_name(temporary, lambda part: self._path(step_files.part(stem, part, self._format)))
        except BaseException:
            # Frees space for the journal's last lines on a full disk.
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
            raise
        name = step_files.part(stem, part, self._format)
        self._journal.done([id for record in batch.records for id in record.ids], name, size, crc32)
        self._remove(self._retention.added(first.key.step, name, size))

    def remove_checked(self) -> None:
        """At the end: removes old steps that were checked since, and leaves the others to the process that checks."""
        checks, left = self._retention.checks, self._retention.left()
        if not left or checks is None or checks.read() is None:
            return
        # Handed over before the last look at what is checked: one of both sides sees what the other has written.
        checks.hand_over(self._journal.path, left)
        self._remove(self._retention.checked_since())

    def _remove(self, names: Sequence[str]) -> None:
        for old in names:
            Path(self._path(old)).unlink(missing_ok=True)
            self._journal.delete(old, "retention")

    def _records(self, handed: QueuedRecord) -> list[Record]:
        header, fields = handed.header, handed.snapshot.fields
        if header.unfold is not None:
            unfolded = zip(header.keys, header.unfold(fields), strict=True)
            return [self._record(header, key, fields) for key, fields in unfolded]
        kind = header.key.kind
        fields = {
            name: _number(value) if shape_of(kind, name) is Shape.NUMBER else value for name, value in fields.items()
        }
        return [self._record(header, header.key, fields)]

    def _record(self, header: RecordHeader, key: RecordKey, fields: dict[str, Any]) -> Record:
        return Record(
            key=key,
            fields=fields,
            samples=header.samples,
            prompt_hashes=header.prompt_hashes or prompt_hashes(key.kind, fields),
            role=self._identity.role,
            coordinates=self._identity.coordinates,
            policy_version=header.policy_version,
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
