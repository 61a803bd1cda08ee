"""Write a recording in another format: completely or not at all, with a journal and a list of what was lost.

The result is written next to its final path and renamed when it is complete, so an interrupted conversion leaves
nothing that looks like a recording.
"""

import itertools
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from rldbg.core import Finding, Identity, IncompleteDataError, Severity, UsageError, explained_as
from rldbg.recording.formats import native
from rldbg.recording.formats.checksum import crc32_of
from rldbg.recording.formats.jsonl_file import dump_jsonl
from rldbg.recording.formats.nexrl_dict import to_dict
from rldbg.recording.formats.pt_writer import dump_pt
from rldbg.recording.formats.tagged_json import to_json
from rldbg.recording.journal import FOLDER as JOURNAL
from rldbg.recording.journal import JournalWriter
from rldbg.recording.kinds import KINDS, Scope
from rldbg.recording.layouts import Entry, step_files
from rldbg.recording.layouts.table_files import write_table_file
from rldbg.recording.recorder.settings import is_url
from rldbg.recording.recording import Recording
from rldbg.recording.records import Record

Target = Literal["nexrl-pt", "nexrl-jsonl", "safetensors", "parquet"]
TARGETS: tuple[str, ...] = get_args(Target)
_SUFFIX = {"nexrl-pt": "pt", "nexrl-jsonl": "jsonl", "safetensors": "safetensors", "parquet": "parquet"}


@dataclass(slots=True)
class Conversion:
    """What came out: where, how much, and what could not be carried over."""

    out: Path
    target: Target
    records: int = 0
    files: int = 0
    bytes: int = 0
    findings: list[Finding] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {
            "out": str(self.out),
            "format": self.target,
            "records": self.records,
            "files": self.files,
            "bytes": self.bytes,
            "findings": [finding.to_dict() for finding in self.findings],
        }


def convert(
    recording: Recording,
    out: Path | str,
    target: Target,
    *,
    kind: str | None = None,
    step: int | None = None,
    overwrite: bool = False,
) -> Conversion:
    """Writes the records (all, or those of a kind or step) to a new folder."""
    if is_url(out):
        raise UsageError(f"cannot write to {out}: a conversion is written to a folder", "copy the result afterwards")
    place = Path(out).resolve() if Path(out).is_symlink() else Path(out)
    entries = recording.entries(kind, step)
    if not entries:
        raise IncompleteDataError(
            f"{recording.title} has no matching record to convert", f"rldbg show {recording.title} lists its records"
        )
    _refuse_places(recording, place, overwrite)
    work = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    try:
        with explained_as(UsageError, OSError, f"cannot write to {place}", "choose another place for OUT"):
            work.mkdir(parents=True)
            result = _Writer(work, place, target).write(recording, entries)
            _put_in_place(work, place)
            return result
    finally:
        shutil.rmtree(work, ignore_errors=True)


