"""All that a recorder has in one process: its memory, journal and threads. A fork needs a writer of its own."""

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Mapping
from typing import Any

from rldbg.core import Identity
from rldbg.recording.journal import JournalWriter
from rldbg.recording.recorder.arena import Arena
from rldbg.recording.recorder.batcher import Batcher, QueuedRecord
from rldbg.recording.recorder.checked_steps import CheckedSteps
from rldbg.recording.recorder.device import Devices
from rldbg.recording.recorder.file_writer import FileWriter
from rldbg.recording.recorder.memory import ArenaMemory, HeapMemory, NoRoom, SnapshotMemory, TooLarge
from rldbg.recording.recorder.pipeline import Pipeline
from rldbg.recording.recorder.record_header import RecordHeader
from rldbg.recording.recorder.retention import Retention
from rldbg.recording.recorder.settings import RecorderSettings
from rldbg.recording.recorder.snapshot import Snapshot
from rldbg.recording.recorder.warn_once import WarnOnce
from rldbg.recording.records import RecordKey

_LOOK_AGAIN_S = 1.0
# Micro-batches that wait for others of their file; the rest of the buffer is for a disk that falls behind.
_MOST_GATHERED_BYTES = 256 * 2**20
_CLOSE_WAITS_S = 10.0


class ProcessWriter:
    """Takes snapshots in the caller's thread and passes them on. Raises OSError only when it cannot be opened."""

    def __init__(self, settings: RecorderSettings, identity: Identity, warn_once: WarnOnce) -> None:
        self.process = os.getpid()
        self.stopped: str | None = None
        self._settings = settings
        self._warn_once = warn_once
        self._stop_once = threading.Lock()
        self._turn = threading.Lock()
        self._turn_of: int | None = None
        self._closed = False
        self._ids = itertools.count()
        self._journal = JournalWriter(settings.directory, identity, settings.format)
        self._arena = Arena(settings.buffer_bytes, settings.warm_bytes)
        self._devices = Devices(self._arena, settings.device_buffer_bytes)
        self._retention = Retention(
            settings.budget_bytes,
            settings.keep_last,
            settings.pinned_steps,
            CheckedSteps(settings.directory, self._journal.writer),
        )
        self._file_writer = FileWriter(settings.directory, settings.format, identity, self._journal, self._retention)
        self._pipeline = Pipeline(
            file_writer=self._file_writer,
            journal=self._journal,
            batcher=Batcher(settings.gather_s, min(settings.buffer_bytes // 2, _MOST_GATHERED_BYTES)),
            warn_once=warn_once,
            threads=settings.threads,
            stop=self.stop,
            is_stopped=lambda: self.stopped is not None,
        )

    def submit(self, header: RecordHeader, fields: Mapping[str, Any]) -> None:
        """Notes the record in the journal, copies its fields and returns; a record that cannot be kept is a drop."""
        if self._turn_of == threading.get_ident():
            self._warn_once("signal", f"{header.key} was recorded by a signal handler during another: not recorded")
            return
        # One thread at a time takes memory: two that hold half of it each could wait for each other forever.
        with self._turn:
            self._turn_of = threading.get_ident()
            try:
                written = self._journal_and_snapshot(header, fields)
            finally:
                self._turn_of = None
        if written is not None:
            self._wait_for(written)

    def refuse(self, key: RecordKey, reason: str) -> None:
        """Notes a record that was handed over but cannot even be prepared."""
        self._warn_once(f"{key.kind}: {reason}", f"cannot record {key}: {reason}")
        try:
            ids = (next(self._ids),)
            self._journal.intent(ids, key, 0)
            self._journal.drop(ids, reason)
        except OSError as error:
            self.stop(f"the journal cannot be written: {error}")

    def end_step(self, step: int) -> None:
        self._pipeline.end_step(step)

    def pin(self, step: int) -> None:
        self._retention.pin(step)

    def flush(self, timeout_s: float | None) -> bool:
        return self._pipeline.flush(timeout_s)

    def close(self, timeout_s: float | None) -> bool:
        """Writes what is left, then the journal's last line; without it the recording counts as unfinished."""
        # A signal handler may have interrupted this very thread in the middle of a record: then it has the turn.
        waits_s = _CLOSE_WAITS_S if timeout_s is None else min(timeout_s, _CLOSE_WAITS_S)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        has_turn = self._turn_of != threading.get_ident() and self._turn.acquire(timeout=waits_s)
        try:
            self._closed = True
            finished = self._pipeline.flush(None if deadline is None else max(0.0, deadline - time.monotonic()))
            self._pipeline.close()
            if finished:
                self._devices.close()
                with contextlib.suppress(OSError):
                    self._file_writer.remove_checked()
                with contextlib.suppress(OSError):
                    self._journal.close(release=has_turn)
                if has_turn:
                    self._arena.close()
        finally:
            if has_turn:
                self._turn.release()
        return finished

    def stop(self, reason: str) -> None:
        """Ends recording for good and reports it once; training continues."""
        if not self._stop_once.acquire(blocking=False):
            return
        self.stopped = reason
        self._warn_once("stop", f"recording stopped, training continues: {reason}")
        with contextlib.suppress(OSError):
            self._journal.stop(reason)

    def _journal_and_snapshot(self, header: RecordHeader, fields: Mapping[str, Any]) -> threading.Event | None:
        if self._closed:
            return None
        ids = tuple(itertools.islice(self._ids, header.records))
        try:
            self._journal.intent(ids, header.key, header.rows)
            return self._snapshot_or_drop(ids, header, fields)
        except OSError as error:
            self.stop(f"the journal cannot be written: {error}")
            return None

    def _snapshot_or_drop(
        self, ids: tuple[int, ...], header: RecordHeader, fields: Mapping[str, Any]
    ) -> threading.Event | None:
        """Passes a snapshot on, or notes why there is none. Returns what to wait for if the caller must wait."""
        try:
            return self._snapshot(ids, header, fields)
        except NoRoom as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - the hook inside the user's training loop, which must never kill it
            reason = f"{type(error).__name__}: {error}"
            self._warn_once(f"{header.key.kind}: {reason}", f"cannot record {header.key}: {reason}")
        self._journal.drop(ids, reason)
        return None

    def _snapshot(
        self, ids: tuple[int, ...], header: RecordHeader, fields: Mapping[str, Any]
    ) -> threading.Event | None:
        try:
            self._pass_on(ids, header, fields, ArenaMemory(self._arena, self._on_full))
        except TooLarge as error:
            if self._settings.when_full == "drop":
                raise NoRoom(str(error)) from error
            # Memory stays bounded because the caller waits for this one, as the policy says.
            written = threading.Event()
            self._pass_on(ids, header, fields, HeapMemory(), written)
            return written
        return None

    def _pass_on(
        self,
        ids: tuple[int, ...],
        header: RecordHeader,
        fields: Mapping[str, Any],
        memory: SnapshotMemory,
        written: threading.Event | None = None,
    ) -> None:
        snapshot = Snapshot(header.key.kind, memory, self._devices)
        try:
            for name, value in fields.items():
                snapshot.add(name, value)
            snapshot.seal()
        except BaseException:
            memory.release()
            raise
        self._pipeline.submit(QueuedRecord(ids, header, snapshot, written))

    def _on_full(self) -> None:
        if self.stopped is not None:
            raise NoRoom("the recorder has stopped")
        self._pipeline.write_gathered()
        if self._settings.when_full == "drop":
            raise NoRoom(f"the buffer of {self._settings.buffer_bytes} bytes is full")

    def _wait_for(self, written: threading.Event) -> None:
        self._pipeline.write_gathered()
        while not written.wait(_LOOK_AGAIN_S):
            if self.stopped is not None:
                return
