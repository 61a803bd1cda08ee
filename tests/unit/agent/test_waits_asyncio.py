"""What asyncio tasks await, for each way of awaiting: seen in a loop of this process."""

import asyncio
import queue
import threading

import pytest

from rldbg.agent.waits.reading.process_views import OwnProcess
from rldbg.agent.waits.snapshot import snapshot
from rldbg.live.diagnosis.graph.wait_words import thing


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


async def given_by_a_function(made):
    events = {}

    def event_of(group):
        return events.setdefault(group, made(asyncio.Event()))

    await event_of("g").wait()


async def in_a_thread(made):
    jobs = made(queue.Queue())
    await asyncio.to_thread(jobs.get)


async def lock_in_a_thread(made):
    lock = made(threading.Lock())
    lock.acquire()
    await asyncio.to_thread(lock.acquire)


async def lock_in_a_pool(made):
    lock = made(threading.RLock())
    lock.acquire()
    await asyncio.get_running_loop().run_in_executor(None, lock.acquire)


async def simple_queue_in_a_thread(made):
    jobs = made(queue.SimpleQueue())
    await asyncio.to_thread(jobs.get)


HANDED_IN_C = {
    lock_in_a_thread: "lock `lock`",
    lock_in_a_pool: "lock `lock`",
    simple_queue_in_a_thread: "an item of queue `jobs` (SimpleQueue, empty)",
}


AWAITED = {
    async_generator: ("queue_get", "an item of queue `items` (asyncio.Queue, empty)"),
    gathered_futures: ("future", "future `reply` to be completed"),
    shielded_future: ("future", "future `reply` to be completed"),
    shielded_task: ("task", "task `asyncio.shield(scoring)`"),
    barrier: ("barrier", "barrier `together`: 1 of 3 have arrived"),
    given_by_a_function: ("event", "event `event_of('g')` to be set"),
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
            if isinstance(value, queue.Queue | queue.SimpleQueue):
                value.put(None)
            elif hasattr(value, "release"):
                self.loop.call_soon_threadsafe(value.release)
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


class Replies:
    """Each call keeps its future where the next one puts its own."""

    def __init__(self):
        self.reply, self.table = None, {}

    async def by_attribute(self, made):
        self.reply = made(asyncio.get_running_loop().create_future())
        await self.reply

    async def by_variable(self, made):
        reply = made(asyncio.get_running_loop().create_future())
        self.reply = reply
        await reply

    async def with_a_timeout(self, made):
        self.reply = made(asyncio.get_running_loop().create_future())
        await asyncio.wait_for(self.reply, 1000)

    async def shielded(self, made):
        self.reply = made(asyncio.get_running_loop().create_future())
        await asyncio.shield(self.reply)

    async def by_key(self, made, key=3):
        self.table[key] = made(asyncio.get_running_loop().create_future())
        await self.table[key]

    async def event(self, made):
        ready = self.reply = made(asyncio.Event())
        await ready.wait()

    async def handed_on(self, made):
        reply = made(asyncio.get_running_loop().create_future())
        self.reply = reply
        made(reply)
        await reply


@pytest.mark.parametrize("way", ["by_attribute", "by_variable", "with_a_timeout", "shielded", "by_key", "event"])
def test_what_nobody_finds_any_more_is_told(way):
    replies = Replies()
    kind = "event" if way == "event" else "future"
    loop = Loop(getattr(replies, way))
    try:
        _until(lambda: loop.made)
        ((_, wait),) = _until(lambda: loop.waits(kind))
        assert not wait.get("replaced")
        other = asyncio.Event() if way == "event" else loop.loop.create_future()
        if way == "shielded":
            other.set_result(None)
        replies.table[3] = replies.reply = other
        ((_, wait),) = _until(lambda: loop.waits(kind))
        assert wait["replaced"]
    finally:
        loop.end()


def test_what_was_handed_on_may_still_be_found():
    replies = Replies()
    loop = Loop(replies.handed_on)
    try:
        _until(lambda: len(loop.made) == 2)
        replies.reply = loop.loop.create_future()
        ((_, wait),) = _until(lambda: loop.waits("future"))
        assert not wait.get("replaced")
    finally:
        loop.end()


@pytest.mark.parametrize("function", HANDED_IN_C, ids=lambda function: function.__name__)
def test_a_method_in_c_that_a_pool_runs_is_seen_without_a_frame(function):
    loop = Loop(function)
    try:
        _until(lambda: loop.made)

        def pooled():
            found = [thread["wait"] for facts, _ in loop.waits("future") for thread in facts["threads"]]
            return [wait for wait in found if wait.get("key") == f"{id(loop.made[0]):#x}"]

        (wait,) = _until(pooled)
        assert thing(wait) == HANDED_IN_C[function] and wait["handed"]["function"] == function.__name__
    finally:
        loop.end()


class Trial:
    def __init__(self):
        self.lock = threading.Lock()

    async def run(self, made):
        await asyncio.to_thread(self.lock.acquire)
        try:
            await made(asyncio.Event()).wait()
        finally:
            self.lock.release()


def test_who_has_a_thread_acquire_a_lock_holds_it():
    trial = Trial()
    loop = Loop(trial.run)
    try:
        _until(lambda: loop.made)
        holding = [task for facts, _ in _until(lambda: loop.waits("event")) for task in facts["tasks"]]
        asking = threading.Thread(target=trial.lock.acquire)
        asking.start()
        found = _until(
            lambda: [
                task["holds"]
                for facts, _ in loop.waits("event")
                if any(thread["wait"].get("key") == f"{id(trial.lock):#x}" for thread in facts["threads"])
                for task in facts["tasks"]
            ]
        )
        assert holding and [each["name"] for each in found[0]] == ["self.lock"]
    finally:
        loop.end()
        asking.join()


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
