"""Runs that nobody watches: a crash is written down with all stacks, and the job ends without waiting."""

import json
import os

from live_job import rldbg

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
sys._rldbg_agent._link.wait_connected(30)
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
