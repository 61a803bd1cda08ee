"""The tasks of a stopped process, as the agent lists them for the prompt."""

import asyncio
import json

import pytest

from rldbg.agent import async_tasks
from rldbg.core import UsageError
from rldbg.live.prompt import async_tasks as at_the_prompt


async def _inner():
    return json.loads(repr(async_tasks.listing())), json.loads(repr(async_tasks.current()))


async def _outer():
    return await _inner()


async def _waits(event):
    await event.wait()


async def _seen():
    waiting = [asyncio.create_task(_waits(asyncio.Event()), name=f"waits-{n}") for n in range(2)]
    await asyncio.sleep(0)
    found = await asyncio.create_task(_outer(), name="runs")
    for task in waiting:
        task.cancel()
    return found


def test_the_running_task_is_where_its_innermost_coroutine_is():
    """As a method of an async actor, which the framework's own coroutines await."""
    listed, current = asyncio.run(_seen())
    (running,) = [task for task in listed["tasks"] if task["current"]]
    for task in (running, current):
        assert task["name"] == "runs" and task["coroutine"] == "_outer"
        assert [frame["function"] for frame in task["frames"]][:2] == ["_inner", "_outer"]


class _Stopped:
    """Answers as a process that is stopped in one of its tasks."""

    def __init__(self, found):
        self.found = found

    def ask(self, _command, *, expression, **_):
        return {"result": json.dumps(self.found["current()" in expression])}


@pytest.fixture(scope="module")
def stopped():
    return _Stopped(asyncio.run(_seen()))


def test_a_task_is_found_by_its_number_its_name_or_the_only_function(stopped):
    numbers = {text: at_the_prompt.chosen_task(stopped, text, 1) for text in ("waits-1", "runs", "_inner")}
    assert numbers["waits-1"].label == "waits-1, which waits"
    assert numbers["runs"] is None and numbers["_inner"] is None
    with pytest.raises(UsageError, match="2 tasks are in _waits"):
        at_the_prompt.chosen_task(stopped, "_waits", 1)
    with pytest.raises(UsageError, match="no such task: 'nowhere'"):
        at_the_prompt.chosen_task(stopped, "nowhere", 1)


def test_the_prompt_names_what_the_user_runs_in_the_task(stopped, monkeypatch):
    assert at_the_prompt.current_task(stopped, 1).startswith("runs (")
    monkeypatch.setattr(at_the_prompt, "is_users", lambda _file: False)
    assert at_the_prompt.current_task(stopped, 1) == "runs (_outer)"
