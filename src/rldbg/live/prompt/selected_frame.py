"""The frame that a prompt shows: of which thread or task, how it is chosen, its source, and what is displayed."""

import re
from dataclasses import dataclass
from typing import Any

from rldbg.agent import TOOL_FILES, Message
from rldbg.agent.waits import is_users
from rldbg.core import UsageError
from rldbg.live.own_frames import NOT_THE_USERS
from rldbg.live.prompt.async_tasks import (
    WaitingTask,
    chosen_task,
    current_task,
    list_tasks,
    tasks_text,
    waiting_task,
)
from rldbg.live.prompt.debuggee import Debuggee, EvaluationError, evaluate, source_lines
from rldbg.live.prompt.prompt_text import frame_path, frame_place, function_at, numbered

_STANDS_IN = "/agent/halt.py"


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What one command gave: `value` is plain data where there is some; `left` says that it runs or is gone."""

    text: str = ""
    ok: bool = True
    value: Any = None
    left: bool = False


class SelectedFrame:
    def __init__(self, debuggee: Debuggee) -> None:
        self.debuggee = debuggee
        self._frames: list[Message] = []
        self._index = 0
        self._thread: int | str = "stopped"
        self._listed = 0
        # Whether its function has no line left: the thread stands in a line of the agent's.
        self._is_at_end = False
        self._displays: list[str] = []

    @property
    def frame(self) -> Message:
        if not self._frames:
            self._load_frames()
        return self._frames[self._index]

    @property
    def frame_id(self) -> int | str:
        """The chosen frame; the top one is known without asking for the stack."""
        return self.debuggee.top_frame if not self._frames and self._thread == "stopped" else int(self.frame["id"])

    def forget(self) -> None:
        """The process has moved: frames of the last stop are invalid."""
        self._leave_task()
        self._frames, self._index, self._listed, self._thread = [], 0, 0, "stopped"

    def _load_frames(self) -> None:
        frames = (
            self.debuggee.ask("stackTrace", threadId=self._thread, startFrame=0, levels=200).get("stackFrames") or []
        )
        self._is_at_end = bool(frames) and frame_path(frames[0]).endswith(_STANDS_IN)
        while frames and any(part in frame_path(frames[0]) for part in NOT_THE_USERS):
            frames.pop(0)
        if not frames:
            raise UsageError("no Python frame in this thread", "`threads` lists the threads")
        self._frames = [frame for frame in frames if not any(part in frame_path(frame) for part in TOOL_FILES)]

    def stand_in_users_task(self) -> None:
        """A pause in an idle event loop shows asyncio's or Ray's own code; the user wants their own."""
        if self.debuggee.facts.get("reason") != "pause" or isinstance(self.debuggee, WaitingTask):
            return
        try:
            _ = self.frame
            found = waiting_task(self.debuggee, [frame_path(frame) for frame in self._frames], self.frame_id)
        except (EvaluationError, UsageError):
            return
        if found is not None:
            self._enter_task(found)

    def _enter_task(self, task: WaitingTask) -> None:
        """Selects the user's innermost frame, below those of asyncio."""
        self.debuggee, self._frames = task, []
        _ = self.frame
        files = [frame_path(frame) for frame in self._frames]
        self._index = next((number for number, file in enumerate(files) if is_users(file)), 0)

    def _move(self, by: int) -> CommandResult:
        _ = self.frame
        target = self._index + by
        if not 0 <= target < len(self._frames):
            return CommandResult(f"*** {'Oldest' if by > 0 else 'Newest'} frame", ok=False)
        self._index, self._listed = target, 0
        return self.here()

    def here(self) -> CommandResult:
        """The chosen frame and its line, as pdb shows after each move."""
        frame = self.frame
        text = self._source(int(frame["line"]), int(frame["line"]))
        line = f"\n-> {text[0].strip()}" if text else ""
        waits = self.debuggee.label if isinstance(self.debuggee, WaitingTask) else ""
        if task := waits or current_task(self.debuggee, self.frame_id):
            line += f"\nin task {task}"
        shown = "".join(f"\ndisplay {expression}: {self._display_value(expression)}" for expression in self._displays)
        return CommandResult(
            f"> {frame_place(frame)}{line}{shown}", value={"file": frame_path(frame), "line": frame["line"]}
        )

    def _where(self, _text: str) -> CommandResult:
        _ = self.frame
        marks = (">" if number == self._index else " " for number in range(len(self._frames)))
        lines = [
            f"{mark} {n} {frame_place(frame)}" for n, (mark, frame) in enumerate(zip(marks, self._frames, strict=True))
        ]
        return CommandResult(
            "\n".join(lines[::-1]), value=[{"file": frame_path(f), "line": f["line"]} for f in self._frames]
        )

    def _tasks(self, _text: str) -> CommandResult:
        # Looking changes nothing: the chosen task and frame stay.
        tasks = list_tasks(*self._process())
        chosen = self.debuggee.number if isinstance(self.debuggee, WaitingTask) else None
        return CommandResult(tasks_text(tasks, chosen), value=tasks)

    def _switch_task(self, text: str) -> CommandResult:
        if not text:
            return CommandResult("*** task N", ok=False)
        process, frame_id = self._process()
        task = chosen_task(process, text, frame_id)
        self.forget()
        if task is not None:
            self._enter_task(task)
        return self.here()

    def _process(self) -> tuple[Debuggee, int | str]:
        """The process itself, whichever of its tasks is shown, and a frame of it."""
        if isinstance(self.debuggee, WaitingTask):
            return self.debuggee.debuggee, self.debuggee.debuggee.top_frame
        return self.debuggee, self.frame_id

    def _leave_task(self) -> None:
        if isinstance(self.debuggee, WaitingTask):
            self.debuggee = self.debuggee.debuggee
            self._frames, self._index, self._listed = [], 0, 0

    def _threads(self, _text: str) -> CommandResult:
        threads = self.debuggee.ask("threads").get("threads") or []
        return CommandResult("\n".join(f"{each['id']:>4} {each['name']}" for each in threads), value=threads)

    def _switch_thread(self, text: str) -> CommandResult:
        threads = {str(each["id"]): each for each in self.debuggee.ask("threads").get("threads") or []}
        if text not in threads:
            return CommandResult("*** threads: " + ", ".join(threads), ok=False)
        self.forget()
        self._thread = int(text)
        return self.here()

    # Source.

    def _source(self, first: int, last: int) -> list[str]:
        # Read in the frame of the stop, not in the selected one: a thread in C code cannot evaluate.
        return source_lines(self.debuggee, frame_path(self.frame), max(first, 1), last, self.debuggee.top_frame)[0]

    def _list(self, text: str) -> CommandResult:
        current = int(self.frame["line"])
        if text:
            numbers = [int(part) for part in re.findall(r"\d+", text)] or [current]
            first = numbers[0] if len(numbers) > 1 else max(numbers[0] - 5, 1)
            last = numbers[1] if len(numbers) > 1 else first + 10
        else:
            first = self._listed + 1 if self._listed else max(current - 5, 1)
            last = first + 10
        lines = self._source(first, last)
        self._listed = first + len(lines) - 1
        return CommandResult(numbered(lines, first, current) or "[EOF]", ok=bool(lines))

    def _longlist(self, _text: str) -> CommandResult:
        frame = self.frame
        lines = self._source(1, 10**6)
        node = function_at(lines, str(frame["name"]), int(frame["line"]))
        first, last = (node.lineno, node.end_lineno or node.lineno) if node else (1, len(lines))
        return CommandResult(numbered(lines[first - 1 : last], first, int(frame["line"])))

    # Displays.

    def _display(self, text: str) -> CommandResult:
        if text:
            self._displays.append(text)
        return CommandResult("\n".join(f"display {each}: {self._display_value(each)}" for each in self._displays))

    def _undisplay(self, text: str) -> CommandResult:
        self._displays = [each for each in self._displays if text and each != text]
        return CommandResult()

    def _display_value(self, expression: str) -> str:
        try:
            return str(evaluate(self.debuggee, expression, self.frame_id)["text"])
        except EvaluationError as error:
            return f"** {error} **"


def count_of(text: str, default: int = 1) -> int:
    if text and not text.isdigit():
        raise UsageError(f"invalid number: {text!r}")
    return int(text or default)
