"""What loops look at, and who would change it, in threads of this process."""

import os
import queue
import sys
import threading
import time

import pytest

from rldbg.agent.waits.objects import OwnFrame
from rldbg.agent.waits.polled import looked_at
from rldbg.agent.waits.process_views import OwnProcess
from rldbg.agent.waits.snapshot import snapshot
from rldbg.agent.waits.source import Sources


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
    found = {(each.name, method) for each in looked_at(frame, Sources(os.getpid())) for method in each.changed_by}
    assert (name, by) in found


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
