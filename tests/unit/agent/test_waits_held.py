"""Which locks a line holds, for each way in which code takes locks; the programs are stopped at `here()`."""

import contextlib
import sys
import textwrap
import threading

import pytest
from filelock import FileLock

from rldbg.agent.waits.calls.looking import lock_key
from rldbg.agent.waits.code.source import Sources
from rldbg.agent.waits.others.held_locks import held_locks
from rldbg.agent.waits.reading.objects import OwnFrame, OwnObject

GUARD = """
class Guard:
    def __init__(self): self.inner = threading.Lock()
    def __enter__(self):
        self.inner.acquire()
        return self
    def __exit__(self, *_): self.inner.release()
g = Guard()
"""
HELPERS = """
@contextmanager
def guarded(lock):
    lock.acquire()
    try:
        yield
    finally:
        lock.release()

@contextmanager
def both(first, second):
    with first:
        with guarded(second):
            yield

@contextmanager
def briefly(lock):
    with lock:
        pass
    yield

def take(lock): lock.acquire()
def give(lock): lock.release()
async def take_later(lock): lock.acquire()
"""
# What the program does, and what it holds while it is in `here`.
PROGRAMS = {
    "a block": ("with a:\n    here()", {"a"}),
    "a block on one line": ("with a: here()", {"a"}),
    "two at once": ("with a, b:\n    here()", {"a", "b"}),
    "a block that is over": ("with a: pass\nhere()", set()),
    "acquired": ("a.acquire()\nhere()", {"a"}),
    "acquired and released": ("a.acquire()\na.release()\nhere()", set()),
    "acquired on the same line": ("a.acquire(); here()", {"a"}),
    "acquired in a condition": ("while not a.acquire(timeout=1): pass\nhere()", {"a"}),
    "an exit stack": ("with ExitStack() as stack:\n    stack.enter_context(a)\n    here()", {"a"}),
    "a context manager": ("with guarded(a):\n    here()", {"a"}),
    "a context manager on one line": ("with guarded(b): here()", {"b"}),
    "a context manager with blocks": ("with both(a, b):\n    here()", {"a", "b"}),
    "a context manager with a block that is over": ("with briefly(a):\n    here()", set()),
    "a class of the user": ("with g:\n    here()", {"g.inner"}),
    "a function that takes": ("take(b)\nhere()", {"b"}),
    "a function that gives back": ("take(b)\ngive(b)\nhere()", set()),
    "a coroutine that another task runs": ("later = take_later(a)\nhere()\nlater.close()", set()),
    "the lock of a shared value": ("with shared.get_lock():\n    here()", {"shared.get_lock()"}),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_a_line_holds(tmp_path, name):
    body, expected = PROGRAMS[name]
    heading = "import multiprocessing, threading\nfrom contextlib import ExitStack, contextmanager\n"
    made = 'a, b = threading.Lock(), threading.Lock()\nshared = multiprocessing.Value("i")\n'
    file = tmp_path / "program.py"
    file.write_text(f"{heading}{made}{GUARD}{HELPERS}\ndef main():\n{textwrap.indent(body, '    ')}\n")
    seen = []

    def here():
        frame = OwnFrame(sys._getframe(1))
        seen.extend(each["name"] for each in held_locks([OwnFrame(sys._getframe()), frame], Sources(0), set()))

    scope = {"__name__": "program", "here": here}
    exec(compile(file.read_text(), str(file), "exec"), scope)
    scope["main"]()
    assert set(seen) == expected


@pytest.mark.parametrize(
    ("loop", "endless"), [("for _ in [1]:", False), ("while not done():", False), ("while True:", True)]
)
def test_a_lock_is_held_for_ever_only_in_an_endless_loop(tmp_path, loop, endless):
    file = tmp_path / "program.py"
    file.write_text(f"def main():\n    with a:\n        {loop}\n            here()\n")
    seen = []

    def here():
        seen.extend(held_locks([OwnFrame(sys._getframe(1))], Sources(0), set()))
        if endless:
            raise StopIteration

    scope = {"a": threading.Lock(), "here": here, "done": lambda: seen}
    exec(compile(file.read_text(), str(file), "exec"), scope)
    with contextlib.suppress(StopIteration):
        scope["main"]()
    assert [each["loops"] for each in seen] == [endless]


def test_what_a_line_waits_for_it_does_not_hold(tmp_path):
    file = tmp_path / "program.py"
    file.write_text("def main():\n    with a, b: look()\n")
    seen = {}

    def look():
        frame = OwnFrame(sys._getframe(1))
        for name in "ab":
            wanted = {lock_key(OwnObject(scope[name]), name)}
            seen[name] = [each["name"] for each in held_locks([frame], Sources(0), wanted)]

    scope = {"a": threading.Lock(), "b": threading.Lock(), "look": look}
    exec(compile(file.read_text(), str(file), "exec"), scope)
    scope["main"]()
    assert seen == {"a": [], "b": ["a"]}


def test_a_lock_on_a_file_is_known_by_the_file_whatever_object_stands_for_it(tmp_path):
    path = str(tmp_path / "a.lock")

    def by_call():
        with FileLock(path):
            return held_locks([OwnFrame(sys._getframe())], Sources(0), set())

    def by_name():
        own = FileLock(path)
        with own:
            return held_locks([OwnFrame(sys._getframe())], Sources(0), set())

    for found in (by_call(), by_name()):
        assert [each["key"] for each in found] == [f"file:{path}"]
    assert lock_key(OwnObject(FileLock(path, thread_local=False)), "any") == f"file:{path}"
