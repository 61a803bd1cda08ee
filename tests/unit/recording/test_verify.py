"""verify tells apart what is missing, truncated, corrupt, never written, dropped, deleted and unfinished."""

import json
import os
import pickle
import shutil
import subprocess
import sys
import zipfile

import peer_dumps
import pytest
from handmade import Writer, key

from rldbg.core import Identity
from rldbg.recording import OTHER_MODEL, Recorder
from rldbg.recording import open as open_recording


def _found(root):
    return [(finding.id, finding.where) for finding in open_recording(root).verify()]


def test_a_whole_recording_has_no_findings(tmp_path):
    writer = Writer(tmp_path)
    writer.file(key(0), key(0, 0, 1))
    writer.file(key(1), key(1, 0, 1))
    writer.close()
    recording = open_recording(tmp_path)
    assert recording.layout.name == "rldbg"
    assert recording.keys() == (key(0), key(0, 0, 1), key(1), key(1, 0, 1))
    assert recording.verify() == []
    assert recording.summary().samples == 8
    assert recording.summary().health == ()


def test_missing_truncated_and_corrupt_are_three_things(tmp_path):
    writer = Writer(tmp_path)
    gone, cut, changed = (writer.file(key(step)) for step in range(3))
    writer.close()
    gone.unlink()
    cut.write_bytes(cut.read_bytes()[:-4])
    raw = bytearray(changed.read_bytes())
    raw[-1] ^= 1
    changed.write_bytes(raw)
    assert sorted(_found(tmp_path)) == [
        ("corrupt-file", str(changed)),
        ("missing-file", str(gone)),
        ("truncated-file", str(cut)),
    ]
    health = open_recording(tmp_path).summary().health
    assert sorted(finding.id for finding in health) == ["missing-file", "truncated-file"], "crc32 takes a full read"


def test_never_written_names_every_record_and_its_writer_is_unfinished(tmp_path):
    writer = Writer(tmp_path)
    writer.file(key(0))
    keys = [key(1, rank) for rank in range(3)]
    for lost in keys:
        writer.intent(lost)
    found = _found(tmp_path)
    assert [where for id, where in found if id == "never-written"] == [str(lost) for lost in keys]
    assert [id for id, _ in found if id != "never-written"] == ["unfinished-writer"]


def test_a_writer_killed_after_all_was_written_is_not_a_failure(tmp_path):
    """Ray kills its workers at the end of a run: no journal of theirs has a last line."""
    writer = Writer(tmp_path)
    writer.file(key(0), key(0, 0, 1))
    writer.journal.drop([writer.intent(key(1))], "the buffer is full")
    (unfinished,) = (finding for finding in open_recording(tmp_path).verify() if finding.id == "unfinished-writer")
    assert unfinished.severity == "info"
    assert "nothing is missing" in unfinished.cause
    with writer.journal.path.open("ab") as journal:
        journal.write(b'{"event":"intent","id":')
    (unfinished,) = (finding for finding in open_recording(tmp_path).verify() if finding.id == "unfinished-writer")
    assert unfinished.severity == "warning", "a record may have been lost with the line"


def test_a_writer_that_still_runs_is_no_damage(tmp_path):
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        writer = Writer(tmp_path, Identity(host=os.uname().nodename, pid=sleeper.pid))
        writer.file(key(0))
        writer.intent(key(1))
        assert {finding.severity for finding in open_recording(tmp_path).verify()} == {"info"}
    finally:
        sleeper.communicate(b"\n", timeout=20)
    assert {finding.severity for finding in open_recording(tmp_path).verify()} == {"warning", "error"}


def test_dropped_deleted_and_stopped(tmp_path):
    writer = Writer(tmp_path)
    writer.file(key(0)).unlink()
    writer.journal.delete("forward_data/step_000000_rank0.safetensors", "retention")
    writer.file(key(1))
    writer.journal.drop([writer.intent(key(2))], "the buffer is full")
    writer.journal.stop("no space left on device")
    writer.close()
    found = {finding.id: finding for finding in open_recording(tmp_path).verify()}
    assert set(found) == {"dropped", "deleted", "recorder-stopped"}
    assert found["dropped"].where == str(key(2))
    assert "buffer is full" in found["dropped"].evidence[0]
    assert found["deleted"].severity == "info"
    assert "no space" in " ".join(found["recorder-stopped"].evidence)


def test_a_file_named_but_not_noted_is_unjournaled_and_not_lost(tmp_path):
    writer = Writer(tmp_path)
    writer.file(key(0))
    path = writer.file(key(1), journaled=False)
    assert [id for id, _ in _found(tmp_path)] == ["unjournaled-file", "unfinished-writer"]
    assert open_recording(tmp_path).keys() == (key(0), key(1))
    path.write_bytes(b"\x08" + bytes(7) + b"{}")
    assert ("unreadable-file", str(path)) in _found(tmp_path)


def test_without_its_journal_a_recording_still_reads(tmp_path):
    writer = Writer(tmp_path)
    writer.file(key(0), key(0, 0, 1))
    writer.close()
    shutil.rmtree(tmp_path / "journal")
    assert open_recording(tmp_path).keys() == (key(0), key(0, 0, 1))
    assert _found(tmp_path) == []


