"""What ends a loop that is left from within."""

import ast

import pytest

from rldbg.agent.waits.code.ways_out import exit_test, has_deadline, lasts_by_clock

SLEEP = "time.sleep(1)"
DEADLINE = "if time.monotonic() > end: return None"


@pytest.mark.parametrize(
    ("body", "test"),
    [
        (["if done: break", SLEEP], "done"),
        (["if failed: return None", "if done: break", SLEEP], "done"),
        ([DEADLINE, "if done: return 1", SLEEP], "done"),
        (["if failed: return None", "if done: return 1", SLEEP], "failed or done"),
        ([DEADLINE, SLEEP], "time.monotonic() > end"),
        # A loop inside of it is left by its own break, and by a return.
        (["for worker in workers:\n  if worker.dead: break", "if done: break", SLEEP], "done"),
        (["while busy:\n  if idle: break", SLEEP], None),
        # One that works, and may end for several reasons, does not only look.
        (["if failed: return None", "step()", "with lock:\n  save()", "if done: return 1", SLEEP], None),
    ],
)
def test_the_condition_that_ends_a_loop_is_told(body, test):
    lines = [f" {line}" for each in body for line in each.split("\n")]
    loop = ast.parse("while True:\n" + "\n".join(lines)).body[0]
    found = exit_test(loop)
    assert (ast.unparse(found) if found is not None else None) == test


@pytest.mark.parametrize(
    ("body", "limited"),
    [
        ([DEADLINE, SLEEP], True),
        (["left = end - time.monotonic()", "if left <= 0: raise TimeoutError", "changed.wait(left)"], True),
        (["left = end - time.monotonic()", "if left <= 0: break", "changed.wait(left)"], True),
        # It says how long it has waited, and waits on.
        (["left = end - time.monotonic()", "if left <= 0: log.warning('late')", "changed.wait(5)"], False),
        (["if done: break", "changed.wait(5)"], False),
    ],
)
def test_a_loop_that_the_clock_ends_has_a_time_limit(body, limited):
    loop = ast.parse("while True:\n" + "\n".join(f" {line}" for line in body)).body[0]
    assert has_deadline(loop) is limited


@pytest.mark.parametrize(
    ("condition", "lasts"),
    [("time.monotonic() < end", True), ("not done and time.time() < end", False), ("done < 3", False), ("True", False)],
)
def test_a_loop_may_last_until_a_time_and_look_at_nothing_else(condition, lasts):
    assert lasts_by_clock(ast.parse(f"while {condition}:\n time.sleep(1)").body[0]) is lasts
