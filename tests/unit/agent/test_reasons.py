"""Why what would end a wait has not happened: conditions that do not hold, releases that are skipped."""

import concurrent.futures
import os
import queue
import sys
import threading

import pytest

from rldbg.agent.waits.code.reasons import guard
from rldbg.agent.waits.code.source import Sources
from rldbg.agent.waits.others.skipped import failed_calls, skipped_return
from rldbg.agent.waits.reading.objects import OwnFrame
from rldbg.live.diagnosis.graph.lost_waits import why_lost
from rldbg.live.diagnosis.graph.skipped_steps import ways_text

SET = frozenset({"set"})


class Gate:
    def __init__(self, parties):
        self.parties, self.names = parties, ["a", "b"]
        self.open, self.always, self.either = threading.Event(), threading.Event(), threading.Event()
        self.state, self.current = {"version": 2}, threading.Event()
        self.wanted, self.seen, self.met = frozenset({0}), [2, "b"], threading.Event()

    def arrive(self):
        if len(self.names) == self.parties:
            for _ in range(1):
                self.open.set()
        return OwnFrame(sys._getframe())

    def if_current(self):
        if self.state["version"] >= self.parties:
            self.current.set()

    def in_any_case(self):
        if self.parties:
            self.parties = 0
        self.always.set()

    def one_of_two(self):
        if self.parties:
            self.either.set()
        else:
            self.either.set()

    def if_met(self):
        if self.wanted <= self.seen:
            self.met.set()


@pytest.mark.parametrize(
    ("name", "function", "said"),
    [
        (
            "self.open",
            "arrive:26",
            "`len(self.names) == self.parties` (len(self.names) = 2, self.parties = 3)",
        ),
        (
            "self.current",
            "if_current:32",
            "`self.state['version'] >= self.parties` (self.state['version'] = 2, self.parties = 3)",
        ),
        ("self.met", "if_met:46", "`self.wanted <= self.seen` (self.wanted = {0}, self.seen = [2, 'b'])"),
        ("self.always", "in_any_case:36", ""),
        ("self.either", "one_of_two:40", ""),
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
    skipped = skipped_return("semaphore", "self.slots", [_place().file], Sources(os.getpid()))
    lines = {"acquired": begin + 1, "released": begin + 3}
    assert skipped == {"function": "generate", "left_by": ["exception"]} | lines
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
    assert skipped_return("lock", name, [_place().file], Sources(os.getpid())) == {}


class Early:
    """Releases that an exit from the function or the loop skips, and some that nothing skips."""

    def __init__(self):
        self.early, self.kept, self.rounds, self.over, self.handled = (threading.Semaphore(1) for _ in range(5))

    def generate_some(self, text):
        self.early.acquire()
        if not text:
            return None
        self.early.release()
        return text

    def in_any_case(self, text):
        self.kept.acquire()
        if not text:
            self.kept.release()
            return None
        self.kept.release()
        return text

    def several(self, texts):
        for text in texts:
            self.rounds.acquire()
            if not text:
                continue
            self.rounds.release()

    def outside(self, texts):
        self.over.acquire()
        for text in texts:
            if text:
                continue
        self.over.release()

    def failing(self, text):
        self.handled.acquire()
        try:
            if not text:
                return None
            found = int(text)
            self.handled.release()
        except ValueError:
            self.handled.release()
            raise
        return found


@pytest.mark.parametrize(
    ("name", "function", "left_by"),
    [
        ("self.early", Early.generate_some, ["`if not text: return` in line {2}", "exception"]),
        ("self.kept", Early.in_any_case, ["exception"]),
        ("self.rounds", Early.several, ["`if not text: continue` in line {3}", "exception"]),
        ("self.over", Early.outside, ["exception"]),
        ("self.handled", Early.failing, ["`if not text: return` in line {3}"]),
    ],
)
def test_exits_that_skip_a_release_are_told_with_their_lines(name, function, left_by):
    begin = function.__code__.co_firstlineno
    lines = [f"{begin + number}" for number in range(9)]
    skipped = skipped_return("semaphore", name, [_place().file], Sources(os.getpid()))
    assert skipped["function"] == function.__name__
    assert skipped["left_by"] == [way.format(*lines) for way in left_by]


@pytest.mark.parametrize(
    ("left_by", "said"),
    [
        (["return in line 8"], "the return in line 8 skips"),
        (["return in line 8", "break in line 9"], "the return in line 8 or the break in line 9 skip"),
        (["return in line 8", "exception"], "the return in line 8, or an exception in between, skips"),
        (["exception"], "an exception in between skips"),
    ],
)
def test_what_skips_a_release_is_said(left_by, said):
    assert ways_text({"left_by": left_by}) == said


class Sandboxes:
    def __init__(self):
        self.free, self.jobs, self.kept, self.others = (queue.Queue() for _ in range(4))

    def borrow(self):
        return self.free.get()

    def give_back(self, sandbox):
        self.free.put(sandbox)

    async def score(self, text):
        judge = await self.others.get()
        reward = judge(text)
        await self.others.put(judge)
        return reward

    def work(self):
        job = self.jobs.get()
        following = job + 1
        self.jobs.put(following)

    def safely(self):
        item = self.kept.get()
        try:
            return item()
        finally:
            self.kept.put(item)


class Agent:
    def __init__(self, sandboxes):
        self.sandboxes = sandboxes

    def episode(self, text):
        sandbox = self.sandboxes.borrow()
        output = int(text)
        self.sandboxes.give_back(sandbox)
        return output


@pytest.mark.parametrize(
    ("name", "function", "lines"), [("self.free", Agent.episode, (1, 3)), ("self.others", Sandboxes.score, (1, 3))]
)
def test_an_item_that_an_exception_keeps_from_being_put_back_is_found(name, function, lines):
    skipped = skipped_return("queue_get", name, [_place().file], Sources(os.getpid()))
    begin = function.__code__.co_firstlineno
    assert skipped == {
        "function": function.__name__,
        "acquired": begin + lines[0],
        "released": begin + lines[1],
        "left_by": ["exception"],
    }
    wait = {"kind": "queue_get", "name": name, "key": "0x1", "skipped": skipped, "failed": {}}
    wait |= {"functions": ["give_back:1"], "later": {"who": "t", "main": False, "calls": "give_back"}}
    entry = {"wait": wait, "frames": []}
    said = why_lost(entry, wait, {"threads": [entry], "ended": [], "children": []}, {})
    assert said.endswith(
        f"{function.__name__} takes one in line {begin + 1} and puts it back in line {begin + 3}, which an exception "
        "in between skips"
    )


@pytest.mark.parametrize("name", ["self.jobs", "self.kept", "self.unknown"])
def test_a_queue_that_is_no_pool_or_is_given_its_items_back_in_any_case_is_not_meant(name):
    assert skipped_return("queue_get", name, [_place().file], Sources(os.getpid())) == {}


def test_the_sentence_says_what_was_skipped_and_why():
    failed = {"count": 3, "raised": "KeyError: 1", "file": "/x/job.py", "line": 14, "function": "generate"}
    skipped = {"function": "generate", "acquired": 13, "released": 16, "left_by": ["exception"]}
    wait = {"kind": "lock", "name": "lock", "key": "0x1", "skipped": skipped, "failed": failed}
    entry = {"wait": wait, "frames": []}
    said = why_lost(entry, wait, {"threads": [entry], "ended": [], "children": []}, {})
    assert said.endswith(
        "(generate acquires it in line 13 and releases it in line 16, which an exception in between skips: "
        "3 futures have failed there with KeyError: 1 at job.py:14 (generate))"
    )
