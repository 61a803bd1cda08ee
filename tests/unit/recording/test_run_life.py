"""Whether a run still runs, decided by its processes where run.json does not say that it has ended."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from rldbg.core import Identity, Run, is_running
from rldbg.recording import Recorder, RunLife

RECORDS_FOREVER = (
    "import sys, time, rldbg\n"
    "recorder = rldbg.Recorder(sys.argv[1])\n"
    "recorder.record('training_metrics', step=0, metrics={'loss': 1.0})\n"
    "recorder.flush()\n"
    "print('recorded', flush=True)\n"
    "time.sleep(600)\n"
)


def recording_process(folder: Path) -> "subprocess.Popen[str]":
    process = subprocess.Popen([sys.executable, "-c", RECORDS_FOREVER, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "recorded\n"
    return process


def test_a_recording_ends_with_the_process_that_writes_it(tmp_path: Path) -> None:
    life = RunLife(tmp_path / "rec")
    assert not life.has_ended and life.new_note() == ""
    process = recording_process(tmp_path / "rec")
    try:
        assert not life.has_ended and life.new_note() == ""
        process.kill()
        while is_running(process.pid):  # it is a zombie then: nobody has waited for it
            time.sleep(0.01)
        assert life.has_ended
    finally:
        process.kill()
        process.communicate()
    assert life.new_note() == f"{tmp_path}/rec has ended: its processes run no longer ({process.pid})"
    assert life.new_note() == ""


def test_a_run_whose_recorder_lives_has_not_ended_with_the_process_that_started_it(tmp_path: Path) -> None:
    program = "import sys; from rldbg.core import Run; Run(sys.argv[1]).start(command=['train'])"
    starter = subprocess.run([sys.executable, "-c", program, str(tmp_path)], cwd=tmp_path, check=False)
    assert starter.returncode == 0
    assert RunLife(tmp_path).has_ended
    with Recorder(tmp_path / "recording") as recorder:
        recorder.record("training_metrics", step=0, metrics={"loss": 1.0})
        recorder.flush()
        assert not RunLife(tmp_path).has_ended and not RunLife(tmp_path / "recording").has_ended
    Run(tmp_path).finish(0)
    assert RunLife(tmp_path).has_ended and RunLife(tmp_path / "recording").has_ended


def test_the_end_on_another_host_cannot_be_seen_and_that_is_said(tmp_path: Path) -> None:
    elsewhere = Identity(host="node-7", pid=os.getpid())
    recorder = Recorder(tmp_path, identity=elsewhere)
    recorder.record("training_metrics", step=0, metrics={"loss": 1.0})
    recorder.flush()
    life = RunLife(tmp_path)
    assert not life.has_ended
    assert life.new_note().startswith(f"{tmp_path} is written on node-7: this host cannot tell")
    recorder.close()
    assert life.has_ended, "its recorder has closed in order"


def test_a_process_that_only_has_the_same_id_is_another_one(tmp_path: Path) -> None:
    Run(tmp_path).start(command=["train"])
    assert not RunLife(tmp_path).has_ended
    facts = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(facts | {"started_at": facts["started_at"] - 1e6}))
    assert RunLife(tmp_path).has_ended


def test_dumps_that_name_no_process_say_so(tmp_path: Path) -> None:
    life = RunLife(tmp_path)
    assert not life.has_ended
    assert life.new_note().startswith("nothing says which process writes")


def test_who_follows_a_killed_run_ends_too(tmp_path: Path) -> None:
    process = recording_process(tmp_path / "rec")
    words = [sys.executable, "-m", "rldbg", "watch", str(tmp_path / "rec"), "--follow"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as following:
        process.kill()
        process.communicate()
        output = "".join(following.communicate(timeout=60))
    assert "its processes run no longer" in output
    assert following.returncode == 0, output
