"""What a recorder leaves on disk: names, parts, journal, filters, retention and budget."""

import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rldbg
from rldbg.core import Identity, SampleId
from rldbg.recording import WATCH_FOLDER, Recorder, RecorderSettings, note_judged
from rldbg.recording.recorder import whole_file
from rldbg.recording.recorder.file_writer import FileWriter
from rldbg.recording.recorder.pipeline import Pipeline

SAMPLES = [("g0", 0), ("g0", 1)]
ROWS = np.zeros((2, 3), dtype=np.float32)
FORWARD = {"samples": SAMPLES, "log_probs": ROWS, "entropy": ROWS, "response_mask": ROWS}


def files(folder: Path) -> list[str]:
    return sorted(
        str(path.relative_to(folder)) for path in folder.glob("*/*") if path.is_file() and path.parent.name != "journal"
    )


def journal(folder: Path) -> list[dict]:
    return [json.loads(line) for path in (folder / "journal").iterdir() for line in path.read_text().splitlines()]


def findings(folder: Path) -> set[str]:
    return {finding.id for finding in rldbg.open(folder).verify()}


def test_micro_batches_of_a_rank_share_a_file(tmp_path: Path) -> None:
    with Recorder(tmp_path, identity=Identity(role="policy", rank=3, coordinates={"dp": 1, "tp": 1})) as recorder:
        for micro in range(4):
            recorder.record("forward_data", step=7, micro=micro, policy_version=5, **FORWARD)
    assert files(tmp_path) == ["forward_data/step_000007_rank3.safetensors"]
    records = list(rldbg.open(tmp_path).records())
    assert [record.key.micro for record in records] == [0, 1, 2, 3]
    assert {(record.role, record.policy_version, record.coordinates["dp"]) for record in records} == {("policy", 5, 1)}
    assert records[0].samples == (SampleId("g0", 0), SampleId("g0", 1))
    assert findings(tmp_path) == set()


@pytest.mark.parametrize(("format", "micro"), [("safetensors", ""), ("pt", "_micro0"), ("jsonl", "_micro0")])
def test_names_say_what_the_files_hold(tmp_path: Path, format: str, micro: str) -> None:
    with Recorder(tmp_path, format=format) as recorder:
        recorder.record("forward_data", step=1, micro=0, **FORWARD)
        recorder.record("forward_data", step=1, micro=0, epoch=1, mini_batch=2, **FORWARD)
        recorder.record("old_log_probs", step=1, samples=SAMPLES, old_log_probs=ROWS)
        recorder.record("mine", step=1, x=1)
    assert files(tmp_path) == [
        f"forward_data/step_000001_epoch1_mini2_rank0{micro}.{format}",
        f"forward_data/step_000001_rank0{micro}.{format}",
        f"mine/step_000001_rank0.{format}",
        f"old_log_probs/step_000001.{format}",
    ]
    assert findings(tmp_path) == set()


def test_a_rank_other_than_the_first_does_not_take_the_steps_only_name(tmp_path: Path) -> None:
    for rank in range(2):
        with Recorder(tmp_path, identity=Identity(rank=rank)) as recorder:
            recorder.record("old_log_probs", step=0, samples=SAMPLES, old_log_probs=ROWS)
    assert files(tmp_path) == ["old_log_probs/step_000000.safetensors", "old_log_probs/step_000000_rank1.safetensors"]


def test_nothing_overwrites(tmp_path: Path) -> None:
    for run in range(3):
        with Recorder(tmp_path) as recorder:
            recorder.record("mine", step=0, run=run)
    assert files(tmp_path) == [f"mine/step_000000_rank0{part}.safetensors" for part in ("", "_part1", "_part2")]
    assert sorted(record.fields["run"] for record in rldbg.open(tmp_path).records()) == [0, 1, 2]


