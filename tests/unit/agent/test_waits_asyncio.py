"""What asyncio tasks await, for each way of awaiting: seen in a loop of this process."""

import asyncio
import queue
import threading

import pytest

from rldbg.agent.waits.process_views import OwnProcess
from rldbg.agent.waits.snapshot import snapshot
from rldbg.live.diagnosis.wait_words import thing


async def _stream(items):
    while True:
        yield await items.get()


async def async_generator(made):
    items = made(asyncio.Queue())
    async for _ in _stream(items):
        pass


async def gathered_futures(made):
    reply = made(asyncio.get_running_loop().create_future())
    await asyncio.gather(reply, return_exceptions=True)


async def shielded_future(made):
    reply = made(asyncio.get_running_loop().create_future())
    await asyncio.shield(reply)


async def shielded_task(made):
    async def score():
        await asyncio.Event().wait()

    scoring = made(asyncio.create_task(score()))
    await asyncio.shield(scoring)


async def barrier(made):
    together = made(asyncio.Barrier(3))
    await together.wait()


async def in_a_thread(made):
    jobs = made(queue.Queue())
    await asyncio.to_thread(jobs.get)


AWAITED = {
    async_generator: ("queue_get", "an item of queue `items` (asyncio.Queue, empty)"),
    gathered_futures: ("future", "future `reply` to be completed"),
    shielded_future: ("future", "future `reply` to be completed"),
    shielded_task: ("task", "task `asyncio.shield(scoring)`"),
    barrier: ("barrier", "barrier `together`: 1 of 3 have arrived"),
    in_a_thread: ("future", "future `asyncio.to_thread(jobs.get)` to be completed"),
}


def _until(found):
    while not (seen := found()):
        pass
    return seen


class Loop:
    """A task in an event loop of another thread, until the test is over."""

    def __init__(self, function):
        self.made = []
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._run, args=(function,))
        self.thread.start()

    def _run(self, function):
        def made(value):
            self.made.append(value)
            return value

        self.task = self.loop.create_task(function(made), name=function.__name__)
        try:
            self.loop.run_until_complete(self.task)
        except asyncio.CancelledError:
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
        finally:
            self.loop.close()

    def waits(self, kind):
        """The snapshot in which the task waits for something of this kind, and that wait."""
        shown = frozenset(thread.ident for thread in threading.enumerate())
        facts = snapshot(OwnProcess(shown))
        own = [task["wait"] for task in facts["tasks"] if task["task"] == self.task.get_name()]
        return [(facts, wait) for wait in own if wait["kind"] == kind]

    def end(self):
        tasks = [self.task, *(value for value in self.made if isinstance(value, asyncio.Task))]
        # At once: the loop is closed as soon as its first task has ended.
        self.loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
        for value in self.made:
            if isinstance(value, queue.Queue):
                value.put(None)
        self.thread.join()


@pytest.mark.parametrize("function", AWAITED, ids=lambda function: function.__name__)
def test_what_is_awaited_is_named(function):
    kind, words = AWAITED[function]
    loop = Loop(function)
    try:
        _until(lambda: loop.made)
        ((_, wait),) = _until(lambda: loop.waits(kind))
        assert thing(wait) == words
    finally:
        loop.end()


def test_a_method_that_a_pool_runs_is_named_by_who_handed_it_over():
    loop = Loop(in_a_thread)
    try:
        _until(lambda: loop.made)

        def pooled():
            found = [thread["wait"] for facts, _ in loop.waits("future") for thread in facts["threads"]]
            return [wait for wait in found if wait.get("key") == f"{id(loop.made[0]):#x}"]

        (wait,) = _until(pooled)
        assert thing(wait) == "an item of queue `jobs` (queue.Queue, empty)"
    finally:
        loop.end()
