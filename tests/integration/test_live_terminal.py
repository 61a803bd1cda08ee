"""At a terminal: the prompt of `rldbg attach`, and a plain pdb for a driver that has a terminal of its own."""

import os
import sys

import pytest
from live_job import LiveJob
from terminal import Terminal

STEPS = """
def step(i):
    loss = i + 0.5
    breakpoint()
    after = loss + 1
    return after
print("RESULT", [step(i) for i in range(2)], flush=True)
"""


@pytest.fixture
def job(tmp_path):
    with LiveJob(tmp_path) as job:
        yield job


def test_the_prompt_speaks_pdb_with_history_and_leaves_the_rank_stopped(job):
    job.ranks(job.write("train.py", STEPS), 2)
    job.wait_stopped(2)
    command = [sys.executable, "-m", "rldbg", "attach", "train/0", "--run", str(job.run.path)]
    terminal = Terminal(command, os.environ | {"RLDBG_HOME": str(job.folder / "home")}, job.folder)
    try:
        terminal.expect("(train/0)")
        terminal.type("p loss * 2")
        terminal.expect("\n1.0")
        terminal.type("all p loss")
        terminal.expect("train/0-1: 0.5")
        terminal.type("n")
        terminal.expect("-> return after")
        terminal.type("ranks")
        terminal.expect("train/1")
        terminal.type("ranks train/1")
        terminal.expect("(train/1)")
        terminal.type("interact")
        terminal.expect(">>>")
        terminal.type("sum(range(5))")
        terminal.expect("\n10")
        terminal.type("exit")
        terminal.expect("(train/1)")
        terminal.type("p nope")
        terminal.expect("*** NameError")
        terminal.type("q")
        terminal.expect("still stopped: train/0, train/1")
        assert terminal.process.wait(30) == 0
    finally:
        terminal.close()
    assert "p loss * 2" in (job.folder / "home" / "history").read_text()
    assert [p["state"] for p in job.ps()] == ["stopped", "stopped"]


def test_a_driver_with_a_terminal_gets_a_plain_prompt_there(job):
    terminal = Terminal([sys.executable, str(job.write("driver.py", STEPS))], job.environment, job.folder)
    try:
        terminal.expect("(Pdb)")
        assert not job.stopped()
        terminal.type("p loss")
        terminal.expect("0.5")
        terminal.type("c")
        terminal.expect("(Pdb)")
        terminal.type("c")
        terminal.expect("RESULT [1.5, 2.5]")
    finally:
        terminal.close()
