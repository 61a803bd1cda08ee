"""What is told of threads and child processes that are gone."""

import pytest

from rldbg.live.diagnosis.graph.who_ended import what_ended

READER = {"kind": "thread", "name": "reader"}
ENGINE = {"kind": "process", "name": "engine", "pid": 7, "exit": "exit code 1"}
THREAD_ENDED, ENGINE_ENDED = "thread reader has ended", "process engine (pid 7) has ended (exit code 1)"


@pytest.mark.parametrize(
    ("ended", "told"),
    [
        # The thread was started to do it; it may have ended because of a child that failed, not of one that ended well.
        ([READER, ENGINE], f"{THREAD_ENDED}, {ENGINE_ENDED}"),
        ([READER, ENGINE | {"exit": "exit code 0"}], THREAD_ENDED),
        ([READER | {"name": "heartbeat"}, READER, ENGINE], f"{THREAD_ENDED}, {ENGINE_ENDED}"),
        ([ENGINE], ENGINE_ENDED),
    ],
)
def test_a_child_that_failed_is_told_beside_the_thread_that_was_started(ended, told):
    assert what_ended({"ended": ended}, ["reader"]) == told