def test_a_step_that_goes_on_after_its_file_gets_a_part(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.record("forward_data", step=0, micro=0, **FORWARD)
        recorder.end_step(0)
        recorder.record("forward_data", step=0, micro=1, **FORWARD)
    assert files(tmp_path) == [f"forward_data/step_000000_rank0{part}.safetensors" for part in ("", "_part1")]
    assert findings(tmp_path) == set()


def test_parts_of_one_file_are_written_at_once(tmp_path: Path) -> None:
    with Recorder(tmp_path, threads=4) as recorder:
        for micro in range(8):
            recorder.record("mine", step=0, micro=micro, x=np.full(2**18, micro))
            recorder.end_step(0)
    found = {record.key.micro: record.array("x") for record in rldbg.open(tmp_path).records()}
    assert len(found) == 8
    assert all((values == micro).all() for micro, values in found.items())
    assert findings(tmp_path) == set()


def test_waiting_for_the_rest_of_a_step_has_an_end(tmp_path: Path) -> None:
    with Recorder(tmp_path, gather_s=0.0) as recorder:
        recorder.record("forward_data", step=0, micro=0, **FORWARD)
        file = tmp_path / "forward_data" / "step_000000_rank0.safetensors"
        assert wait_until(file.exists)


def test_the_journal_tells_the_story(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.record("forward_data", step=0, micro=0, **FORWARD)
        assert [line["event"] for line in journal(tmp_path)] == ["open", "intent"], (
            "intent comes before record() returns"
        )
        recorder.record("forward_data", step=0, micro=1, **FORWARD)
    lines = journal(tmp_path)
    assert [line["event"] for line in lines] == ["open", "intent", "intent", "done", "close"]
    assert lines[1] == {"event": "intent", "id": 0, "key": ["forward_data", 0, 0, 0, 0, 0], "rows": 2}
    assert lines[3]["ids"] == [0, 1]
    assert lines[3]["size"] == (tmp_path / lines[3]["file"]).stat().st_size


def test_filters(tmp_path: Path) -> None:
    with Recorder(tmp_path, kinds=["loss"], every_n_steps=2) as recorder:
        assert recorder.wants("loss", 0)
        assert not recorder.wants("loss", 1)
        assert not recorder.wants("forward_data", 0)
        for step in range(4):
            recorder.record("loss", step=step, micro=0, samples=SAMPLES, loss=0.5)
            recorder.record("forward_data", step=step, micro=0, **FORWARD)
    assert files(tmp_path) == ["loss/step_000000_rank0.safetensors", "loss/step_000002_rank0.safetensors"]


def test_a_recorder_that_is_off_touches_nothing(tmp_path: Path) -> None:
    for off in ({"enabled": False}, {"ranks": [1]}, {"roles": ["critic"]}):
        with Recorder(tmp_path / "dump", **off) as recorder:
            assert not recorder.wants("loss", 0)
            recorder.record("loss", step=0, loss=0.5)
            assert recorder.flush()
    assert not (tmp_path / "dump").exists()


def test_only_the_rows_of_the_samples_asked_for(tmp_path: Path) -> None:
    with Recorder(tmp_path, samples=["g1/0"]) as recorder:
        recorder.record("old_log_probs", step=0, samples=[("g0", 0), ("g1", 0)], old_log_probs=np.array([[1.0], [2.0]]))
        recorder.record("old_log_probs", step=1, samples=[("g0", 0)], old_log_probs=np.array([[1.0]]))
        recorder.record(
            "trajectory",
            step=0,
            group_id=["g1", "g2"],
            run_id=[0, 0],
            tokens=[[1, 2], [3]],
            loss_mask=[[0, 1], [1]],
            reward=[1.0, 2.0],
        )
    records = {record.key.kind: record for record in rldbg.open(tmp_path).records()}
    assert set(records) == {"old_log_probs", "trajectory"}
    assert records["old_log_probs"].samples == (SampleId("g1", 0),)
    assert records["old_log_probs"].array("old_log_probs").tolist() == [[2.0]]
    assert [row.tolist() for row in records["trajectory"].rows("tokens")] == [[1, 2]]
    assert records["trajectory"].array("reward").tolist() == [1.0]


def test_retention_keeps_the_newest_and_the_pinned(tmp_path: Path) -> None:
    with Recorder(tmp_path, keep_last=2, pinned_steps=[1]) as recorder:
        for step in range(6):
            recorder.record("mine", step=step, x=step)
            if step == 3:
                recorder.flush()
                recorder.pin(3)
    assert [name[10:16] for name in files(tmp_path)] == ["000001", "000003", "000004", "000005"]
    assert [line["file"][10:16] for line in journal(tmp_path) if line["event"] == "delete"] == ["000000", "000002"]


def test_steps_that_the_tripwire_has_not_judged_stay_for_a_while(tmp_path: Path) -> None:
    (tmp_path / WATCH_FOLDER).mkdir()
    kept = []
    with Recorder(tmp_path, keep_last=1) as recorder:
        for step in range(12):
            if step == 4:
                note_judged(tmp_path, 2)
            recorder.record("mine", step=step, x=step)
            recorder.flush()
            kept.append([int(name[10:16]) for name in files(tmp_path) if name.startswith("mine")])
    # None is judged at first, then those up to 2; at most eight times as many as asked for stay.
    assert kept[3] == [0, 1, 2, 3] and kept[4] == [3, 4] and kept[-1] == [*range(4, 12)]


def test_a_budget_stops_the_recording_before_it_is_exceeded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Recorder(tmp_path, budget_bytes=20_000) as recorder:
        for step in range(5):
            recorder.record("mine", step=step, x=np.zeros(1000))
            recorder.flush()
        assert recorder.stopped is not None
        assert not recorder.wants("mine", 9)
    assert sum((tmp_path / name).stat().st_size for name in files(tmp_path)) <= 20_000
    assert len(files(tmp_path)) == 2
    assert caplog.text.count("recording stopped") == 1
    assert "stop" in {line["event"] for line in journal(tmp_path)}


def test_a_full_buffer_drops_and_counts_what_it_drops(tmp_path: Path) -> None:
    with Recorder(tmp_path, buffer_bytes=2**20, when_full="drop") as recorder:
        for step in range(30):
            recorder.record("mine", step=step, x=np.zeros(60_000))
    lines = journal(tmp_path)
    dropped = [line for line in lines if line["event"] == "drop"]
    assert dropped and all("full" in line["reason"] for line in dropped)
    assert len(files(tmp_path)) + len(dropped) == 30


def test_a_full_buffer_blocks_and_loses_nothing(tmp_path: Path) -> None:
    with Recorder(tmp_path, buffer_bytes=2**20) as recorder:
        for step in range(30):
            recorder.record("mine", step=step, micro=0, x=np.full(60_000, step))
    assert sorted(int(record.array("x")[0]) for record in rldbg.open(tmp_path).records()) == list(range(30))


@pytest.mark.parametrize("policy", ["block", "drop"])
def test_a_record_larger_than_the_buffer(tmp_path: Path, policy: str) -> None:
    with Recorder(tmp_path, buffer_bytes=2**20, when_full=policy) as recorder:
        recorder.record("mine", step=0, micro=0, x=np.arange(10))
        recorder.record("mine", step=0, micro=1, x=np.arange(1_000_000))
    kept = [record.array("x").size for record in rldbg.open(tmp_path).records()]
    assert kept == ([10, 1_000_000] if policy == "block" else [10])
    assert ("drop" in {line["event"] for line in journal(tmp_path)}) == (policy == "drop")


def test_many_threads_record_at_once(tmp_path: Path) -> None:
    with Recorder(tmp_path, buffer_bytes=2**20) as recorder:

        def work(number: int) -> None:
            for step in range(20):
                recorder.record(f"kind{number}", step=step, x=np.full(5_000, number * 1000 + step))

        with ThreadPoolExecutor() as pool:
            list(pool.map(work, range(4)))
    found = {record.key[:2]: record.array("x") for record in rldbg.open(tmp_path).records()}
    assert len(found) == 80
    assert all((values == int(kind[4:]) * 1000 + step).all() for (kind, step), values in found.items())


def test_a_record_that_is_not_as_declared_is_kept_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Recorder(tmp_path) as recorder:
        for micro in range(3):
            recorder.record("forward_data", step=0, micro=micro, samples=SAMPLES, log_probs=np.zeros((3, 2)))
    assert len(list(rldbg.open(tmp_path).records())) == 3
    assert caplog.text.count("response_mask is missing") == 1
    assert caplog.text.count("has 3 rows, the record has 2 samples") == 1


def test_what_cannot_be_recorded_is_a_drop_and_the_rest_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Hostile:
        def __str__(self) -> str:
            raise RuntimeError("no")

    endless: list = []
    endless.append(endless)
    with Recorder(tmp_path) as recorder:
        recorder.record("mine", step=0, x=Hostile())
        recorder.record("mine", step=1, x=endless)
        recorder.record("no/such/kind", step=2, x=1)
        recorder.record("mine", step=2, samples=["no sample id"], x=1)
        recorder.record("mine", step=3, x=1)
        assert recorder.stopped is None
    assert files(tmp_path) == ["mine/step_000003_rank0.safetensors"]
    assert [line["event"] for line in journal(tmp_path)].count("drop") == 4


def test_recording_after_the_end_is_ignored(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.record("mine", step=0, x=1)
    assert recorder.close()
    recorder.record("mine", step=1, x=1)
    recorder.end_step(1)
    assert recorder.close()
    assert files(tmp_path) == ["mine/step_000000_rank0.safetensors"]


def test_a_place_that_cannot_be_written_is_said_once_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    with caplog.at_level(logging.WARNING), Recorder(tmp_path / "file" / "dump") as recorder:
        for step in range(3):
            recorder.record("mine", step=step, x=1)
        assert recorder.stopped
    assert len(caplog.records) == 1


def test_a_deleted_folder_stops_the_recording_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "dump"
    with Recorder(folder) as recorder:
        recorder.record("mine", step=0, x=1)
        recorder.flush()
        folder.rename(tmp_path / "moved")
        for step in range(1, 4):
            recorder.record("mine", step=step, x=np.zeros(100_000))
            recorder.flush()
        assert recorder.stopped
    assert not folder.exists()
    assert caplog.text.count("recording stopped") == 1
    assert journal(tmp_path / "moved")[-1]["event"] == "close"


def wait_until(condition, seconds: float = 10.0) -> bool:
    """Waits for something another thread does."""
    wake = threading.Event()
    for _ in range(int(seconds / 0.01)):
        if condition():
            return True
        wake.wait(0.01)
    return False


@pytest.mark.parametrize("values", [8, 2**20])
def test_an_error_nobody_thought_of_stops_the_recording_and_answers_who_waits(
    tmp_path: Path, values: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("unheard of")

    monkeypatch.setattr(FileWriter, "file", fail)
    with Recorder(tmp_path) as recorder:
        recorder.record("mine", step=0, x=np.zeros(values))
        recorder.record("mine", step=0, micro=1, x=np.zeros(values))
        assert recorder.flush(timeout_s=60)
        assert recorder.stopped == "RuntimeError: unheard of"


def test_what_has_to_be_flushed_in_time_is_written_smallest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_write = threading.Event(), threading.Event()
    write = whole_file.write

    def write_later(*arguments: Any) -> tuple[int, int]:
        begun.set()
        assert may_write.wait(60)
        return write(*arguments)

    monkeypatch.setattr(whole_file, "write", write_later)
    with Recorder(tmp_path, threads=1) as recorder:
        recorder.record("first", step=0, x=np.zeros(2**16))
        recorder.end_step(0)
        assert begun.wait(60)
        for kind, values in (("large", 2**20), ("middle", 2**18), ("small", 2**16)):
            recorder.record(kind, step=0, x=np.zeros(values))
        assert not recorder.flush(timeout_s=0.5)
        may_write.set()
    done = [line["file"].partition("/")[0] for line in journal(tmp_path) if line["event"] == "done"]
    assert done == ["first", "small", "middle", "large"]


def test_the_end_of_a_process_fits_into_the_grace_of_slurm_and_kubernetes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert RecorderSettings(tmp_path).exit_flush_s <= 20
    waits: list[float | None] = []
    monkeypatch.setattr(Pipeline, "flush", lambda _, timeout_s: waits.append(timeout_s) is not None)
    recorder = Recorder(tmp_path, exit_flush_s=0.4)
    writer = recorder._writer
    assert writer is not None
    with writer._turn:  # another thread is inside record()
        leaving = threading.Thread(target=recorder._finish)
        leaving.start()
        leaving.join()
    assert waits == [0.0], "the wait for the other thread counts as well"


def test_sigterm_and_the_exit_that_follows_share_their_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    waits: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("rldbg.recording.recorder.recorder.time", clock)

    def flush(_: Recorder, timeout_s: float) -> bool:
        waits.append(timeout_s)
        now[0] += timeout_s - 2
        return True

    monkeypatch.setattr(Recorder, "flush", flush)
    monkeypatch.setattr(Recorder, "close", flush)
    recorder = Recorder(tmp_path, exit_flush_s=15)
    recorder._flush_for_signal()
    recorder._finish()
    assert waits == [15, 2]
    now[0] += 3600
    recorder._finish()
    assert waits == [15, 2, 15], "a process that outlived SIGTERM has its whole time at the end"
