"""pdb's commands over the debug adapter protocol: one line in, one answer out, for one stopped process.

Works on anything that is a Debuggee: a live process, the frames of an exception that waits, a crash file.
"""

import ast
import re
from collections.abc import Callable
from typing import Any

from rldbg.agent import Message
from rldbg.core import UsageError
from rldbg.live.client.breakpoints import refuse_beyond_end, refuse_what_is_no_file
from rldbg.live.prompt.async_tasks import (
    WaitingTask,
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
from rldbg.live.prompt.prompt_text import HELP, break_text, frame_path, function_at, unset_text
from rldbg.live.prompt.selected_frame import CommandResult, SelectedFrame, count_of

_STEPS = {"n": "next", "s": "stepIn", "r": "stepOut"}
_ALIASES = {
    "next": "n", "step": "s", "return": "r", "cont": "c", "continue": "c", "up": "u", "down": "d", "where": "w",
    "bt": "w", "list": "l", "longlist": "ll", "print": "p", "args": "a", "break": "b", "clear": "cl", "jump": "j",
    "quit": "q", "exit": "q", "detach": "q", "help": "h", "?": "h", "until": "unt", "frame": "f", "exception": "exc",
}  # fmt: skip
# Nothing that was meant as Python (`n + 1`) may resume a rank.
_WITHOUT_ARGUMENT = frozenset({"c", *_STEPS})
# What the broker says when the debugger gave no reason.
_NO_REASON = "goto failed"
_ONLY_IN_PDB = ("alias", "commands", "debug", "disable", "enable", "ignore", "restart", "run", "source", "unalias")


class PdbCommands(SelectedFrame):
    """A prompt at one process. `wait_s` bounds waiting for a stop."""

    def __init__(self, debuggee: Debuggee, *, wait_s: float = 30.0) -> None:
        super().__init__(debuggee)
        self.wait_s = wait_s
        self._commands: dict[str, Callable[[str], CommandResult]] = {
            "u": lambda text: self._move(+count_of(text)),
            "d": lambda text: self._move(-count_of(text)),
            "f": lambda text: self._move(count_of(text, 0) - self._index),
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
        line, current = count_of(text, int(self.frame["line"]) + 1), int(self.frame["line"])
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
