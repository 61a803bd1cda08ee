"""All that a recorder has in one process: its memory, journal and threads. A fork needs a session of its own."""

import contextlib
import itertools
import os
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from rldbg.core import Identity
from rldbg.recording.recorder.arena import Arena
from rldbg.recording.recorder.complaints import Complaints
from rldbg.recording.recorder.device import Devices
from rldbg.recording.recorder.filing import Filing
from rldbg.recording.recorder.gathering import Gathering, Handed
from rldbg.recording.recorder.journal import Journal
from rldbg.recording.recorder.memory import ArenaMemory, HeapMemory, Memory, NoRoom, TooLarge
from rldbg.recording.recorder.pipeline import Pipeline
from rldbg.recording.recorder.retention import Retention
from rldbg.recording.recorder.schema import shape_of
from rldbg.recording.recorder.settings import RecorderSettings
from rldbg.recording.recorder.snapshot import Snapshot
from rldbg.recording.recorder.ticket import Ticket

_LOOK_AGAIN_S = 1.0


class Session:
    """Takes snapshots in the caller's thread and passes them on. Raises OSError only when it cannot be opened."""

    def __init__(self, settings: RecorderSettings, identity: Identity, complaints: Complaints) -> None:
        self.process = os.getpid()
        self.stopped: str | None = None
        self._settings = settings
        self._complaints = complaints
        self._stop_once = threading.Lock()
        self._turn = threading.Lock()
        self._turn_of: int | None = None
        self._ids = itertools.count()
        self._journal = Journal(settings.directory, identity, settings.format)
        self._arena = Arena(settings.buffer_bytes, settings.warm_bytes)
        self._devices = Devices(self._arena, settings.device_buffer_bytes)
        self._retention = Retention(settings.budget_bytes, settings.keep_last, settings.pinned_steps)
        self._pipeline = Pipeline(
            filing=Filing(settings.directory, settings.format, identity, self._journal, self._retention),
            journal=self._journal,
            gathering=Gathering(settings.gather_s, settings.buffer_bytes // 2),
            complaints=complaints,
            threads=settings.threads,
            stop=self.stop,
            is_stopped=lambda: self.stopped is not None,
        )

    def hand_over(self, ticket: Ticket, fields: Mapping[str, Any]) -> None:
        """Notes the record in the journal, copies its fields and returns; a record that cannot be kept is a drop."""
        number = next(self._ids)
        try:
            self._journal.intent(number, ticket.key, ticket.rows)
        except OSError as error:
            self.stop(f"the journal cannot be written: {error}")
            return
        try:
            with self._my_turn():
                handed = self._snapshot(number, ticket, fields)
            if handed.written is not None:
                self._wait_for(handed.written)
        except NoRoom as error:
            self._drop(number, str(error))
        except Exception as error:  # noqa: BLE001 - the hook inside the user's training loop, which must never kill it
            reason = f"{type(error).__name__}: {error}"
            self._complaints.once(f"{ticket.key.kind}: {reason}", f"cannot record {ticket.key}: {reason}")
            self._drop(number, reason)

    def end_step(self, step: int) -> None:
        self._pipeline.end_step(step)

    def pin(self, step: int) -> None:
        self._retention.pin(step)

    def flush(self, timeout_s: float | None) -> bool:
        return self._pipeline.flush(timeout_s)

    def close(self, timeout_s: float | None) -> bool:
        """Writes what is left, then the journal's last line; without it the recording counts as unfinished."""
        finished = self._pipeline.flush(timeout_s)
        self._pipeline.close()
        if finished:
            self._devices.close()
            with contextlib.suppress(OSError):
                self._journal.close()
        return finished

    def stop(self, reason: str) -> None:
        """Ends recording for good and says so once; training goes on."""
        if not self._stop_once.acquire(blocking=False):
            return
        self.stopped = reason
        self._complaints.once("stop", f"recording stopped, training goes on: {reason}")
        with contextlib.suppress(OSError):
            self._journal.stop(reason)

    def _snapshot(self, number: int, ticket: Ticket, fields: Mapping[str, Any]) -> Handed:
        try:
            return self._pass_on(number, ticket, fields, ArenaMemory(self._arena, self._on_full))
        except TooLarge as error:
            if self._settings.when_full == "drop":
                raise NoRoom(str(error)) from error
            # Memory stays bounded because the caller waits for this one, as the policy says.
            return self._pass_on(number, ticket, fields, HeapMemory(), written=threading.Event())

    def _pass_on(
        self,
        number: int,
        ticket: Ticket,
        fields: Mapping[str, Any],
        memory: Memory,
        written: threading.Event | None = None,
    ) -> Handed:
        snapshot = Snapshot(memory, self._devices)
        try:
            for name, value in fields.items():
                snapshot.add(name, value, shape_of(ticket.key.kind, name))
            snapshot.seal()
        except BaseException:
            memory.release()
            raise
        handed = Handed(number, ticket, snapshot, written)
        self._pipeline.hand_over(handed)
        return handed

    def _on_full(self) -> None:
        if self.stopped is not None:
            raise NoRoom("the recorder has stopped")
        self._pipeline.relieve()
        if self._settings.when_full == "drop":
            raise NoRoom(f"the buffer of {self._settings.buffer_bytes} bytes is full")

    @contextlib.contextmanager
    def _my_turn(self) -> Iterator[None]:
        """One thread at a time takes memory: two that hold half of it each could wait for each other forever."""
        me = threading.get_ident()
        if self._turn_of == me:
            raise NoRoom("recorded by a signal handler in the middle of another record")
        with self._turn:
            self._turn_of = me
            try:
                yield
            finally:
                self._turn_of = None

    def _wait_for(self, written: threading.Event) -> None:
        self._pipeline.relieve()
        while not written.wait(_LOOK_AGAIN_S):
            if self.stopped is not None:
                return

    def _drop(self, number: int, reason: str) -> None:
        try:
            self._journal.drop([number], reason)
        except OSError as error:
            self.stop(f"the journal cannot be written: {error}")