class _Writer:
    """Writes into the working folder; one file after the other, each noted in the journal."""

    def __init__(self, work: Path, out: Path, target: Target) -> None:
        self._work = work
        self._suffix = _SUFFIX[target]
        self._result = Conversion(out, target)
        self._journal = JournalWriter(work, Identity(role="convert"), self._suffix)
        self._next_id = 0

    def write(self, recording: Recording, entries: Sequence[Entry]) -> Conversion:
        by_micro = {entry.kind for entry in entries if entry.micro}
        for batch in self._batches(recording, entries):
            self._write(batch, batch[0].key.kind in by_micro)
        self._journal.close(release=True)
        return self._result

    def _batches(self, recording: Recording, entries: Sequence[Entry]) -> Iterator[list[Record]]:
        """The records of one file at a time: all micro-batches of a rank in our own format, one each in the others."""
        ordered = sorted(entries, key=lambda e: (e.kind, e.step, e.epoch, e.mini_batch, e.rank, e.micro))
        for _, group in itertools.groupby(ordered, key=lambda e: (e.kind, e.step, e.epoch, e.mini_batch, e.rank)):
            batch: list[Record] = []
            for entry in group:
                record = self._read(recording, entry)
                if record is None:
                    continue
                if batch and not (self._suffix == "safetensors" and native.can_join(batch[0], record)):
                    yield batch
                    batch = []
                batch.append(record)
            if batch:
                yield batch

    def _read(self, recording: Recording, entry: Entry) -> Record | None:
        try:
            return recording.read_entry(entry)
        except IncompleteDataError as error:
            self._lost(str(entry.key), error.message, "it cannot be read", error.hint, Severity.ERROR)
            return None

    def _write(self, batch: list[Record], by_micro: bool) -> None:
        first = batch[0].key
        if not step_files.is_kind_name(first.kind):
            why = "its kind's name cannot be a folder's name"
            self._lost(str(first), first.kind, why, "convert it with --kind, or read it as it is", Severity.ERROR)
            return
        known = KINDS.get(first.kind)
        scope = Scope.MICRO if by_micro else known.scope if known else Scope.RANK
        # parquet has one file per record, as pt has
        stem = step_files.stem(first, scope, "safetensors" if self._suffix == "safetensors" else "pt")
        (self._work / first.kind).mkdir(exist_ok=True)
        path = self._free_name(stem)
        try:
            self._encode(batch, path)
        except (TypeError, ValueError, KeyError, OverflowError) as error:
            path.unlink(missing_ok=True)
            self._lost(str(first), str(error), f"{self._suffix} cannot hold it", "try another --to", Severity.ERROR)
            return
        self._note(batch, path)

    def _encode(self, batch: list[Record], path: Path) -> None:
        if self._suffix == "safetensors":
            header, buffers = native.encode(batch)
            with path.open("wb") as file:
                file.writelines([header, *buffers])
        elif self._suffix == "parquet":
            write_table_file(batch[0], path)
        elif self._suffix == "pt":
            dump_pt(to_dict(batch[0]), path)
        else:
            dump_jsonl(to_dict(batch[0]), path)

    def _note(self, batch: list[Record], path: Path) -> None:
        ids = []
        for record in batch:
            self._journal.intent([self._next_id], record.key, len(record.samples))
            ids.append(self._next_id)
            self._next_id += 1
            for name in _only_as_text(record):
                why = "it is an object and not data: only its description was kept"
                self._lost(
                    str(record.key), name, why, "record plain numbers, text, lists or mappings", Severity.WARNING
                )
        size = path.stat().st_size
        self._journal.done(ids, path.relative_to(self._work).as_posix(), size, crc32_of(path))
        self._result.records += len(batch)
        self._result.files += 1
        self._result.bytes += size

    def _free_name(self, stem: str) -> Path:
        """The next part of a file that is already complete, as in every recording."""
        paths = (self._work / step_files.part(stem, part, self._suffix) for part in itertools.count())
        return next(path for path in paths if not path.exists())

    def _lost(self, where: str, what: str, why: str, fix: str, severity: Severity) -> None:
        self._result.findings.append(Finding("not-carried", severity, where, (what,), why, (fix,)))


def _only_as_text(record: Record) -> list[str]:
    """Names of values that a JSON form can only describe."""
    values = {**record.fields, **{f"extra.{name}": value for name, value in record.extra.items()}}
    return [name for name, value in values.items() if not hasattr(value, "nbytes") and _has_repr(to_json(value))]


def _has_repr(value: Any) -> bool:
    if isinstance(value, dict):
        return "$repr" in value or any(map(_has_repr, value.values()))
    return isinstance(value, list) and any(map(_has_repr, value))


def _refuse_places(recording: Recording, place: Path, overwrite: bool) -> None:
    source = Path(recording.tree.title).resolve()
    target = place.resolve()
    if target == source or source in target.parents or target in source.parents:
        raise UsageError(
            f"{place} and {recording.title} contain each other", "choose a folder for OUT outside the recording"
        )
    if not place.exists() or (place.is_dir() and not any(place.iterdir())):
        return
    if not overwrite:
        raise UsageError(f"{place} exists and would be replaced", "choose another OUT, or add --overwrite")
    if not (place / JOURNAL).is_dir():
        raise UsageError(
            f"{place} is not a recording of rldbg, so it is not replaced", "remove it yourself, or choose another OUT"
        )


def _put_in_place(work: Path, place: Path) -> None:
    """Replaces what is there, which `_refuse_places` has seen, only now that the new one is complete."""
    if place.exists():
        old = place.with_name(f".{place.name}.{os.getpid()}.old")
        place.rename(old)
        work.rename(place)
        shutil.rmtree(old)
    else:
        place.parent.mkdir(parents=True, exist_ok=True)
        work.rename(place)
