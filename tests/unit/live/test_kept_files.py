"""What the broker cannot write costs that file and nothing else, and is said."""

import asyncio
import contextlib
import json
import shutil

import pytest

from rldbg.core import write_whole
from rldbg.live.broker.debug_sessions import DebugSessions
from rldbg.live.broker.processes import Process


def test_breakpoints_and_log_points_work_where_nothing_can_be_written(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    sessions = DebugSessions(run)
    sessions.breaks.keep_in(run / "breakpoints.json", owner=1)
    shutil.rmtree(run)
    run.write_text("no folder any more")
    # WHEN the folder cannot be written to THEN the breakpoint is set, the message is kept and both files are named
    made = sessions.breaks.add({"file": "loop.py", "line": 4})
    sessions.log_points.add("loop", "total is 3")
    assert sessions.breaks.all() == [made] and sessions.log_points.recent()[0]["text"] == "total is 3"
    assert ["breakpoints.json" in sessions.files.problems[0], "log_points.jsonl" in sessions.files.problems[1]] == [
        True
    ] * 2
    # AND when it can be written to again, nothing is said any more
    run.unlink()
    run.mkdir()
    sessions.breaks.set_condition(1, "total > 3")
    sessions.log_points.add("loop", "total is 4")
    assert sessions.files.problems == []
    assert json.loads((run / "breakpoints.json").read_text())["breakpoints"][0]["if"] == "total > 3"
    # The first line ends what may have been cut in the middle.
    assert [
        json.loads(line)["text"] for line in (run / "logs" / "log_points.jsonl").read_text().split("\n") if line
    ] == ["total is 4"]


def test_a_session_that_ends_by_an_error_of_ours_is_not_kept(tmp_path):
    class Debuggee:
        """Opens, then says something that the broker fails at."""

        def __init__(self):
            self.messages = asyncio.Queue()

        def send(self, message):
            if message["command"] == "initialize":
                self.messages.put_nowait({"type": "event", "event": "initialized", "body": {}})
            self.messages.put_nowait({"type": "response", "request_seq": message["seq"], "success": True, "body": {}})

        async def receive(self):
            return await self.messages.get()

        def close(self):
            return

    async def scene():
        sessions, process, debuggee = DebugSessions(tmp_path), Process(1, {"role": "loop"}), Debuggee()
        holding = asyncio.create_task(sessions.hold(process, debuggee))
        await process.wait_until(lambda: process.session is not None, 30)
        process.session.on_output = lambda text: 1 / 0
        debuggee.messages.put_nowait(
            {"type": "event", "event": "output", "body": {"category": "stdout", "output": "x"}}
        )
        with contextlib.suppress(ZeroDivisionError):
            await asyncio.wait_for(holding, 30)
        return process.session

    assert asyncio.run(scene()) is None


def test_an_error_of_writing_names_the_file_and_leaves_nothing(tmp_path):
    (tmp_path / "facts.json").mkdir()
    with pytest.raises(OSError, match=r"facts\.json"):
        write_whole(tmp_path / "facts.json", "text")
    assert [each.name for each in tmp_path.iterdir()] == ["facts.json"]
