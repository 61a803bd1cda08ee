"""The threads behind a recorder: one puts records together, some write files.

Everything between them and the training thread is a SimpleQueue, whose put() is safe even inside a signal handler.
All bookkeeping belongs to the one dispatching thread, so there is no lock a training thread could hold or wait for.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import NamedTuple

from rldbg.recording.journal import JournalWriter
from rldbg.recording.recorder import schema
from rldbg.recording.recorder.batcher import Batcher, FileBatch, QueuedRecord
from rldbg.recording.recorder.file_writer import FileWriter, OverBudget
from rldbg.recording.recorder.warn_once import WarnOnce

# Files smaller than this are passed on several at once, or written by the dispatching thread itself when there are few:
# passing one on would cost more than it saves.
_SMALL_BYTES = 256 * 2**10
_SMALL_TOGETHER = 16
# Records wait until the step has ended, a flush is requested, or one of these limits of size and time is reached: until
# then the trainer has the GIL to itself, and right after a step it sends its weights.
_WAIT_S = 0.5
_AFTER_STEP_S = 0.05
_AT_ONCE_S = 0.0
_WAIT_BYTES = 16 * 2**20
_BURST_S = 0.001


class _EndStep(NamedTuple):
    step: int


class _Flush(NamedTuple):
    reached: threading.Event
    smallest_first: bool


class _Finished(NamedTuple):
    batches: list[FileBatch]


class _WriteGathered(NamedTuple):
    """The buffer is full: write what is gathered."""


class _Close(NamedTuple):
    """Nothing comes after this."""


_Message = QueuedRecord | _EndStep | _Flush | _Finished | _WriteGathered | _Close


class _WriterTask(NamedTuple):
    """Work for a writer thread."""

    run: Callable[[], None]
    nbytes: int = 0


class Pipeline:
    """Turns records into files. `stop` is called with the reason when nothing more can be written."""

    def __init__(
        self,
        *,
        file_writer: FileWriter,
        journal: JournalWriter,
        batcher: Batcher,
        warn_once: WarnOnce,
        threads: int,
        stop: Callable[[str], None],
        is_stopped: Callable[[], bool],
    ) -> None:
        self._file_writer = file_writer
        self._journal = journal
        self._batcher = batcher
        self._warn_once = warn_once
        self._stop = stop
        self._is_stopped = is_stopped
        self._inbox: SimpleQueue[_Message] = SimpleQueue()
        self._deadlines_s: SimpleQueue[float] = SimpleQueue()  # the seconds that are left
        self._bytes_handed = 0  # counted by those who hand over, one at a time
        self._bytes_seen = 0
        self._jobs: SimpleQueue[_WriterTask | None] = SimpleQueue()
        self._backlog: deque[_Message] = deque()
        self._small: list[FileBatch] = []
        self._unfinished: set[FileBatch] = set()
        self._flushes: list[tuple[set[FileBatch], threading.Event]] = []
        self._threads = [threading.Thread(target=self._dispatch, name="rldbg-dispatch", daemon=True)]
        self._threads += [
            threading.Thread(target=self._write, name=f"rldbg-write-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, record: QueuedRecord) -> None:
        """One thread at a time."""
        self._inbox.put(record)
        self._bytes_handed += record.snapshot.memory.size
        if self._bytes_handed - self._bytes_seen > _WAIT_BYTES:
            self._deadlines_s.put(_AT_ONCE_S)

    def end_step(self, step: int) -> None:
        self._post(_EndStep(step), within_s=_AFTER_STEP_S)

    def write_gathered(self) -> None:
        self._post(_WriteGathered())

    def _post(self, message: _Message, within_s: float = _AT_ONCE_S) -> None:
        self._inbox.put(message)
        self._deadlines_s.put(within_s)

    def flush(self, timeout_s: float | None) -> bool:
        """Waits until everything handed over so far is written or given up; False when that took too long.

        With a timeout the smallest files come first: as many records as possible are complete when time is up.
        """
        flush = _Flush(threading.Event(), smallest_first=timeout_s is not None)
        self._post(flush)
        return flush.reached.wait(timeout_s)

    def close(self) -> None:
        """Lets the threads end; call flush first."""
        self._post(_Close())

    def _dispatch(self) -> None:
        while True:
            try:
                if not self._step():
                    return
            except Exception as error:  # noqa: BLE001 - inside the user's training process, which must go on
                self._stop(f"{type(error).__name__}: {error}")

    def _step(self) -> bool:
        """Handles one message or deadline; False after the last message."""
        message = self._next()
        match message:
            case None:
                self._send(self._batcher.overdue(time.monotonic()))
            case QueuedRecord():
                self._receive(message)
            case _EndStep(step):
                self._send(self._batcher.end_step(step))
            case _WriteGathered():
                self._send(self._batcher.close_all())
            case _Flush(reached, smallest_first):
                try:
                    self._send(self._batcher.close_all())
                    if smallest_first:
                        self._sort_jobs()
                    self._file_small()
                finally:  # a waiting caller always gets an answer
                    self._flushes.append((set(self._unfinished), reached))
                    self._answer_flushes()
            case _Finished(batches):
                self._unfinished.difference_update(batches)
                for waiting, _ in self._flushes:
                    waiting.difference_update(batches)
                self._answer_flushes()
            case _Close():
                self._file_small()
                for _ in self._threads[1:]:
                    self._jobs.put(None)
                return False
        if not self._backlog:
            self._file_small()
        return True

    def _next(self) -> _Message | None:
        """The next message in order, or None when a gathered batch is overdue.

        Messages in the inbox are inspected early, so that copies from devices are queued without gaps.
        """
        if not self._backlog:
            deadline = self._batcher.deadline()
            timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                self._backlog.append(self._inbox.get(timeout=timeout))
            except Empty:
                return None
            self._wait_for_more()
            while not self._inbox.empty():
                self._backlog.append(self._inbox.get())
            for message in self._backlog:
                if isinstance(message, QueuedRecord):
                    message.snapshot.begin_copies()
        return self._backlog.popleft()

    def _wait_for_more(self) -> None:
        if isinstance(self._backlog[0], QueuedRecord):
            deadline = time.monotonic() + _WAIT_S
            with contextlib.suppress(Empty):
                while (left_s := deadline - time.monotonic()) > 0:
                    within_s = self._deadlines_s.get(timeout=left_s)
                    deadline = min(deadline, time.monotonic() + within_s)
            time.sleep(_BURST_S)
        self._bytes_seen = self._bytes_handed
        while not self._deadlines_s.empty():
            self._deadlines_s.get()

    def _receive(self, record: QueuedRecord) -> None:
        try:
            record.snapshot.finish_copies()
        except Exception as error:  # noqa: BLE001 - a device error belongs to the trainer, which sees it itself
            self._drop([record], f"{type(error).__name__}: {error}")
            return
        if record.header.unfold is None:
            self._warn_about(record)
        self._send(self._batcher.add(record, time.monotonic()))

    def _warn_about(self, record: QueuedRecord) -> None:
        key, samples = record.header.key, record.header.samples
        for problem in schema.problems(key.kind, record.snapshot.fields, len(samples)):
            self._warn_once(problem, f"{problem} (step {key.step}); recorded unchanged")

    def _send(self, batches: list[FileBatch]) -> None:
        for batch in batches:
            if sum(record.snapshot.memory.size for record in batch.records) < _SMALL_BYTES:
                self._small.append(batch)
            else:
                self._pass_on([batch])
            if len(self._small) == _SMALL_TOGETHER:
                self._pass_on(self._small)
                self._small = []

    def _pass_on(self, batches: list[FileBatch]) -> None:
        self._unfinished.update(batches)
        nbytes = sum(record.snapshot.memory.size for batch in batches for record in batch.records)
        self._jobs.put(_WriterTask(partial(self._file_and_report, batches), nbytes))

    def _sort_jobs(self) -> None:
        """Puts the jobs that no writer has begun into the order of their size."""
        waiting: list[_WriterTask] = []
        with contextlib.suppress(Empty):
            while (job := self._jobs.get_nowait()) is not None:
                waiting.append(job)
        for job in sorted(waiting, key=lambda job: job.nbytes):
            self._jobs.put(job)

    def _file_small(self) -> None:
        """Writes files that are too small to pass on to a writer thread, before waiting for anything."""
        batches, self._small = self._small, []
        for batch in batches:
            self._file(batch)

    def _answer_flushes(self) -> None:
        for waiting, reached in self._flushes:
            if not waiting:
                reached.set()
        self._flushes = [flush for flush in self._flushes if flush[0]]

    def _write(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job.run()
            except Exception as error:  # noqa: BLE001 - inside the user's training process, which must go on
                self._stop(f"{type(error).__name__}: {error}")

    def _file_and_report(self, batches: list[FileBatch]) -> None:
        try:
            for batch in batches:
                self._file(batch)
        finally:
            self._inbox.put(_Finished(batches))

    def _file(self, batch: FileBatch) -> None:
        try:
            if not self._is_stopped():
                self._write_file(batch)
        except (OSError, OverBudget) as error:
            self._stop(str(error))
        except Exception as error:  # noqa: BLE001 - inside the user's training process, which must go on
            self._stop(f"{type(error).__name__}: {error}")
        finally:
            for record in batch.records:
                _release(record)

    def _write_file(self, batch: FileBatch) -> None:
        try:
            buffers = self._file_writer.encode(batch)
        except Exception as error:  # noqa: BLE001 - whatever a user's data does to an encoder, training must go on
            self._drop(batch.records, f"{type(error).__name__}: {error}")
            return
        self._file_writer.file(batch, buffers, lambda help: self._jobs.put(_WriterTask(help)))

    def _drop(self, records: list[QueuedRecord], reason: str) -> None:
        key = records[0].header.key
        self._warn_once(f"{key.kind}: {reason}", f"cannot record {key}: {reason}")
        for record in records:
            _release(record)
        try:
            self._journal.drop([id for record in records for id in record.ids], reason)
        except OSError as error:
            self._stop(str(error))


def _release(record: QueuedRecord) -> None:
    record.snapshot.memory.release()
    record.snapshot.fields = {}
    if record.written is not None:
        record.written.set()
