"""Objects read from memory are the objects that are there: this process reads its own, as it would read another's."""

import asyncio
import collections
import concurrent.futures
import ctypes
import io
import os
import queue
import threading

import pytest

from rldbg.agent.waits.outside import whole_process
from rldbg.agent.waits.processes.ended import raised_facts
from rldbg.agent.waits.reading import layout as layouts
from rldbg.agent.waits.reading.buffers import own_kind
from rldbg.agent.waits.reading.far_objects import FarObject, modules_of, object_at
from rldbg.agent.waits.reading.layout import measured_layout
from rldbg.agent.waits.reading.memory import ProcessMemory
from rldbg.agent.waits.reading.objects import OwnObject, chain_of, quoted
from rldbg.agent.waits.reading.process_views import FarProcess, OwnProcess, threads_of


class Slotted:
    __slots__ = ("inner",)


class Holder:
    shared = "of the class"

    def __init__(self):
        self.numbers = [1, -5, 2**40]
        self.names = {"a": 1, 2: "b", b"raw": None}
        self.items = collections.deque(range(200))
        self.some = {"x"}
        self.few = (1, "two")
        self.queue = queue.Queue(maxsize=3)
        self.lock = threading.RLock()
        self.slotted = Slotted()
        self.slotted.inner = "in a slot"
        self.raw = b"bytes"


@pytest.fixture(scope="module")
def layout():
    return measured_layout(os.getpid())


@pytest.fixture
def memory(layout):
    memory = ProcessMemory(os.getpid(), layout)
    yield memory
    memory.close()


@pytest.mark.parametrize("from_outside", [False, True])
def test_the_exception_that_a_thread_handles_is_seen(memory, from_outside):
    def fail():
        raise FloatingPointError("loss is nan")

    try:
        fail()
    except FloatingPointError:
        ident = threading.get_ident()
        view = FarProcess(memory) if from_outside else OwnProcess(frozenset({ident}))
        (seen,) = [raised_facts(each.handled) for each in view.threads() if each.ident == ident]
        assert seen["message"] == "FloatingPointError: loss is nan" and seen["place"]["function"].endswith("fail")
    assert not any(raised_facts(each.handled) for each in OwnProcess(frozenset({ident})).threads())


class Ring:
    """Memory in which each thread and each frame comes after itself, as it may look while a process runs."""

    minor, layout = 12, collections.defaultdict(int, frame_holder=-1)

    def interpreter(self):
        return 4096

    def word(self, address):
        return 4096

    def read(self, address, size):
        return bytes(size)

    def type_facts(self, address):
        return "object", 0


def test_threads_and_frames_that_look_like_a_ring_come_to_an_end():
    (thread,) = threads_of(Ring())
    assert thread.frames() == []


def test_attributes_and_elements_are_read(memory):
    held = Holder()
    held.queue.put("item")
    far = object_at(memory, id(held))
    assert (far.kind, far.bases()) == ("Holder", ("Holder", "object"))
    assert [each.number() for each in far.get("numbers").elements()] == held.numbers
    assert {name: value.kind for name, value in far.get("names").items()} == {"a": "int", "2": "str", "raw": "NoneType"}
    assert [each.number() for each in far.get("items").elements()] == list(range(200))
    assert [each.text() for each in far.get("some").elements()] == ["x"]
    assert far.get("few").elements()[1].text() == "two" and far.get("few").length() == 2
    assert far.get("queue").get("queue").elements()[0].text() == "item"
    assert far.get("queue").get("maxsize").number() == 3
    assert far.get("shared").text() == "of the class" and far.get("absent") is None
    assert far.get("slotted").get("inner").text() == "in a slot" and far.get("raw").text() == "bytes"


def test_the_owner_of_a_lock_is_read(memory):
    held = Holder()
    assert object_at(memory, id(held.lock)).owner() is None
    with held.lock:
        fresh = ProcessMemory(os.getpid(), memory.layout)
        assert FarObject(fresh, id(held.lock)).owner() == threading.get_ident() == OwnObject(held.lock).owner()
        fresh.close()


def test_frames_and_their_variables_are_read(memory):
    waiting, go_on, told = threading.Event(), threading.Event(), "closed over"

    def inner(argument):
        waiting.set()
        go_on.wait()
        return told, argument

    thread = threading.Thread(target=inner, args=(["given"],))
    thread.start()
    waiting.wait()
    try:
        far = next(each for each in threads_of(memory) if each.ident == thread.ident)
        frame = next(frame for frame in far.frames() if frame.function.endswith("inner"))
        assert frame.file == __file__ and far.native == thread.native_id
        assert frame.line in (inner.__code__.co_firstlineno + 1, inner.__code__.co_firstlineno + 2)
        assert frame.variable("argument").elements()[0].text() == "given"
        assert frame.variable("told").text() == "closed over"
        assert frame.variable("Holder").kind == "type" and frame.variable("nothing") is None
    finally:
        go_on.set()
        thread.join()


