"""The broker's breakpoints: what is refused changes nothing, and users count their own."""

import pytest

from rldbg.core import UsageError
from rldbg.live.broker.breakpoints import BreakTable
from rldbg.live.broker.kept_files import KeptFiles

LINE = {"file": "/job/train.py", "line": 4}


def test_steps_use_no_numbers_and_are_not_cleared_with_the_users(tmp_path):
    table = BreakTable(KeptFiles())
    table.keep_in(tmp_path / "breakpoints.json", owner=1)
    step = [LINE | {"line": line, "step": True, "once": True} for line in (5, 6, 7)]
    table.add_all(step)
    assert [table.add(LINE).number, table.add(LINE | {"line": 8}).number] == [1, 2]
    assert [each.number for each in table.clear([])] == [1, 2] and len(table) == len(step)
    # The next broker counts on.
    again = BreakTable(KeptFiles())
    again.keep_in(tmp_path / "breakpoints.json", owner=1)
    again.add_all(step)
    assert again.add(LINE).number == 3 and len(again) == 7


@pytest.mark.parametrize("body", [LINE | {"line": 0}, LINE | {"line": -3}, LINE | {"line": "x"}, {"file": ""}])
def test_a_request_that_is_refused_leaves_nothing(tmp_path, body):
    table = BreakTable(KeptFiles())
    table.keep_in(tmp_path / "breakpoints.json", owner=1)
    with pytest.raises(UsageError, match="expected FILE:LINE"):
        table.add_all([LINE, body])
    assert (len(table), table.revision) == (0, 0) and not (tmp_path / "breakpoints.json").exists()
    assert table.add({"on_exception": "raised"}).number == 1


@pytest.mark.parametrize("log", ["a {", "a {x", "a {x[{1}]", "a {x ===}", "{loss} {"])
def test_a_message_that_cannot_be_filled_in_is_refused(log):
    with pytest.raises(UsageError, match="message"):
        BreakTable(KeptFiles()).add(LINE | {"log": log})


@pytest.mark.parametrize("log", ["plain }", "reward {reward} for {prompt[:40]}", "{ {1: x}[1] }", "{}"])
def test_a_message_that_can_be_filled_in_is_taken(log):
    assert BreakTable(KeptFiles()).add(LINE | {"log": log}).log == log
