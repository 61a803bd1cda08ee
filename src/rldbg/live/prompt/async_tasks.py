"""asyncio tasks at the prompt: list them, find the one in which the process is stopped, and inspect one that waits."""

import json
import re
from typing import Any

from rldbg.agent import Message
from rldbg.agent.waits import is_users
from rldbg.core import UsageError
from rldbg.live.prompt.debuggee import Debuggee, EvaluationError, call

_MODULE = "__import__('sys')._rldbg_async_tasks"
_LOOP = re.compile(r"/asyncio/base_events\.py$|/uvloop/")
_LOOKING = frozenset({"stackTrace", "scopes", "variables", "evaluate"})


class WaitingTask:
    """A waiting task shown in place of the process: its frames are shown, all other requests go to the process."""

    top_frame: int | str = 1

    def __init__(self, debuggee: Debuggee, number: int, name: str, note: str = "") -> None:
        self.debuggee = debuggee
        self.label = " ".join(filter(None, (f"{name}, which waits", note)))
        self.number = number

    def __getattr__(self, name: str) -> Any:
        return getattr(self.debuggee, name)

    def step(self, how: str, depth: int) -> None:
        """Makes it stop where this task goes on, be that behind other tasks: no thread is in it now."""
        # Into what it calls is where it goes on first; out of a function, in its caller.
        first = {"stepIn": 0, "stepOut": depth + 1}.get(how, depth)
        expression = f"{_MODULE}.onward({self.number}, {first})"
        found = call(self.debuggee, expression, self.debuggee.top_frame, self.label)
        places = {file: lines for file, lines in found["lines"].items() if lines and is_users(file)}
        if not places:
            raise UsageError("nothing of the user's code follows in this task", "c resumes")
        for file, lines in places.items():
            self.debuggee.set_break(file=file, lines=lines, step=True, once=True, **{"if": found["condition"]})

    def ask(self, command: str, *, timeout_s: float = 30.0, **arguments: Any) -> Message:
        if command not in _LOOKING:
            return self.debuggee.ask(command, timeout_s=timeout_s, **arguments)
        request = json.dumps({"seq": 1, "type": "request", "command": command, "arguments": arguments})
        expression = f"{_MODULE}.request({self.number}, {request!r})"
        answer = call(self.debuggee, expression, self.debuggee.top_frame, self.label, timeout_s)
        if not answer.get("success"):
            raise EvaluationError(str(answer.get("message")))
        body: Message = answer.get("body") or {}
        return body


def current_task(debuggee: Debuggee, frame_id: int | str) -> str:
    """The task of the stopped thread and what the user runs in it; empty where there is none, or where it cannot be
    asked."""
    try:
        task = call(debuggee, f"{_MODULE}.current()", frame_id, "the task")
    except EvaluationError:
        return ""
    if not task:
        return ""
    theirs = [frame["function"] for frame in task["frames"] if is_users(frame["file"])]
    return f"{task['name']} ({(theirs or [task['coroutine']])[-1]})"


def list_tasks(debuggee: Debuggee, frame_id: int | str) -> list[Message]:
    """Each with the place where it waits in the user's code, if it does: a library's own says nothing."""
    found: list[Message] = call(debuggee, f"{_MODULE}.listing()", frame_id, "the tasks")["tasks"]
    for task in found:
        frames = task.pop("frames")
        theirs = [frame for frame in frames if is_users(frame["file"])]
        task["is_users"] = bool(theirs)
        task |= next(iter(theirs or frames), {})
    return found


def chosen_task(debuggee: Debuggee, text: str, frame_id: int | str) -> WaitingTask | None:
    """The task with a number, a name, or the only one in a function; None if it is the one in which the process is
    stopped."""
    tasks = list_tasks(debuggee, frame_id)
    numbers = [n for n, task in enumerate(tasks) if text in (str(n), task["name"])]
    if not numbers:
        numbers = [n for n, task in enumerate(tasks) if text in _functions(task)]
        if len(numbers) > 1:
            raise UsageError(f"{len(numbers)} tasks are in {text}", f"task {numbers[0]} is the first of them")
    if not numbers:
        raise UsageError(f"no such task: {text!r}", "`tasks` lists them")
    chosen = tasks[numbers[0]]
    return None if chosen["current"] else WaitingTask(debuggee, numbers[0], chosen["name"])


def _functions(task: Message) -> tuple[str, str]:
    """Its name as written, and alone."""
    function = str(task.get("function") or task["coroutine"])
    return function, function.rpartition(".")[2]


def waiting_task(debuggee: Debuggee, files: list[str], frame_id: int | str) -> WaitingTask | None:
    """The first task of the user's, where a pause stopped an event loop that had nothing to run: whose `files` from
    the innermost frame to the loop hold none of the user's code."""
    loop = next((number for number, file in enumerate(files) if _LOOP.search(file)), len(files))
    if any(map(is_users, files[:loop])):
        return None
    tasks = list_tasks(debuggee, frame_id)
    theirs = [number for number, task in enumerate(tasks) if task["is_users"]]
    if not theirs or any(task["current"] for task in tasks):
        return None
    others = f"; `tasks` lists all {len(theirs)}" if len(theirs) > 1 else ""
    # One that waits for others goes on last, often never.
    chosen = next((number for number in theirs if not tasks[number].get("awaits_tasks")), theirs[0])
    return WaitingTask(debuggee, chosen, tasks[chosen]["name"], f"while the event loop has nothing to run{others}")


def tasks_text(tasks: list[Message], chosen: int | None = None) -> str:
    """`chosen` is the number of a task that waits and is shown; otherwise the one that runs is marked."""
    rows = (
        f"{'>' if (task['current'] if chosen is None else number == chosen) else ' '} {number:>3} {task['name']:<16} "
        + (f"{task['function']} at {task['file']}:{task['line']}" if task.get("file") else task["coroutine"])
        for number, task in enumerate(tasks)
    )
    return "\n".join(rows) or "no asyncio tasks"
