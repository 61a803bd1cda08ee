"""Processes end in every way there is: what they recorded is whole, and what is missing is named."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import rldbg
from rldbg.core import worst
from rldbg.recording import RecordKey

PROGRAMS = Path(__file__).with_name("recorder_programs.py")
FORMATS = ("safetensors", "pt", "jsonl")


def start(program: str, *arguments: object) -> subprocess.Popen:
    command = [sys.executable, str(PROGRAMS), program, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def journal(folder: Path) -> list[dict]:
    return [
        json.loads(line)
        for path in sorted((folder / "journal").iterdir())
        for line in path.read_text().splitlines(keepends=True)
        if line.endswith("\n")
    ]


def values(folder: Path) -> dict[RecordKey, object]:
    return {record.key: record.fields["x"] for record in rldbg.open(folder).records()}


def kill_at_a_random_moment(folder: Path, seed: int) -> int:
    """Kills a trainer with SIGKILL and checks that every record it had handed over is there or named as missing.

    How many it had handed over.
    """
    process = start("train_forever", folder, FORMATS[seed % 3], seed)
    handed = [process.stdout.readline().split()]
    timer = threading.Timer(random.Random(seed).uniform(0.0, 0.25), process.kill)
    timer.start()
    handed += [line.split() for line in process.stdout if line.endswith("\n")]
    timer.join()
    process.communicate()
    assert process.returncode == -signal.SIGKILL

    recording = rldbg.open(folder)
    present = {record.key[:4] for record in recording.records()}
    findings = recording.verify()
    named = " ".join(text for finding in findings for text in (finding.where, *finding.evidence))
    rank = seed % 3
    for kind, step, micro in handed:
        key = (kind, int(step), rank, int(micro))
        text = f"{kind} step {step} rank {rank} micro {micro}"
        assert key in present or text in named, f"{text} was handed over, is not there, and verify does not say so"
    damage = {finding.id for finding in findings} & {
        "truncated-file",
        "corrupt-file",
        "unreadable-file",
        "missing-file",
    }
    assert not damage, f"a killed process left damage: {damage}"
    assert any("unfinished" in finding.id for finding in findings), findings
    return len(handed)


@pytest.mark.parametrize("seed", range(8))
def test_a_killed_process_leaves_only_whole_files(tmp_path: Path, seed: int) -> None:
    assert kill_at_a_random_moment(tmp_path, seed) >= 1


@pytest.mark.parametrize(("program", "severity"), [("record_flush_and_wait", "info"), ("record_and_wait", "error")])
def test_a_killed_process_is_a_failure_only_if_something_is_missing(
    tmp_path: Path, program: str, severity: str
) -> None:
    process = start(program, tmp_path)
    assert process.stdout.readline() == "ready\n"
    process.kill()
    finish(process)
    findings = rldbg.open(tmp_path, layout="rldbg").verify()
    assert "unfinished-writer" in {finding.id for finding in findings}
    assert worst(findings) == severity


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_two_hundred_killed_processes(tmp_path: Path) -> None:
    for seed in range(200):
        assert kill_at_a_random_moment(tmp_path / str(seed), seed) >= 1
        shutil.rmtree(tmp_path / str(seed))


def test_sigterm_writes_what_is_gathered_and_still_ends_the_process(tmp_path: Path) -> None:
    process = start("record_and_wait", tmp_path)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    code, _, err = finish(process)
    assert code == -signal.SIGTERM, err
    assert len(values(tmp_path)) == 1
    assert journal(tmp_path)[-1]["event"] == "close"


def test_a_handler_that_was_there_before_still_runs(tmp_path: Path) -> None:
    process = start("record_and_handle_signal", tmp_path)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    code, out, err = finish(process)
    assert (code, out) == (7, f"handled {signal.SIGTERM.value}\n"), err
    assert len(values(tmp_path)) == 1
    assert rldbg.open(tmp_path).verify() == []


@pytest.mark.parametrize("attempt", range(3))
def test_sigterm_in_the_middle_of_a_record_does_not_hang(tmp_path: Path, attempt: int) -> None:
    process = start("record_in_a_loop_until_signal", tmp_path)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    code, _, err = finish(process)
    assert code == -signal.SIGTERM, err
    written = sum(len(line["ids"]) for line in journal(tmp_path) if line["event"] == "done")
    handed = sum(line["event"] == "intent" for line in journal(tmp_path))
    assert handed - written <= 1, "only the record that the signal interrupted may be missing"


@pytest.mark.parametrize(("program", "expected_code"), [("record_and_exit", 0), ("record_and_crash", 1)])
def test_the_end_of_the_process_writes_what_is_gathered(tmp_path: Path, program: str, expected_code: int) -> None:
    code, _, err = finish(start(program, tmp_path))
    assert code == expected_code, err
    assert len(values(tmp_path)) == 1
    assert rldbg.open(tmp_path).verify() == []


def test_forked_children_have_sessions_of_their_own(tmp_path: Path) -> None:
    code, _, err = finish(start("record_around_fork", tmp_path))
    assert code == 0, err
    found = values(tmp_path)
    assert {(key.kind, key.step, key.micro) for key in found} == {
        *(("parent", 0, 0), ("parent", 0, 1)),
        *(("child", 1, 0), ("child", 2, 0)),
    }
    assert len(set(found.values())) == 3
    assert len(list((tmp_path / "journal").iterdir())) == 3, "a child that records nothing has no journal"
    assert rldbg.open(tmp_path).verify() == []


def test_thirty_two_children_of_multiprocessing_at_once(tmp_path: Path) -> None:
    code, _, err = finish(start("record_in_children", tmp_path, 32))
    assert code == 0, err
    recording = rldbg.open(tmp_path)
    assert recording.ranks("mine") == recording.ranks("large") == tuple(range(32))
    assert len(recording.entries(kind="mine")) == len(recording.entries(kind="large")) == 32 * 5
    assert recording.verify() == []
    assert all((record.array("x") == record.key.rank).all() for record in recording.records())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte, where mounting one is allowed."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a small file system is not allowed here")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_stops_the_recording_and_not_training(small_disk: Path) -> None:
    code, out, err = finish(start("train_on_a_full_disk", small_disk / "dump", 0))
    assert (code, out) == (0, "trained 50 stopped\n"), err
    assert err.count("recording stopped") == 1
    recording = rldbg.open(small_disk / "dump")
    assert 0 < len(list(recording.records())) < 50
    assert any("stop" in finding.id for finding in recording.verify())
    assert not list((small_disk / "dump").rglob(".*")), "an unfinished file still takes room on a full disk"


def test_a_limit_on_file_sizes_stops_the_recording_and_not_training(tmp_path: Path) -> None:
    code, out, err = finish(start("train_on_a_full_disk", tmp_path / "dump", 30_000))
    assert (code, out) == (0, "trained 50 stopped\n"), err
    assert err.count("recording stopped") == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_read_only_folder_stops_the_recording_and_not_training(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    code, out, err = finish(start("train_on_a_full_disk", tmp_path / "dump", 0))
    assert (code, out) == (0, "trained 50 stopped\n"), err


def test_a_read_only_file_system_stops_the_recording_and_not_training(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    code, out, err = finish(start("train_on_a_full_disk", small_disk / "dump", 0))
    assert (code, out) == (0, "trained 50 stopped\n"), err
    assert err.count("training continues") == 1
