"""Runs that nobody watches: a crash is written down with all stacks, and the job ends without waiting."""

import json
import os
import signal
import subprocess
import sys

import psutil
import pytest
from live_job import rldbg, until

FAILS = """
import subprocess, sys
sleeper = subprocess.Popen([sys.executable, "sleeper.py"], stdout=subprocess.PIPE, text=True)
sleeper.stdout.readline()
try:
    raise ValueError("the loss is not a number")
finally:
    sleeper.stdout.close()
"""
# Says that it is there once the broker knows it, and ends with the run.
SLEEPS = """
import sys, threading, time
sys._rldbg_agent._link.wait_connected()
def sleep_here():
    print("UP", flush=True)
    time.sleep(20)
sleep_here()
"""


def _environment(tmp_path):
    return {**{k: v for k, v in os.environ.items() if not k.startswith("RLDBG_")}, "RLDBG_HOME": str(tmp_path / "home")}


def test_a_crash_of_an_unattended_run_is_recorded_and_not_held(tmp_path):
    (tmp_path / "train.py").write_text(FAILS)
    (tmp_path / "sleeper.py").write_text(SLEEPS)
    # WHEN a run without a terminal fails; the helper's own limit is far below the wait at a terminal
    command = ("run", "--run", "run", "--no-doctor", "--", "python", "train.py")
    done = rldbg(*command, check=False, cwd=tmp_path, env=_environment(tmp_path))
    # THEN it has ended with the program's exit code, and left the crash and the stacks of all processes
    assert done.returncode == 1 and "the loss is not a number" in done.stderr
    assert "the broker listens at 127.0.0.1:" in done.stderr
    (crash,) = (tmp_path / "run" / "crashes").glob("*.json")
    assert json.loads(crash.read_text())["exceptions"][0]["type"] == "ValueError"
    stacks = json.loads((tmp_path / "run" / "stacks" / "at_first_crash.json").read_text())["stacks"]
    functions = {f["function"] for stack in stacks for thread in stack["threads"] for f in thread["frames"]}
    assert "sleep_here" in functions


def test_a_program_that_cannot_be_loaded_is_never_held(tmp_path):
    (tmp_path / "train.py").write_text("import a_module_that_nobody_has\n")
    command = ("run", "--run", "run", "--no-doctor", "--wait", "600", "--", "python", "train.py")
    done = rldbg(*command, check=False, cwd=tmp_path, env=_environment(tmp_path))
    assert done.returncode == 1 and "a_module_that_nobody_has" in done.stderr
    assert list((tmp_path / "run" / "crashes").glob("*.json"))


IGNORES_SIGTERM = """
import pathlib, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, lambda *_: pathlib.Path("asked").touch())
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path("up").write_text(str(child.pid))
while True:
    time.sleep(0.05)
"""


# As torchrun does: a signal becomes an exception, and the exit code is that of a failure.
RAISES_AT_SIGTERM = """
import pathlib, signal, time
def end(number, _frame):
    raise RuntimeError(f"got signal {number}")
signal.signal(signal.SIGTERM, end)
pathlib.Path("up").touch()
time.sleep(600)
"""


def test_a_run_that_was_told_to_end_is_not_diagnosed_as_a_failure(tmp_path):
    (tmp_path / "train.py").write_text(RAISES_AT_SIGTERM)
    command = [sys.executable, "-m", "rldbg", "run", "--run", "run", "--", "python", "train.py"]
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, env=_environment(tmp_path), **options) as run:
        until(lambda: (tmp_path / "up").exists(), "the program")
        run.send_signal(signal.SIGTERM)
        _, said = run.communicate(timeout=60)
    assert run.returncode == 1 and "RuntimeError: got signal 15" in said
    assert "rldbg: ended by SIGTERM; exit code 1" in said and "the failure begins" not in said, said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_ends_a_held_crash_is_named(tmp_path, number):
    """Of a launcher the exit code says nothing; the crash itself is diagnosed all the same."""
    (tmp_path / "train.py").write_text("raise ValueError('bad batch')\n")
    command = [sys.executable, "-m", "rldbg", "run", "--wait", "600", "--run", "run", "--", "python", "train.py"]
    said = tmp_path / "said"
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    with (
        said.open("w") as stderr,
        subprocess.Popen(command, cwd=tmp_path, env=_environment(tmp_path), stderr=stderr, **options) as run,
    ):
        until(lambda: "is held for up to" in said.read_text(), "the hold")
        run.send_signal(number)
        run.wait(60)
    text = said.read_text()
    assert f"rldbg: ended by {number.name}; exit code" in text and "ValueError" in text, text
    assert "launch.not-armed" not in text


def _quiet_run(folder, program):
    """`rldbg run` of a program, without a terminal."""
    (folder / "train.py").write_text(program)
    command = [sys.executable, "-m", "rldbg", "run", "--run", "run", "--no-doctor", "--", "python", "train.py"]
    nowhere = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    return subprocess.Popen(command, cwd=folder, env=_environment(folder), **nowhere)


def test_a_second_sigterm_ends_the_run_at_once(tmp_path):
    with _quiet_run(tmp_path, IGNORES_SIGTERM) as run:
        child = int(until(lambda: (tmp_path / "up").exists() and (tmp_path / "up").read_text(), "the program"))
        # WHEN the program does not end by the first signal THEN it has its own time, and the second ends it
        run.send_signal(signal.SIGTERM)
        until(lambda: (tmp_path / "asked").exists(), "the first signal")
        assert run.poll() is None
        run.send_signal(signal.SIGTERM)
        assert run.wait(60) == 128 + signal.SIGKILL
    until(lambda: not psutil.pid_exists(child), "the program's own child to end")


LEAVES_A_PROCESS = """
import os, pathlib, signal, sys, time
if os.fork() == 0:
    sys._rldbg_agent._link.wait_connected()
    signal.signal(signal.SIGTERM, lambda *_: pathlib.Path("asked").touch())
    pathlib.Path("up").write_text(str(os.getpid()))
    while True:
        time.sleep(0.05)
time.sleep(600)
"""


def test_a_process_that_outlives_its_program_ends_with_the_run(tmp_path):
    with _quiet_run(tmp_path, LEAVES_A_PROCESS) as run:
        child = int(until(lambda: (tmp_path / "up").exists() and (tmp_path / "up").read_text(), "the program"))
        broker = json.loads((tmp_path / "run" / "broker.json").read_text())["pid"]
        # WHEN the program ends by the first signal, and a process that it forked does not
        run.send_signal(signal.SIGTERM)
        until(lambda: (tmp_path / "asked").exists(), "the signal that is passed on")
        # THEN the second signal ends that one, and nothing keeps the broker
        run.send_signal(signal.SIGTERM)
        assert run.wait(60) == 128 + signal.SIGTERM
    until(lambda: not _runs(child) and not _runs(broker), "the forked process and the broker to end")


def _runs(pid):
    """A container may have nobody who buries the dead."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
