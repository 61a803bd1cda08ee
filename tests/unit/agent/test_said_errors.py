"""What the agent keeps of the errors that a program logs and prints; the program notices nothing."""

import asyncio
import importlib.util
import logging
import threading
import traceback
from concurrent.futures.process import _ExceptionWithTraceback
from types import SimpleNamespace

import pytest

from rldbg.agent.said_errors import SaidErrors


class Log:
    """A logger of a class of its own, and a copy of `traceback`, so that those of the test run stay as they are."""

    def __init__(self):
        self.wakes, self.records = [], []
        self.said = SaidErrors(wake=lambda: self.wakes.append(1))
        logger_class = type("OwnLogger", (logging.Logger,), {"makeRecord": logging.Logger.makeRecord})
        self.said.watch_logging(SimpleNamespace(Logger=logger_class))
        self.logger = logger_class("engine")
        handler = logging.Handler()
        handler.emit = self.records.append
        self.logger.addHandler(handler)
        spec = importlib.util.find_spec("traceback")
        self.traceback = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.traceback)
        self.said.watch_traceback(self.traceback)

    def facts(self):
        return self.said.facts(None)


@pytest.fixture
def log():
    return Log()


def score(text):
    return int(text)


def handle(say):
    try:
        score("four")
    except ValueError as error:
        say(error)


def test_an_exception_that_is_logged_is_kept_with_where_it_was_raised_and_caught(log):
    handle(lambda _: log.logger.exception("a request failed"))
    (said,) = log.facts()
    assert said["message"] == "ValueError: invalid literal for int() with base 10: 'four'" and not said["logged"]
    assert said["place"]["function"] == "score" and said["caught"]["function"] == "handle"
    assert said["thread"] == "MainThread" and said["ident"] == threading.get_ident() and said["ago_s"] >= 0.0
    assert log.wakes == [1]


@pytest.mark.parametrize("level", ["error", "warning"])
def test_the_exception_that_is_handled_counts_where_only_its_text_is_logged(log, level):
    handle(lambda error: getattr(log.logger, level)("failed: %s", error))
    assert log.facts()[0]["caught"]["function"] == "handle"


def test_what_ends_a_process_is_kept_without_anybody_who_caught_it(log):
    with pytest.raises(ValueError) as raised:
        score("four")
    error = raised.value.with_traceback(raised.tb.tb_next)
    log.said.keep(error)
    (said,) = log.facts()
    assert said["message"].startswith("ValueError") and said["place"]["function"] == "score" and not said["caught"]


def test_what_is_no_error_is_not_kept(log):
    handle(lambda error: log.logger.info("expected: %s", error))
    log.logger.warning("slow")
    assert log.facts() == [] and not log.wakes


def test_an_error_without_an_exception_is_kept_with_its_line(log):
    log.logger.error("request %s is dropped", 7)
    (said,) = log.facts()
    assert said["message"] == "ERROR: request 7 is dropped" and said["logged"]
    assert said["caught"]["file"] == __file__


def test_who_has_logged_is_found_as_before(log):
    log.logger.error("failed")
    assert log.records[0].funcName == "test_who_has_logged_is_found_as_before"


def test_tracebacks_that_the_program_formats_are_kept_and_are_the_same(log):
    shown = []
    handle(lambda _: shown.append((log.traceback.format_exc(), traceback.format_exc())))
    assert shown[0][0] == shown[0][1] and log.facts()[0]["caught"]["function"] == "handle"


def test_what_is_formatted_and_logged_is_one_error(log):
    handle(lambda _: log.logger.error(log.traceback.format_exc()))
    assert len(log.facts()) == 1


def test_what_the_standard_library_formats_for_the_caller_is_not_kept(log, monkeypatch):
    monkeypatch.setattr("concurrent.futures.process.traceback", log.traceback, raising=False)
    handle(lambda error: _ExceptionWithTraceback(error, error.__traceback__))
    assert log.facts() == []


class UnspeakableError(Exception):
    def __str__(self):
        raise RuntimeError("no words")


class LoggingError(Exception):
    def __init__(self, logger):
        super().__init__()
        self.logger = logger

    def __str__(self):
        self.logger.error("asked for its text", exc_info=self)
        return "said"


def test_texts_of_exceptions_disturb_nobody(log):
    for error in (UnspeakableError(), LoggingError(log.logger)):
        log.logger.error("failed", exc_info=error)
    assert [each["message"] for each in log.facts()] == ["LoggingError: said"]


def test_the_memory_is_bounded(log):
    def fail_often():
        for number in range(10):
            log.logger.error("%s", number)

    for _ in range(100):
        thread = threading.Thread(target=fail_often)
        thread.start()
        thread.join()
    log.logger.error("x" * 100_000)
    facts = log.facts()
    assert len(facts) <= 64 * 3 and max(len(each["message"]) for each in facts) <= 300


def test_tasks_are_told_apart(log):
    async def fail(name):
        log.logger.error(name)

    async def both():
        await asyncio.gather(*(asyncio.create_task(fail(name), name=name) for name in ("first", "second")))

    asyncio.run(both())
    assert {(each["task"], each["message"]) for each in log.facts()} == {
        ("first", "ERROR: first"),
        ("second", "ERROR: second"),
    }


def test_a_forked_child_has_said_nothing_yet(log):
    log.logger.error("failed")
    log.said.forget()
    assert log.facts() == [] and not log.said.is_any
