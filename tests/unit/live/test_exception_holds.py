"""Which exceptions of a run are held."""

import asyncio
import ctypes
import json
from types import SimpleNamespace

import pytest

from rldbg.agent.post_mortem import (
    forwarded_headline,
    headline,
    is_control_flow,
    is_one_of,
    is_start_failure,
    origins,
    raising_line,
)
from rldbg.live.broker.exception_holds import ExceptionHolds
from rldbg.live.broker.kept_files import KeptFiles
from rldbg.live.broker.processes import Process
from rldbg.reports.processes import notes


class RayTaskError(Exception):
    """As Ray words the errors that it hands on."""


def _crashed(number, pid, address, **more):
    crash = {"exception": f"E at {number}", "wait_s": 60.0, "where": "process", "node_address": address, "origins": []}
    return Process(number, {"pid": pid}, who=f"worker/{number}", crash=crash | more)


def test_an_error_that_ray_hands_on_is_one_stop_with_that_of_its_worker_only():
    """Two nodes number their processes independently."""
    worker, namesake = _crashed(1, 700, "10.0.0.1"), _crashed(2, 700, "10.0.0.2")
    told = origins(RayTaskError("ray::Actor.step() (pid=700, ip=10.0.0.2, actor_id=5a)\nValueError: no"))
    driver = _crashed(3, 90, "10.0.0.1", origins=told)
    holds = ExceptionHolds([worker, namesake, driver])
    assert "hold_s" in holds.decide(worker)
    assert "hold_s" in holds.decide(driver), "the process of that number on another node raised something else"
    assert "hold_s" in holds.decide(namesake)
    assert holds.decide(driver) == {"held": ["worker/1", "worker/2", "worker/3"]}


def test_a_forwarded_error_is_told_by_what_was_raised():
    forwarded = RayTaskError(
        "\x1b[36mray::Actor.step()\x1b[39m (pid=700)\n  File a.py\nValueError: no ValueError: here"
    )
    forwarded.cause = ValueError("no ValueError: here")
    assert headline(forwarded, str(forwarded)) == "RayTaskError: no ValueError: here"
    assert headline(KeyError("x"), "'x'") == "KeyError: 'x'"
    assert headline(ValueError("???"), "???") == "ValueError: ???"
    report = "\n=====\ntrain.py FAILED\n-----"
    assert headline(ValueError(report), report).partition("\n")[0] == "ValueError: train.py FAILED"


def test_the_time_that_is_left_is_shown_as_it_shrinks(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("rldbg.live.broker.exception_holds.time", SimpleNamespace(monotonic=lambda: clock[0]))
    first, second = _crashed(1, 700, ""), _crashed(2, 701, "", wait_s=0.0)
    holds = ExceptionHolds([first, second])
    holds.decide(first)
    holds.decide(second)
    clock[0] += 25.0
    assert [holds.facts(each)["hold_left_s"] for each in (first, second)] == [35.0, None]
    # WHEN it was let go THEN it is not said to be held, and what is left for others is
    at_exception = holds.facts(first) | {"reason": "exception"}
    assert list(notes([at_exception])) == ["worker/1: held; 35 s are left for all exceptions of this run"]
    assert list(notes([holds.facts(first)])) == [
        "worker/1: no longer held; 35 s are left for all exceptions of this run"
    ]


class GroupTaskError(RayTaskError, ExceptionGroup):
    """As Ray makes them of a worker's group: of its class too, with a text that names no process."""

    def __new__(cls, cause):
        return super().__new__(cls, cause.message, cause.exceptions)

    def __init__(self, cause):
        self.cause = cause


GroupTaskError.__name__ = "RayTaskError(ExceptionGroup)"
GROUP_TEXT = """+ Exception Group Traceback (most recent call last):
  |   File "train.py", line 5, in step
  | ExceptionGroup: many (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | ValueError: one
    +---------------- 2 ----------------
    | ExceptionGroup: inner (1 sub-exception)
"""


def _group():
    return ExceptionGroup("many", [ValueError("one"), ExceptionGroup("inner", [KeyError("two")])])


def test_a_group_that_ray_hands_on_is_one_stop_with_that_of_its_worker():
    raised, forwarded = _group(), GroupTaskError(_group())
    in_worker = headline(raised, str(raised))
    in_driver = headline(forwarded, GROUP_TEXT)
    assert in_driver == "RayTaskError(ExceptionGroup): many (2 sub-exceptions)"
    worker = _crashed(1, 700, "10.0.0.1", message=in_worker, forwards=forwarded_headline(raised, in_worker))
    driver = _crashed(2, 90, "10.0.0.1", message=in_driver, forwards=forwarded_headline(forwarded, in_driver))
    other = _crashed(3, 91, "10.0.0.1", message="KeyError: 'x'", forwards="")
    holds = ExceptionHolds([worker, driver, other])
    assert "hold_s" in holds.decide(worker)
    assert holds.decide(driver) == {"held": ["worker/1"]}
    assert "hold_s" in holds.decide(other)


def test_a_group_of_timeouts_alone_is_a_timeout():
    timeouts = ExceptionGroup("unhandled errors in a TaskGroup", [TimeoutError(), asyncio.QueueEmpty()])
    assert is_control_flow(timeouts) and not is_control_flow(_group())
    assert is_one_of(_group(), ("ValueError", "KeyError")) and not is_one_of(_group(), ("ValueError",))


def _reads(text):
    try:
        json.loads(text)
    except ValueError as error:
        return raising_line(error)


def _reads_elsewhere(text):
    try:
        json.loads(text)
    except ValueError as error:
        return raising_line(error)


def test_what_the_standard_library_raises_for_two_lines_is_of_two_kinds():
    assert _reads("{") == _reads("{") != _reads_elsewhere("{")
    assert "JSONDecodeError at " in _reads("{") and __file__ in _reads("{")


def test_an_error_that_was_handled_does_not_take_the_hold_of_the_fatal_one(monkeypatch):
    # GIVEN an error of a task that used up all the time, and was handled
    clock = [100.0]
    monkeypatch.setattr("rldbg.live.broker.exception_holds.time", SimpleNamespace(monotonic=lambda: clock[0]))
    task, other = _crashed(1, 700, "", where="task"), _crashed(2, 701, "", where="task")
    driver, rank = _crashed(3, 702, ""), _crashed(4, 703, "")
    holds = ExceptionHolds([task, other, driver, rank])
    assert holds.decide(task) == {"hold_s": 60.0}
    following = holds.follow(task)
    task.ended_at = clock[0] = 160.0
    asyncio.run(following)
    # WHEN another task fails THEN nothing is left; the exception that ends the driver has its share of the time
    assert "used up" in holds.decide(other)["reason"]
    assert holds.decide(driver) == {"hold_s": 30.0}
    clock[0] += 30.0
    assert "used up" in holds.decide(rank)["reason"]


def _raised(code):
    try:
        exec(code, {})
    except (ImportError, RuntimeError, SyntaxError, OSError, ZeroDivisionError) as error:
        return error
    return None


def _missing_library():
    try:
        ctypes.CDLL("libnowhere.so.1")
    except OSError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (_raised("import no_such_module"), True),
        (_raised("try:\n import no_such\nexcept ImportError as e:\n raise RuntimeError('install it') from e"), True),
        (_missing_library(), True),
        (SyntaxError("invalid syntax", ("pkg/model.py", 3, 1, "def")), True),
        (_raised("eval('1 +')"), False),
        (_raised("open('/no/such/file')"), False),
        (_raised("try:\n import no_such\nexcept ImportError:\n 1 / 0"), False),
    ],
)
def test_what_cannot_be_loaded_is_a_failure_of_the_start(error, expected):
    assert is_start_failure(error) == expected