def test_a_torn_line_is_a_kill_and_a_damaged_one_is_damage(tmp_path):
    writer = Writer(tmp_path)
    writer.file(key(0))
    writer.close()
    journal = next((tmp_path / "journal").iterdir())
    with journal.open("ab") as file:
        file.write(b'{"event": "int')
    assert _found(tmp_path) == []
    lines = journal.read_bytes().split(b"\n")
    journal.write_bytes(b"\n".join([lines[0], b"\x00garbage", *lines[1:]]))
    assert _found(tmp_path) == [("corrupt-file", str(journal))]


def test_a_journal_with_odd_values_is_damage_not_a_crash(tmp_path):
    writer = Writer(tmp_path)
    writer.file(key(0))
    writer.close()
    journal = next((tmp_path / "journal").iterdir())
    odd = ['{"event": "intent", "id": 1, "key": "loss"}', '{"event": "done", "ids": 4}', "[]", '{"event": ["x"]}', "7"]
    odd += ['{"event": "intent", "id": [], "key": ["loss", 1]}', '{"event": "intent", "id": 5, "key": ["loss", "a"]}']
    with journal.open("a") as file:
        file.write("\n".join(odd) + "\n")
    assert [id for id, _ in _found(tmp_path)] == ["corrupt-file"]


def test_temporary_files_are_not_part_of_a_recording(tmp_path):
    writer = Writer(tmp_path)
    path = writer.file(key(0))
    writer.close()
    path.with_name(".step_000001_rank0.safetensors.17.tmp").write_bytes(b"half")
    assert open_recording(tmp_path).keys() == (key(0),)
    assert _found(tmp_path) == []


def test_records_without_sample_ids_are_reported(tmp_path):
    writer = Writer(tmp_path)
    writer.file(key(0), samples=False)
    writer.close()
    (finding,) = open_recording(tmp_path).verify()
    assert (finding.id, finding.severity) == ("empty-sample-ids", "warning")
    assert str(key(0)) in finding.evidence[0]


def test_the_parameters_of_a_second_model_leave_no_hole(tmp_path):
    writer = Writer(tmp_path)
    for number in (0, 1, OTHER_MODEL, OTHER_MODEL + 1):
        writer.file(key(0)._replace(kind="param", micro=number))
    writer.close()
    assert not [finding for finding in open_recording(tmp_path).verify() if finding.id == "missing-micro"]


def test_the_overview_counts_parameters_and_names_the_second_model(tmp_path):
    with Recorder(tmp_path) as recorder:
        for number, name in ((0, "a"), (1, "b"), (OTHER_MODEL, "critic.a")):
            recorder.record("param", step=0, micro=number, param_name=name, norm=1.0, shape=[1], dtype="torch.float32")
    assert open_recording(tmp_path).summary().kinds["param"].parts == {"parameters": 2, "critic parameters": 1}


def test_holes_in_the_grid_of_ranks_and_micro_batches(tmp_path):
    peer_dumps.nexrl(tmp_path, steps=(0, 1, 2), ranks=3, micros=3)
    (tmp_path / "loss" / "step_000001_rank2_micro0.pt").unlink()
    (tmp_path / "loss" / "step_000002_rank0_micro1.pt").unlink()
    for micro in range(3):
        (tmp_path / "forward_data" / f"step_000001_rank1_micro{micro}.pt").unlink()
    found = [(finding.id, finding.where) for finding in open_recording(tmp_path).verify() if finding.severity != "info"]
    assert sorted(found) == [
        ("missing-micro", "loss step 1 rank 2"),
        ("missing-micro", "loss step 2 rank 0"),
        ("missing-rank", "forward_data step 1"),
    ]


def test_a_regular_dump_has_no_holes(tmp_path):
    peer_dumps.nexrl(tmp_path, steps=(0, 4), ranks=2, micros=2)
    assert {finding.severity for finding in open_recording(tmp_path).verify()} == {"info"}


def test_a_hostile_pickle_is_named_and_not_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.system, (f"touch {tmp_path / 'OWNED'}",))

    folder = tmp_path / "dump" / "forward_data"
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "step_000000_rank0_micro0.pt", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"step": 0, "rank": 0, "log_probs": Evil()}))
    (finding,) = open_recording(tmp_path / "dump").verify()
    assert (finding.id, finding.severity) == ("hostile-file", "error")
    assert "system" in finding.evidence[0]
    assert not (tmp_path / "OWNED").exists()


def test_findings_are_plain_data(tmp_path):
    writer = Writer(tmp_path)
    writer.intent(key(0))
    findings = open_recording(tmp_path).verify()
    assert {"never-written", "empty-recording"} <= {finding.id for finding in findings}
    for finding in findings:
        assert json.loads(json.dumps(finding.to_dict()))["cause"]
        assert finding.fix


@pytest.mark.soak
def test_soak_verify_reads_a_large_recording(tmp_path):
    writer = Writer(tmp_path)
    for step in range(5000):
        writer.file(key(step))
    writer.close()
    assert open_recording(tmp_path).verify() == []


def test_a_number_out_of_all_bounds_in_a_journal_is_a_damaged_line(tmp_path):
    writer = Writer(tmp_path / "dump")
    writer.file(key(0))
    writer.close()
    journal = next((tmp_path / "dump" / "journal").glob("*.jsonl"))
    journal.write_bytes(journal.read_bytes().replace(b'"rows":', b'"rows":1e999,"was":'))
    findings = open_recording(tmp_path / "dump").verify()
    assert any("journal" in finding.where for finding in findings), findings
