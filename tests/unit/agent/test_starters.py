"""Who was started to run a function, from the lines that start it: threads, processes, tasks, work of pools."""

import asyncio
import os
import sys
import threading

import pytest

from rldbg.agent.waits.code.source import Sources
from rldbg.agent.waits.code.starters import SourceLine, starters, starts_ahead
from rldbg.agent.waits.reading.objects import OwnFrame
from rldbg.live.diagnosis.graph.lost_waits import why_lost


def produce(items):
    items.append(1)


async def fetch(items):
    items.append(1)


class Engine:
    def __init__(self, items):
        self.items = items

    def loop(self):
        self.items.append(1)


def by_thread(items):
    threading.Thread(target=produce, args=(items,), name="loader").start()
    return sys._getframe()


def by_thread_in_a_block(items):
    with threading.Lock():
        thread = threading.Thread(None, Engine(items).loop, name="engine-loop")
        thread.start()
    return sys._getframe()


def by_thread_that_may_not_start(items):
    if not items:
        threading.Thread(target=produce, args=(items,), name="maybe").start()
    return sys._getframe()


def by_pool(items, pool):
    pool.submit(produce, items)
    return sys._getframe()


async def by_task(items):
    task = asyncio.create_task(fetch(items), name="fetcher")
    await task
    return sys._getframe()


def by_another(items):
    threading.Thread(target=sorted, args=(items,), name="sorter").start()
    return sys._getframe()


class Pool:
    def submit(self, function, items):
        function(items)


CASES = {
    by_thread: ("produce:18", {"what": "thread", "name": "loader", "passed": True}),
    by_thread_in_a_block: ("loop:30", {"what": "thread", "name": "engine-loop", "passed": True}),
    by_thread_that_may_not_start: ("produce:18", {"what": "thread", "name": "maybe", "passed": False}),
    by_pool: ("produce:18", {"what": "work of a pool", "name": "", "passed": True}),
    by_task: ("fetch:22", {"what": "task", "name": "fetcher", "passed": True}),
}


def _frame(function):
    if function is by_pool:
        return OwnFrame(by_pool([], Pool()))
    return OwnFrame(asyncio.run(function([])) if function is by_task else function([]))


@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_who_was_started_for_a_function_is_found(function):
    name, expected = CASES[function]
    frame = _frame(function)
    first = function.__code__.co_firstlineno
    found = starters([name], frame, [frame], Sources(os.getpid()))
    own = [each for each in found if first <= each.pop("line") <= frame.line]
    assert any(expected.items() <= each.items() for each in own), own


def test_who_runs_another_function_is_not_meant():
    frame = _frame(by_another)
    assert "sorter" not in {each["name"] for each in starters(["produce:18"], frame, [frame], Sources(os.getpid()))}


def test_a_lock_is_told_with_who_took_it_and_has_ended():
    started = [{"what": "thread", "name": "writer", "line": 7, "passed": True, "runs": "save"}]
    wait = {"kind": "lock", "name": "lock", "key": "0x1", "takers": ["save:5"], "starters": started}
    thread = {"wait": wait, "frames": [{"function": "step"}]}
    stack = {"threads": [thread], "tasks": [], "ended": [], "children": []}
    said = why_lost(thread, wait, stack, {})
    assert "save (line 5) acquires it, and does not release it itself" in said
    assert said.endswith("; thread writer (started in line 7 to run it) has ended")
    # Who runs the function is there.
    other = {"thread": "writer", "frames": [{"function": "save"}], "wait": {"kind": "sleep"}}
    assert "started in line" not in why_lost(thread, wait, stack | {"threads": [thread, other]}, {})
    # A process that remembers its thread says so itself.
    gone = stack | {"ended": [{"kind": "thread", "name": "writer"}]}
    assert why_lost(thread, wait, gone, {}).endswith("; thread writer has ended")


PROGRAM = """
import threading

def work(): ...

def begin():
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads: thread.join()

def rounds():
    while True:
        threading.Thread(target=work).start()
        work()

def either(fast):
    if fast:
        work()
    else:
        threading.Thread(target=work).start()

def later():
    work()
    begin()

begin()
"""


@pytest.mark.parametrize(
    ("stack", "found"),
    [
        # THEN what a function has started that has not returned is not started again by who called it
        ([("begin", 8), ("<module>", 25)], []),
        ([("<module>", 24)], [(7, False)]),
        ([("rounds", 13)], [(12, True)]),
        ([("either", 17)], []),
        ([("either", 16)], [(19, False)]),
    ],
)
def test_what_current_functions_will_still_start(tmp_path, stack, found):
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    frames = [SourceLine(str(file), line, function) for function, line in stack]
    ahead = starts_ahead(frames, Sources(os.getpid()))
    assert [(each["line"], each["again"]) for each in ahead] == found