def test_of_methods_of_an_actor_that_fail_together_the_held_one_is_shown():
    actor = Process(1, {"pid": 700}, who="a")
    crashes = [
        {"message": f"async {n}", "exception": "ValueError at a.py:3", "wait_s": 60.0, "where": "task"}
        for n in range(3)
    ]
    holds = ExceptionHolds([actor])
    # GIVEN three that come before the first is decided
    for crash in crashes:
        holds.note(actor, crash)
    assert actor.to_dict()["message"] == "async 0"
    assert ["hold_s" in holds.decide(actor, crash) for crash in crashes] == [True, False, False]
    # THEN what is shown is what is held, also after a later one of another kind that is not
    holds.note(actor, later := crashes[0] | {"message": "later", "wait_s": 0.0})
    holds.decide(actor, later)
    facts = holds.facts(actor)
    assert facts["message"] == "async 0" and facts["hold"].startswith("held for up to 60 s")
    assert round(facts["hold_left_s"]) == 60
    # AND what ends the process is shown in any case
    holds.note(actor, fatal := crashes[0] | {"message": "fatal", "where": "process"})
    holds.decide(actor, fatal)
    assert actor.to_dict()["message"] == "fatal"


@pytest.mark.parametrize(("where", "shown"), [("thread", None), ("process", "train.py")])
def test_a_process_that_runs_again_is_not_shown_where_it_raised(where, shown):
    place = {"file": "train.py", "line": 7, "function": "load", "message": "ValueError: no"}
    facts = _crashed(1, 700, "", where=where, **place).to_dict()
    assert (facts["file"], facts["message"]) == (shown, "ValueError: no")


def test_a_broker_that_is_killed_leaves_what_was_spent_to_the_next(tmp_path, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("rldbg.live.broker.exception_holds.time", SimpleNamespace(monotonic=lambda: clock[0]))
    file = tmp_path / "exception_holds.json"

    def broker(*processes, owner=1):
        holds = ExceptionHolds(processes)
        holds.keep_in(file, KeptFiles(), owner=owner)
        return holds

    # GIVEN a task that was held for 20 of 60 s
    task = _crashed(1, 700, "", where="task")
    first = broker(task)
    assert first.decide(task) == {"hold_s": 60.0}
    clock[0] += 20.0
    asyncio.run(_released(first, task))
    # WHEN the broker is killed THEN the next one knows the kind and the time
    again, other = _crashed(1, 700, "", where="task"), _crashed(2, 701, "", where="task")
    second = broker(again, other)
    assert "reason" in second.decide(again) and second.decide(other) == {"hold_s": 40.0}
    # AND one of another run, or one after a broker that was told to end, begins anew
    assert broker(_crashed(1, 700, ""), owner=2).spent_s == 0.0
    second.forget_file()
    assert broker(_crashed(1, 700, "")).spent_s == 0.0


async def _released(holds, process):
    """The end of a hold: its process ends."""
    process.ended_at = 1.0
    await holds.follow(process)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"owner": 1, "spent_s": "x", "handled_s": 0, "kinds": []}'])
def test_a_file_that_is_none_of_ours_is_no_budget(tmp_path, text):
    (tmp_path / "holds.json").write_text(text)
    holds = ExceptionHolds([])
    holds.keep_in(tmp_path / "holds.json", KeptFiles(), owner=1)
    assert holds.spent_s == 0.0
