"""Which records share a file and when it is due: decided without threads, clocks or disks."""

import numpy as np

from rldbg.recording.kinds import Scope
from rldbg.recording.recorder.arena import Arena
from rldbg.recording.recorder.batcher import Batcher, FileBatch, QueuedRecord
from rldbg.recording.recorder.device import Devices
from rldbg.recording.recorder.memory import HeapMemory
from rldbg.recording.recorder.record_header import RecordHeader
from rldbg.recording.recorder.snapshot import Snapshot
from rldbg.recording.records import RecordKey

DEVICES = Devices(Arena(4096), 0)


def handed(number: int, kind: str = "loss", step: int = 0, **about) -> QueuedRecord:
    snapshot = Snapshot("mine", HeapMemory(), DEVICES)
    snapshot.add("values", about.pop("values", np.zeros(4, dtype=np.float32)))
    key = RecordKey(kind, step, 0, number, about.pop("epoch", 0), about.pop("mini_batch", 0))
    return QueuedRecord((number,), RecordHeader(key, Scope.MICRO, 0, **({"alone": False} | about)), snapshot)


def ids(batches: list[FileBatch]) -> list[list[int]]:
    return [[id for record in batch.records for id in record.ids] for batch in batches]


def batcher(most_bytes: int = 10**9) -> Batcher:
    return Batcher(wait_s=10, most_bytes=most_bytes)


def test_a_record_alone_in_its_file_is_due_at_once() -> None:
    assert ids(batcher().add(handed(0, alone=True), 0)) == [[0]]


def test_micro_batches_wait_for_the_end_of_their_step() -> None:
    open_batches = batcher()
    assert [open_batches.add(handed(number), 0) for number in range(3)] == [[], [], []]
    assert ids(open_batches.end_step(0)) == [[0, 1, 2]]
    assert open_batches.close_all() == []


def test_ending_a_step_leaves_later_steps_open() -> None:
    open_batches = batcher()
    open_batches.add(handed(0, "loss", 0), 0)
    open_batches.add(handed(1, "forward_data", 1), 0)
    assert ids(open_batches.end_step(0)) == [[0]]
    assert ids(open_batches.close_all()) == [[1]]


def test_a_later_step_of_the_same_kind_ends_the_earlier_one() -> None:
    open_batches = batcher()
    open_batches.add(handed(0, "loss", 0), 0)
    open_batches.add(handed(1, "forward_data", 0), 0)
    assert ids(open_batches.add(handed(2, "loss", 1), 0)) == [[0]]


def test_epochs_and_mini_batches_have_files_of_their_own() -> None:
    open_batches = batcher()
    open_batches.add(handed(0), 0)
    open_batches.add(handed(1, epoch=1), 0)
    open_batches.add(handed(2, mini_batch=1), 0)
    assert sorted(ids(open_batches.close_all())) == [[0], [1], [2]]


def test_waiting_has_a_limit_counted_from_the_first_record() -> None:
    open_batches = batcher()
    assert open_batches.deadline() is None
    open_batches.add(handed(0), 5)
    open_batches.add(handed(1), 9)
    assert open_batches.deadline() == 15
    assert open_batches.overdue(14.9) == []
    assert ids(open_batches.overdue(15)) == [[0, 1]]
    assert open_batches.deadline() is None


def test_too_many_bytes_are_due_at_once() -> None:
    open_batches = batcher(most_bytes=3 * handed(0).snapshot.memory.size - 1)
    assert open_batches.add(handed(0), 0) == []
    assert open_batches.add(handed(1), 0) == []
    assert ids(open_batches.add(handed(2), 0)) == [[0, 1, 2]]


def test_a_field_of_another_dtype_begins_another_file() -> None:
    open_batches = batcher()
    open_batches.add(handed(0), 0)
    assert ids(open_batches.add(handed(1, values=np.zeros(4)), 0)) == [[0]]
    assert ids(open_batches.add(handed(2, values="text"), 0)) == [[1]]


def test_what_the_header_says_once_is_one_for_the_file() -> None:
    open_batches = batcher()
    open_batches.add(handed(0, policy_version=3), 0)
    assert ids(open_batches.add(handed(1, policy_version=4), 0)) == [[0]]


def test_the_last_record_closes_its_file() -> None:
    open_batches = batcher()
    open_batches.add(handed(0), 0)
    assert ids(open_batches.add(handed(1, last=True), 0)) == [[0, 1]]
