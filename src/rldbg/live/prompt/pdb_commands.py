"""pdb's commands over the debug adapter protocol: one line in, one answer out, for one stopped process.

Works on anything that is a Debuggee: a live process, the frames of an exception that waits, a crash file.
"""

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rldbg.agent import TOOL_FILES, Message
from rldbg.agent.waits import is_users
from rldbg.core import UsageError
from rldbg.live.client.breakpoints import refuse_beyond_end, refuse_what_is_no_file
from rldbg.live.own_frames import NOT_THE_USERS
from rldbg.live.prompt.async_tasks import (
    WaitingTask,
    chosen_task,
    current_task,
    list_tasks,
    tasks_text,
    waiting_task,
)
from rldbg.live.prompt.debuggee import (
    Debuggee,
    EvaluationError,
    evaluate,
    evaluate_names,
    execute,
    function_place,
    local_names,
    source_lines,
)
from rldbg.live.prompt.prompt_text import HELP, break_text, frame_path, frame_place, function_at, numbered, unset_text

_STEPS = {"n": "next", "s": "stepIn", "r": "stepOut"}
_ALIASES = {
    "next": "n", "step": "s", "return": "r", "cont": "c", "continue": "c", "up": "u", "down": "d", "where": "w",
    "bt": "w", "list": "l", "longlist": "ll", "print": "p", "args": "a", "break": "b", "clear": "cl", "jump": "j",
    "quit": "q", "exit": "q", "detach": "q", "help": "h", "?": "h", "until": "unt", "frame": "f", "exception": "exc",
}  # fmt: skip
# Nothing that was meant as Python (`n + 1`) may resume a rank.
_WITHOUT_ARGUMENT = frozenset({"c", *_STEPS})
_STANDS_IN = "/agent/halt.py"
# What the broker says when the debugger gave no reason.
_NO_REASON = "goto failed"
_ONLY_IN_PDB = ("alias", "commands", "debug", "disable", "enable", "ignore", "restart", "run", "source", "unalias")


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What one command gave: `value` is plain data where there is some; `left` says that it runs or is gone."""

    text: str = ""
    ok: bool = True
    value: Any = None
    left: bool = False


class PdbCommands:
    """The state of a prompt at one process: frames, the chosen one, displays. `wait_s` bounds waiting for a stop."""

    def __init__(self, debuggee: Debuggee, *, wait_s: float = 30.0) -> None:
        self.debuggee = debuggee
        self.wait_s = wait_s
        self._frames: list[Message] = []
        self._index = 0
        self._thread: int | str = "stopped"
        self._listed = 0
        # Whether its function has no line left: the thread stands in a line of the agent's.
        self._is_at_end = False
        self._displays: list[str] = []
        self._commands: dict[str, Callable[[str], CommandResult]] = {
            "u": lambda text: self._move(+_count(text)),
            "d": lambda text: self._move(-_count(text)),
            "f": lambda text: self._move(_count(text, 0) - self._index),
            "w": self._where,
            "l": self._list,
            "ll": self._longlist,
            "p": self._print,
            "pp": self._print,
            "whatis": self._whatis,
            "a": self._arguments,
            "locals": self._locals,
            "display": self._display,
            "undisplay": self._undisplay,
            "exc": self._exception,
            "threads": self._threads,
            "thread": self._switch_thread,
            "tasks": self._tasks,
            "task": self._switch_task,
            "b": lambda text: self._break(text, once=False),
            "tbreak": lambda text: self._break(text, once=True),
            "cl": self._clear,
            "condition": self._condition,
            "j": self._jump,
            "unt": self._until,
            "c": lambda _text: self._go("continue"),
            "h": lambda _text: CommandResult(HELP),
        }  # fmt: skip
        for word, how in _STEPS.items():
            self._commands[word] = lambda _text, how=how: self._go(how)  # type: ignore[misc]

    def execute(self, line: str) -> CommandResult:
        """One command. Errors of the user's expression are answers; errors of the connection are raised."""
        line = line.strip()
        if not line:
            return CommandResult()
        if "\0" in line or line != line.encode(errors="replace").decode():
            return CommandResult("*** this line is not text (expected UTF-8)", ok=False)
        try:
            if line.startswith("!"):
                return self._statement(line[1:].strip())
            word, _, rest = line.partition(" ")
            action = self._commands.get(_ALIASES.get(word, word))
            # `n = 5` means the variable and not the command of that name.
            if action is None or re.match(r"=(?!=)", rest.strip()):
                return self.python(line)
            if rest.strip() and _ALIASES.get(word, word) in _WITHOUT_ARGUMENT:
                return CommandResult(f"*** {word} takes no argument (p EXPRESSION shows a value)", ok=False)
            return action(rest.strip())
        except EvaluationError as error:
            return CommandResult(f"*** {error}", ok=False)
        except UsageError as error:
            return CommandResult(f"*** {error}" + (f" ({error.hint})" if error.hint else ""), ok=False)

    # Frames.

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

    # Values.

    def python(self, line: str) -> CommandResult:
        """A line that is not a command: an expression is shown, a statement is run."""
        try:
            ast.parse(line, mode="eval")
        except (SyntaxError, RecursionError, MemoryError):
            word = line.split(" ")[0]
            if word in _ONLY_IN_PDB:
                return CommandResult(f"*** unsupported command: {word} (h lists the commands)", ok=False)
            return self._statement(line)
        answer = self._print(line)
        return CommandResult() if answer.value is None and answer.text == "None" else answer

    def _statement(self, line: str) -> CommandResult:
        return CommandResult(execute(self.debuggee, line, self.frame_id))

    def _print(self, text: str) -> CommandResult:
        if not text:
            return CommandResult("*** p EXPRESSION", ok=False)
        if text == "locals()":
            # Debuggers evaluate in a scope that holds globals too.
            return self._locals("")
        found = evaluate(self.debuggee, text, self.frame_id)
        return CommandResult(found["text"], value=found.get("data", found["text"]))

    def _whatis(self, text: str) -> CommandResult:
        kind = evaluate(self.debuggee, text, self.frame_id)["type"]
        return CommandResult(kind, value=kind)

    def _locals(self, _text: str, only: list[str] | None = None) -> CommandResult:
        names = local_names(self.debuggee, self.frame_id)
        if only is not None:
            names = [name for name in only if name in names]
        values = evaluate_names(self.debuggee, names, self.frame_id) if names else {}
        return CommandResult(
            "\n".join(f"{name} = {facts['text']}" for name, facts in values.items()),
            value={name: facts["text"] for name, facts in values.items()},
        )

    def _arguments(self, _text: str) -> CommandResult:
        frame = self.frame
        node = function_at(self._source(1, 10**6), str(frame["name"]), int(frame["line"]))
        if node is None:
            return CommandResult()
        signature = node.args
        given = [*signature.posonlyargs, *signature.args, *signature.kwonlyargs, signature.vararg, signature.kwarg]
        return self._locals("", only=[argument.arg for argument in given if argument is not None])

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

    def _exception(self, _text: str) -> CommandResult:
        info = self.debuggee.ask("exceptionInfo", threadId=self._thread)
        trace = str((info.get("details") or {}).get("stackTrace") or "").rstrip()
        title = f"{info.get('exceptionId')}: {info.get('description')}"
        return CommandResult(f"{trace}\n{title}".strip() if title not in trace else trace, value=title)

    # Breakpoints.

    def _break(self, text: str, *, once: bool) -> CommandResult:
        if not text:
            return CommandResult("\n".join(break_text(each) for each in self.debuggee.breaks()) or "no breakpoints set")
        place, _, condition = text.partition(",")
        file, _, line = place.strip().rpartition(":")
        if line.isdecimal():
            where = (file or frame_path(self.frame), int(line))
            self._refuse_beyond_end(*where)
        elif file or not line:
            return CommandResult("*** b FILE:LINE, b LINE or b FUNCTION", ok=False)
        else:
            where = function_place(self.debuggee, line, self.frame_id)
        made = self.debuggee.set_break(file=where[0], line=where[1], once=once, **{"if": condition.strip()})
        is_set = any((made.get("set_in") or {}).values())
        advice = "" if is_set else f"\n*** {unset_text(made)}"
        return CommandResult(break_text(made) + advice, value=made["id"], ok=is_set)

    def _refuse_beyond_end(self, file: str, line: int) -> None:
        """Judged by the file as the process sees it; one that it cannot find may be loaded later."""
        refuse_what_is_no_file(file)
        _, total = source_lines(self.debuggee, file, line, line, self.debuggee.top_frame)
        if 0 < total < line:
            lines, _ = source_lines(self.debuggee, file, 1, total, self.debuggee.top_frame)
            refuse_beyond_end("\n".join(lines).encode("utf-8", "surrogateescape"), file, line)

    def _clear(self, text: str) -> CommandResult:
        numbers = re.split(r"[\s,]+", text) if text else []
        if not all(number.isdigit() for number in numbers):
            return CommandResult("*** cl, or cl N N (`b` lists the numbers)", ok=False)
        self.debuggee.clear_breaks([int(number) for number in numbers])
        return CommandResult()

    def _condition(self, text: str) -> CommandResult:
        number, _, condition = text.partition(" ")
        if not number.isdigit():
            return CommandResult("*** condition N EXPRESSION", ok=False)
        changed = self.debuggee.set_condition(int(number), condition.strip())
        return CommandResult(break_text(changed), value=changed["id"])

    # Resuming.

    def _go(self, how: str, **arguments: Any) -> CommandResult:
        facts = self.debuggee.facts
        if how != "continue" and facts.get("reason") == "exception" and facts.get("message"):
            return CommandResult("*** cannot step after an exception; c resumes", ok=False)
        asked = None
        if isinstance(self.debuggee, WaitingTask) and how in _STEPS.values():
            _, asked = self.frame, how
            self.debuggee.step(how, int(self._frames[self._index]["id"]) - 1)
            how = "continue"
        self._leave_task()
        thread = {} if self._thread == "stopped" else {"threadId": self._thread}
        try:
            self.debuggee.resume(how, self.wait_s, **thread, **arguments)
        finally:
            self.forget()
        facts = self.debuggee.facts
        if facts["state"] == "stopped":
            return self.here()
        return CommandResult(_how_it_went_on(facts, how if asked is None else asked, self.wait_s), left=True)

    def _until(self, text: str) -> CommandResult:
        line, current = _count(text, int(self.frame["line"]) + 1), int(self.frame["line"])
        if line <= current:
            return CommandResult(f"*** unt LINE: a line after {current}", ok=False)
        self._refuse_beyond_end(frame_path(self.frame), line)
        # As a step does, it ends with the next stop, wherever that is.
        self.debuggee.set_break(file=frame_path(self.frame), line=line, once=True, step=True)
        return self._go("continue")

    def _jump(self, text: str) -> CommandResult:
        if not text.isdigit():
            return CommandResult("*** j LINE", ok=False)
        where = {"path": frame_path(self.frame)}
        if self._index:
            return CommandResult("*** jumping is possible in the newest frame only (`d` goes there)", ok=False)
        if self._is_at_end:
            return CommandResult(f"*** {self._no_jump(int(text))}", ok=False)
        targets = self.debuggee.ask("gotoTargets", source=where, line=int(text)).get("targets") or []
        if not targets:
            return CommandResult(f"*** cannot jump to line {text}", ok=False)
        reason = self._no_jump(int(text))
        try:
            return self._go("goto", targetId=targets[0]["id"])
        except UsageError as error:
            # At a return the debugger gives no reason.
            raise (UsageError(reason) if str(error) == _NO_REASON else error) from None

    def _no_jump(self, line: int) -> str:
        """Why the debugger refuses to jump where it says nothing: only before a line can another one be chosen."""
        name, lines = str(self.frame["name"]), self._source(1, 10**6)
        node = function_at(lines, name, int(self.frame["line"]))
        first, last = (node.lineno, node.end_lineno or node.lineno) if node else (1, len(lines))
        inside = f"{name}()" if node else "the module"
        if not first <= line <= last:
            return f"cannot jump to line {line}: it is outside {inside}, lines {first} to {last}"
        return f"cannot jump to line {line}: {inside} has run its last line and is about to return"


def _how_it_went_on(facts: Message, how: str, wait_s: float) -> str:
    """Of a process that did not stop in time; a step stops it all the same when it ends."""
    if facts["state"] != "running":
        return f"the process has {facts['state']}"
    if how not in _STEPS.values():
        return "running"
    who = facts["who"]
    return f"running: the step did not end within {wait_s:g} s; {who} stops when it does (`rldbg pause {who}`: now)"


def _count(text: str, default: int = 1) -> int:
    if text and not text.isdigit():
        raise UsageError(f"invalid number: {text!r}")
    return int(text or default)
