"""Why what would end a wait has not happened: conditions that do not hold, releases that exceptions skip."""

import concurrent.futures
import os
import sys
import threading

import pytest

from rldbg.agent.waits.objects import OwnFrame
from rldbg.agent.waits.reasons import failed_calls, guard, skipped_release
from rldbg.agent.waits.source import Sources
from rldbg.live.diagnosis.lost_waits import why_lost

SET = frozenset({"set"})


class Gate:
    def __init__(self, parties):
        self.parties, self.names = parties, ["a", "b"]
        self.open, self.always, self.either = threading.Event(), threading.Event(), threading.Event()

    def arrive(self):
        if len(self.names) == self.parties:
            for _ in range(1):
                self.open.set()
        return OwnFrame(sys._getframe())

    def in_any_case(self):
        if self.parties:
            self.parties = 0
        self.always.set()

    def one_of_two(self):
        if self.parties:
            self.either.set()
        else:
            self.either.set()


@pytest.mark.parametrize(
    ("name", "function", "said"),
    [
        (
            "self.open",
            "arrive:25",
            "`len(self.names) == self.parties` (len(self.names) = 2, self.parties = 3)",
        ),
        ("self.always", "in_any_case:31", ""),
        ("self.either", "one_of_two:35", ""),
    ],
)
def test_the_condition_under_which_a_wait_ends_is_told_with_its_values(name, function, said):
    assert guard([function], name, SET, Gate(3).arrive(), Sources(os.getpid())) == said


class Client:
    def __init__(self):
        self.slots, self.lock, self.safe = threading.Semaphore(1), threading.Lock(), threading.Lock()

    def generate(self, text):
        self.slots.acquire()
        found = int(text)
        self.slots.release()
        return found

    def guarded(self, text):
        self.safe.acquire()
        try:
            return int(text)
        finally:
            self.safe.release()

    def at_once(self):
        self.lock.acquire()
        self.lock.release()


def _place():
    return OwnFrame(sys._getframe())


def test_a_release_that_an_exception_skips_is_found_with_the_calls_that_failed_there():
    client = Client()
    begin = Client.generate.__code__.co_firstlineno
    skipped = skipped_release("self.slots", _place(), Sources(os.getpid()))
    assert skipped == {"function": "generate", "acquired": begin + 1, "released": begin + 3}
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        futures = [pool.submit(client.generate, "no number"), pool.submit(client.guarded, "no number")]
        concurrent.futures.wait(futures)
    found = failed_calls(skipped, [[_frame_with(futures)]])
    assert (found["count"], found["line"], found["function"]) == (1, begin + 2, "generate")
    assert found["raised"].startswith("ValueError: invalid literal")


def _frame_with(futures):
    return OwnFrame(sys._getframe())


@pytest.mark.parametrize("name", ["self.safe", "self.lock", "self.unknown"])
def test_a_release_that_nothing_skips_is_not_meant(name):
    assert skipped_release(name, _place(), Sources(os.getpid())) == {}


def test_the_sentence_says_what_was_skipped_and_why():
    failed = {"count": 3, "raised": "KeyError: 1", "file": "/x/job.py", "line": 14, "function": "generate"}
    skipped = {"function": "generate", "acquired": 13, "released": 16}
    wait = {"kind": "lock", "name": "lock", "key": "0x1", "skipped": skipped, "failed": failed}
    entry = {"wait": wait, "frames": []}
    said = why_lost(entry, wait, {"threads": [entry], "ended": [], "children": []}, {})
    assert said.endswith(
        "(generate acquires it in line 13 and releases it in line 16, which an exception in between skips: "
        "3 futures have failed there with KeyError: 1 at job.py:14 (generate))"
    )
