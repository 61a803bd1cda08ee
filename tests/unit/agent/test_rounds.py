"""Loops that go round without progress, by what two looks see of them."""

import os
import queue
import sys

from rldbg.agent.waits.code.source import Sources
from rldbg.agent.waits.others.rounds import current_round, in_vain
from rldbg.agent.waits.reading.objects import OwnFrame

SOURCES = Sources(os.getpid())


class Request:
    def __init__(self, number):
        self.number, self.generated = number, 0


class Scheduler:
    def __init__(self, inputs):
        self.inputs, self.ready, self.free = inputs, set(), 3
        self.waiting = [Request(1), Request(2)]

    def admit(self):
        for request in list(self.waiting):
            if request.number not in self.ready:
                continue
            if self.free >= 2:
                self.waiting.remove(request)

    def receive(self):
        try:
            self.ready.add(self.inputs.get_nowait())
        except queue.Empty:
            return [OwnFrame(sys._getframe()), OwnFrame(sys._getframe(1))]
        return []


def rounds(scheduler):
    rounds_made = 0
    while True:
        batch = [rounds_made]
        frames = scheduler.receive()
        scheduler.admit()
        yield current_round(frames, SOURCES), batch


def _looks(change=lambda scheduler: None):
    scheduler = Scheduler(queue.Queue())
    running = rounds(scheduler)
    before = next(running)[0]
    change(scheduler)
    return {"round": before}, {"round": next(running)[0], "wait": {"kind": "computing"}}


def test_a_loop_that_asks_its_queue_in_both_looks_and_changes_nothing_makes_no_progress():
    found = in_vain(*_looks(), woken=False)
    assert (found["table"], found["size"], found["first"]) == (
        "scheduler.waiting",
        2,
        "Request: number = 1, generated = 0",
    )
    assert found["taken"].endswith(
        "takes one out only if `request.number in self.ready` (request.number = 1) and `self.free >= 2` (self.free = 3)"
    )
    assert found["taken"].startswith("admit (line ") and "state" not in found


def test_a_loop_that_changes_anything_that_it_can_reach_makes_progress():
    def generate(scheduler):
        scheduler.waiting[1].generated += 1

    assert not in_vain(*_looks(generate), woken=False)
    assert not in_vain(*_looks(lambda scheduler: scheduler.ready.add(7)), woken=False)


def test_one_round_that_lasts_is_not_taken_for_many():
    before, after = _looks()
    for each in (before, after):
        each["round"]["instant"] = False
    assert not in_vain(before, after, woken=False)
    # A sleep at the same line from which it was woken in between is of another round.
    assert in_vain(before, after | {"wait": {"kind": "sleep"}}, woken=True)
    after["round"]["line"] -= 1
    assert in_vain(before, after, woken=False)


def test_a_loop_that_only_takes_what_is_there_is_not_said_to_try_it_again(tmp_path):
    file = tmp_path / "loops.py"
    file.write_text(
        "import time\n"
        "def drains(q, work):\n    while True:\n        try:\n            work.append(q.get_nowait())\n"
        "        except Empty:\n            pass\n        work.step()\n        time.sleep(1)\n"
        "def locks(path):\n    while True:\n        try:\n            return open(path, 'x')\n"
        "        except FileExistsError:\n            time.sleep(1)\n"
    )

    class Line:
        def __init__(self, line):
            self.file, self.line, self.function = str(file), line, ""

        def locals(self):
            return {}

        def variable(self, name):
            return None

    assert SOURCES.polled(Line(9)) == ""
    assert SOURCES.polled(Line(15)) == "that tries `open(path, 'x')` again after each FileExistsError"