def test_tasks_and_what_they_await_are_read(layout):
    async def waits(future):
        await future

    async def outer(future):
        await waits(future)

    async def main():
        future = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(outer(future), name="a task")
        await asyncio.sleep(0)
        memory = ProcessMemory(os.getpid(), layout)
        far = object_at(memory, id(task))
        steps = [(step.frame.function.rpartition(".")[2], step.frame.line) for step in chain_of(far.get("_coro"))]
        own = [(s.frame.function.rpartition(".")[2], s.frame.line) for s in chain_of(OwnObject(task.get_coro()))]
        assert steps == own and [name for name, _ in steps] == ["outer", "waits"]
        assert far.get("_fut_waiter").address == id(future) and far.get("_name").text() == "a task"
        memory.close()
        future.set_result(None)
        await task

    asyncio.run(main())


def test_the_state_of_futures_and_tasks_is_read(layout):
    async def main():
        loop = asyncio.get_running_loop()
        ended, cancelled, task = loop.create_future(), loop.create_future(), asyncio.create_task(asyncio.sleep(9))
        ended.set_result(None)
        cancelled.cancel()
        task.cancel()
        await asyncio.wait([task])
        futures = {"PENDING": loop.create_future(), "FINISHED": ended, "CANCELLED": cancelled}
        of_a_pool = concurrent.futures.Future()
        # Each page is read once: what is made later may lie in one that was read before.
        memory = ProcessMemory(os.getpid(), layout)
        for state, future in [*futures.items(), ("CANCELLED", task)]:
            assert object_at(memory, id(future)).state() == state == OwnObject(future).state()
        assert object_at(memory, id(of_a_pool)).state() == "PENDING"
        assert object_at(memory, id(loop)).state() == ""
        memory.close()

    asyncio.run(main())


def test_an_exception_and_its_line_are_read(memory):
    def fails():
        raise ValueError("not a number")

    with pytest.raises(ValueError) as caught:
        fails()
    far = object_at(memory, id(caught.value))
    place = far.raised_in()[0]
    assert far.get("args").elements()[0].text() == "not a number"
    assert (place.function.rpartition(".")[2], place.line) == ("fails", fails.__code__.co_firstlineno + 1)


def test_modules_are_found_and_nonsense_is_absent(memory):
    assert modules_of(memory)["os"].get("name").text() == os.name
    assert object_at(memory, 0) is None and object_at(memory, 12345) is None and memory.read(1 << 61, 8) == b""


def test_measuring_files_in_the_users_process_touches_nothing_beside_them(monkeypatch):
    read = []
    monkeypatch.setattr(layouts, "_word", lambda address, word=layouts._word: read.append(address) or word(address))
    measured = layouts.measured_buffers.__wrapped__()
    assert len(read) <= (io.BufferedWriter.__basicsize__ + io.TextIOWrapper.__basicsize__) / 8
    assert 0 < measured["written_end"] < io.BufferedWriter.__basicsize__
    assert 0 < measured["text_pending"] < io.TextIOWrapper.__basicsize__


def test_a_users_class_with_the_name_of_a_file_is_not_read_as_one():
    class BufferedWriter(io.RawIOBase):
        pass

    assert own_kind(id(io.BufferedWriter(io.BytesIO()))) == "BufferedWriter"
    assert own_kind(id(BufferedWriter())) == ""


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("a text", "'a text'"),
        (b"step", "b'step'"),
        (b"\x84\x06\x00\xff", "bytes"),
        (3, None),
        ("x" * 200, f"'{'x' * 60}'"),
    ],
)
def test_of_bytes_that_are_no_text_nothing_is_shown(value, said):
    assert quoted(OwnObject(value), 60) == said


class OwnFile:
    """A file of the user's, of which nothing may be run."""

    readable = writable = seekable = lambda self: True
    tell = lambda self: 0  # noqa: E731
    closed = False

    def write(self, data):
        return len(data)

    def flush(self):
        pass

    def close(self):
        pass

    def fileno(self):
        raise AssertionError("code of the user was run")


def test_files_that_are_detached_or_the_users_own_have_no_descriptor():
    detached = io.TextIOWrapper(io.BytesIO())
    detached.detach()
    assert OwnObject(detached).descriptor() is None
    assert OwnObject(io.TextIOWrapper(OwnFile())).descriptor() is None
    with open(os.devnull, "w") as file:
        assert OwnObject(file).descriptor() == OwnObject(file.buffer).descriptor() == file.fileno()


def test_a_users_class_with_the_name_of_a_number_in_c_is_not_asked():
    class c_int:  # noqa: N801
        @property
        def value(self):
            raise AssertionError("code of the user was run")

    assert OwnObject(c_int()).number() is None
    assert OwnObject(ctypes.c_int(7)).number() == 7


def test_frames_that_were_read_at_two_moments_are_read_anew(memory, layout):
    def read():
        # GIVEN that the main thread ran meanwhile: one of its frames leads nowhere
        main = next(thread for thread in threads_of(memory) if thread.native == os.getpid())
        holder = main._state if layout["frame_holder"] < 0 else memory.word(main._state + layout["frame_holder"])
        place = memory.word(holder + layout["current_frame"]) + layout["frame_previous"]
        memory.read(place, 8)
        page = bytearray(memory._pages[place >> 12])
        page[place & 4095 : (place & 4095) + 8] = bytes(8)
        memory._pages[place >> 12] = bytes(page)
        assert FarProcess(memory).is_torn() and len(main.frames()) <= 1
        # THEN it is seen that the program is missing below it
        return whole_process(memory)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        whole = pool.submit(read).result()
        assert not pool.submit(whole.is_torn).result()
