"""Waits of programs that only serve: for a signal, or for an object that nobody else can have."""

import asyncio
import os
import signal
import sys
import threading

import pytest

from rldbg.agent.waits.code.reasons import ended_by_signal, is_kept_to_itself, is_nobody_elses
from rldbg.agent.waits.code.source import Sources
from rldbg.agent.waits.reading.objects import OwnFrame

SET = frozenset({"set"})


def _never(*_):
    """In place of a wait: the frame stands at its line."""
    return sys._getframe(1)


class Event:
    wait = staticmethod(_never)


async def made_on_the_line():
    return await asyncio.sleep(0, Event().wait())


def made_on_the_line_of_a_thread():
    return Event().wait()


def by_lambda(stop):
    signal.signal(signal.SIGTERM, lambda *_: stop.set())


def by_method(loop, killed):
    loop.add_signal_handler(signal.SIGTERM, killed.set)


class Server:
    def __init__(self):
        self.ending = threading.Event()
        signal.signal(signal.SIGTERM, self.on_term)

    def on_term(self, *_):
        self.ending.set()

    def on_request(self):
        self.served.set()


def kept_to_itself():
    stop = Event()
    return stop.wait()


def given_away():
    stop = Event()
    print(stop)
    return stop.wait()


def set_by_a_handler():
    stop = Event()
    _never(lambda *_: stop.set())
    return stop.wait()


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (made_on_the_line, True),
        (made_on_the_line_of_a_thread, True),
        (kept_to_itself, False),
    ],
)
def test_an_object_that_is_made_where_it_is_waited_for_is_nobody_elses(function, expected):
    frame = asyncio.run(function()) if function is made_on_the_line else function()
    assert is_nobody_elses(OwnFrame(frame), Sources(os.getpid())) is expected


@pytest.mark.parametrize(
    ("function", "expected"), [(kept_to_itself, True), (given_away, False), (set_by_a_handler, False)]
)
def test_an_event_that_is_given_to_nobody_is_kept_to_itself(function, expected):
    assert is_kept_to_itself("stop", OwnFrame(function()), Sources(os.getpid())) is expected


@pytest.mark.parametrize(
    ("name", "functions", "expected"),
    [
        ("stop", [], True),
        ("killed", [], True),
        ("self.ending", ["on_term:55"], True),
        ("self.served", ["on_request:58"], False),
        ("loaded", [], False),
    ],
)
def test_the_handler_of_a_signal_ends_a_wait(name, functions, expected):
    assert ended_by_signal(OwnFrame(_never()), name, functions, SET, Sources(os.getpid())) is expected
