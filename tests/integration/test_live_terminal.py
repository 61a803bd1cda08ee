"""At a terminal: the prompt of `rldbg attach`, and a plain pdb for a driver that has a terminal of its own."""

import os
import pty
import re
import select
import subprocess
import sys
import time

import pytest
from live_job import LiveJob

STEPS = """
def step(i):
    loss = i + 0.5
    breakpoint()
    after = loss + 1
    return after
print("RESULT", [step(i) for i in range(2)], flush=True)
"""
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\x1b\][^\x07]*\x07")


class Terminal:
    """A program on a pseudo-terminal, read until some text appears."""

    def __init__(self, command, environment, folder):
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment | {"TERM": "xterm", "NO_COLOR": "1", "PROMPT_TOOLKIT_NO_CPR": "1"},
            cwd=folder,
            start_new_session=True,
            preexec_fn=lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0),
        )
        os.close(slave)
        self.text = ""

    def expect(self, words, timeout_s=60.0):
        deadline = time.monotonic() + timeout_s
        while words not in self.text:
            ready, _, _ = select.select([self._master], [], [], max(deadline - time.monotonic(), 0))
            assert ready, f"{words!r} did not appear in: {self.text[-1500:]}"
            try:
                data = os.read(self._master, 65536)
            except OSError:
                data = b""
            assert data, f"it ended before {words!r}: {self.text[-1500:]}"
            self.text += _ESCAPES.sub("", data.decode("utf-8", "replace"))
        before, _, self.text = self.text.partition(words)
        return before

    def type(self, line):
        os.write(self._master, line.encode() + b"\r")

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)


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
