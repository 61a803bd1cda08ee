"""A loop that runs and leaves what it has to work through where it is, seen by two looks from outside."""

import subprocess
import sys

from rldbg.agent.waits import look
from rldbg.agent.waits.others.backlog import untouched
from rldbg.live.diagnosis.explanation import explain

SCHEDULER = """
import collections, itertools, sys
class Scheduler:
    def __init__(self):
        self.waiting, self.seen, self.names = collections.deque(["r2", "r3"]), itertools.count(), ["a", "b"]
    def admit(self):
        if next(self.seen) < 0:
            self.waiting.popleft()
    def loop(self):
        print("begun", flush=True)
        while True:
            self.admit()
Scheduler().loop()
"""


def test_the_table_of_a_loop_that_admits_nothing_is_named(tmp_path):
    script = tmp_path / "scheduler.py"
    script.write_text(SCHEDULER)
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "begun\n"
            verdict = explain(look([process.pid], apart_s=0.5))[0].verdict
        finally:
            process.kill()
    assert "its loop has taken nothing out of `self.waiting` (2 entries) between two looks" in verdict
    assert "self.names" not in verdict


def test_a_table_that_two_looks_see_differently_is_worked_through():
    first = {"backlog": {"queue": [2, 0x10], "running": [1, 0x20], "ended": [1, 0x30]}}
    later = {"backlog": {"queue": [2, 0x11], "running": [1, 0x20], "new": [1, 0x40]}}
    assert untouched(first, later) == {"running": 1}
    assert untouched({}, later) == {}


SPINNING = """
import queue
class Scheduler:
    def __init__(self):
        self.inputs, self.waiting, self.free = queue.Queue(), [{"id": "r2", "tokens": 9}], 4
    def receive(self):
        try:
            self.waiting.append(self.inputs.get_nowait())
        except queue.Empty:
            pass
    def loop(self):
        print("begun", flush=True)
        while True:
            self.receive()
            for request in list(self.waiting):
                if request["tokens"] > self.free:
                    break
                self.waiting.remove(request)
Scheduler().loop()
"""


def test_a_loop_that_spins_without_progress_is_told_with_what_it_keeps(tmp_path):
    script = tmp_path / "spinning.py"
    script.write_text(SPINNING)
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "begun\n"
            # Two looks that find it elsewhere in its round do not tell.
            vain = next(
                found for _ in range(20) if (found := look([process.pid], apart_s=0.2)[0]["threads"][0]["vain"])
            )
        finally:
            process.kill()
    assert (vain["table"], vain["first"]) == ("self.waiting", "dict: id = 'r2', tokens = 9")
    assert "takes one out only if `request['tokens'] <= self.free`" in vain["taken"]
