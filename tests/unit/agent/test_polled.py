"""What loops look at, and who would change it, in threads of this process."""

import io
import os
import queue
import sys
import threading
import time

import pytest

from rldbg.agent.waits.code.source import Sources
from rldbg.agent.waits.others.polled import looked_at, loop_condition, unchanged
from rldbg.agent.waits.reading.objects import OwnFrame
from rldbg.agent.waits.reading.process_views import OwnProcess
from rldbg.agent.waits.snapshot import snapshot
from rldbg.live.diagnosis.graph.skipped_steps import unchanged_text


class Waiting:
    def __init__(self):
        self.items, self.table, self.version, self.flag, self.box = [], {}, 0, threading.Event(), queue.Queue()
        self.work, self.over = queue.Queue(), False

    def length(self):
        while len(self.items) < 3 and not self.over:
            yield OwnFrame(sys._getframe())

    def key(self):
        while "k" not in self.table and not self.over:
            yield OwnFrame(sys._getframe())

    def number(self):
        while self.version < 3 and not self.over:
            yield OwnFrame(sys._getframe())

    def event(self):
        while not self.flag.is_set():
            yield OwnFrame(sys._getframe())

    def queue(self):
        while True:
            if not self.box.empty():
                break
            yield OwnFrame(sys._getframe())

    def change(self):
        while item := self.work.get():
            self.items.append(item)
            self.table[item] = item
            self.version += 1
            self.flag.set()
            self.box.put(item)

    def look(self):
        while self.version < 3 and not self.over:
            time.sleep(0.01)


@pytest.mark.parametrize(
    ("loop", "name", "by"),
    [
        ("length", "self.items", "append"),
        ("key", "self.table", "__setitem__"),
        ("number", "self.version", "version="),
        ("event", "self.flag", "set"),
        ("queue", "self.box", "put"),
    ],
)
def test_what_a_loop_looks_at_is_known_with_what_changes_it(loop, name, by):
    frame = next(getattr(Waiting(), loop)())
    tested = loop_condition(frame, [frame], Sources(os.getpid()))
    assert (name, by) in {(each.name, method) for each in looked_at(tested) for method in each.changed_by}


class Controller:
    """Loops that look at a flag, and functions that change it."""

    def __init__(self, **flags):
        self.paused, self.stopped, self.loaded, self.ready = (flags.get(name, False) for name in FLAGS)

    def wait_unpaused(self):
        while self.paused:
            yield OwnFrame(sys._getframe())

    def wait_stopped(self):
        while not self.stopped:
            yield OwnFrame(sys._getframe())

    def wait_loaded(self):
        while self.loaded:
            yield OwnFrame(sys._getframe())

    def wait_ready(self):
        while not self.ready:
            yield OwnFrame(sys._getframe())

    def update(self):
        self.paused = True
        self.push()
        self.paused = False

    def stop(self):
        self.stopped = True

    def load(self):
        self.loaded = True
        try:
            self.push()
        finally:
            self.loaded = False


FLAGS = ("paused", "stopped", "loaded", "ready")


def test_of_a_flag_that_nobody_changes_the_functions_are_told_that_would():
    controller, sources = Controller(paused=True, loaded=True), Sources(os.getpid())
    begin = Controller.update.__code__.co_firstlineno
    assert unchanged(next(controller.wait_unpaused()), sources) == {
        "name": "self.paused",
        "functions": [f"update:{begin + 3}"],
        "skipped": {
            "function": "update",
            "left_by": ["exception"],
            "to": "True",
            "from": begin + 1,
            "back_to": "False",
            "line": begin + 3,
        },
    }
    stops = f"stop:{Controller.stop.__code__.co_firstlineno + 1}"
    assert unchanged(next(controller.wait_stopped()), sources) == {"name": "self.stopped", "functions": [stops]}
    assert "skipped" not in unchanged(next(controller.wait_loaded()), sources)
    assert unchanged(next(controller.wait_ready()), sources) == {}


def test_the_sentence_says_who_would_change_a_flag_and_what_led_past_it():
    seen = {"name": "self.paused", "functions": ["update:20"]}
    stack = {"threads": [], "tasks": []}
    told = "in its file only update (line 20) would change `self.paused`, and no thread or task is seen running it"
    assert unchanged_text({"unchanged": seen}, stack) == told
    skipped = {"function": "update", "left_by": ["exception"], "to": "True", "from": 18, "back_to": "False", "line": 20}
    assert unchanged_text({"unchanged": seen | {"skipped": skipped}}, stack) == (
        f"{told}; update sets it to True in line 18 and to False in line 20, which an exception in between skips"
    )
    assert unchanged_text({"unchanged": {}}, stack) == ""


def test_the_thread_that_would_change_it_is_found():
    waiting = Waiting()
    threads = [threading.Thread(target=waiting.change, name="changes"), threading.Thread(target=waiting.look)]
    for thread in threads:
        thread.start()
    try:
        while waiting.work.not_empty._waiters == type(waiting.work.not_empty._waiters)():
            time.sleep(0.01)
        found = snapshot(OwnProcess(frozenset(thread.ident for thread in threads)))["threads"]
        looking = next(each for each in found if each["ident"] == threads[1].ident)
        assert looking["wait"]["looks_at"] == [{"who": "changes", "name": "self.version"}]
    finally:
        waiting.over = True
        waiting.work.put(None)
        for thread in threads:
            thread.join()


def _reads_blocks(file):
    while block := file.read(4):
        yield OwnFrame(sys._getframe()), block


def _reads_lines(file):
    while file.readline() != "":
        yield OwnFrame(sys._getframe()), ""


def _waits_for_a_line(file):
    while not file.readline():
        yield OwnFrame(sys._getframe()), ""


def _asks_for_a_state(file):
    while (state := file.read()) != "done":
        yield OwnFrame(sys._getframe()), state


@pytest.mark.parametrize(
    ("loop", "text", "polled"),
    [
        (_reads_blocks, "12345678", False),
        (_reads_lines, "a\nb\n", False),
        (_waits_for_a_line, "", True),
        (_asks_for_a_state, "", True),
    ],
)
def test_a_loop_that_reads_to_the_end_looks_for_nothing(loop, text, polled):
    frame, _ = next(loop(io.StringIO(text)))
    assert bool(Sources(os.getpid()).polled(frame)) is polled
