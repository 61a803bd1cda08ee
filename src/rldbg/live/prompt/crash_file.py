"""A crash file as a Debuggee: inspect the frames of a process that has ended, with the same prompt. Only recorded
values can be shown: a local by its name, and attributes or items of plain data in its text.
"""

import ast
import json
from pathlib import Path
from typing import Any

from rldbg.agent import Message
from rldbg.core import IncompleteDataError, UsageError

_GONE = "the process has ended; only values in the crash file can be shown"


class CrashFile:
    """Frames of the exception that was raised, then those of its causes; ids are positions in that list."""

    top_frame: int | str = 1

    def __init__(self, path: Path) -> None:
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            self._frames = [
                (frame, "" if error["relation"] == "raised" else f"[{error['type']}] ")
                for error in record["exceptions"]
                for frame in error["frames"]
            ]
            who = record["who"]
            top = self._frames[0][0] if self._frames else {}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise IncompleteDataError(
                f"{path} is not a readable crash file: {error}", "crash files are RUN/crashes/*.json"
            ) from error
        self.record: dict[str, Any] = record
        rank = who.get("rank")
        self.facts: dict[str, Any] = {
            "who": who.get("role", "?") if rank is None else f"{who.get('role')}/{rank}",
            "state": "crashed",
            "file": top.get("file"),
            "line": top.get("line"),
            "function": top.get("function"),
            "host": who.get("host"),
            "pid": who.get("pid"),
            "step": record.get("step"),
            "message": self.headline(),
        }

    def headline(self) -> str:
        errors = self.record["exceptions"]
        words = {"raised": "", "cause": "caused by ", "context": "while handling ", "part": "with "}
        return "; ".join(f"{words.get(e['relation'], '')}{e['type']}: {e['message']}" for e in errors)

    def ask(self, command: str, *, timeout_s: float = 30.0, **arguments: Any) -> Message:
        if command == "stackTrace":
            return {"stackFrames": [self._frame_line(n) for n in range(1, len(self._frames) + 1)]}
        if command == "scopes":
            return {"scopes": [{"name": "Locals", "variablesReference": arguments["frameId"]}]}
        if command == "variables":
            names = self._locals(arguments["variablesReference"])
            return {"variables": [{"name": name} for name in names]}
        if command == "threads":
            return {"threads": [{"id": 1, "name": self.record.get("thread", "")}]}
        if command == "exceptionInfo":
            return {"exceptionId": self.record["exceptions"][0]["type"], "description": self.headline()}
        if command == "evaluate":
            return {"result": json.dumps(self._evaluate(str(arguments["expression"]), int(arguments["frameId"])))}
        raise UsageError(_GONE)

    def resume(self, how: str, wait_s: float, **arguments: Any) -> None:
        raise UsageError(_GONE)

    def pause(self) -> None:
        """Nothing runs here."""

    def set_break(self, **body: Any) -> Message:
        raise UsageError(_GONE)

    def breaks(self) -> list[Message]:
        return []

    def set_condition(self, number: int, condition: str) -> Message:
        raise UsageError(_GONE)

    def clear_breaks(self, numbers: list[int]) -> None:
        raise UsageError(_GONE)

    def _frame_line(self, number: int) -> Message:
        frame, label = self._frames[number - 1]
        name = label + frame["function"].rpartition(".")[2]
        return {"id": number, "name": name, "line": frame["line"], "source": {"path": frame["file"]}}

    def _locals(self, frame_id: int) -> dict[str, Message]:
        found: dict[str, Message] = self._frames[frame_id - 1][0].get("locals") or {}
        return found

    def _evaluate(self, expression: str, frame_id: int) -> Message:
        """The prompt wraps what it asks in calls of the values module; here the same three calls read the file."""
        try:
            call = ast.parse(expression.strip(), mode="eval").body
        except SyntaxError:
            call = None
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or not call.args:
            raise UsageError(_GONE)
        if call.func.attr == "source":
            return self._source(*(ast.literal_eval(argument) for argument in call.args))
        if call.func.attr == "answers":
            return {"values": dict(self._locals(frame_id))}
        return self._value(call.args[0], frame_id)

    def _value(self, node: ast.expr, frame_id: int) -> Message:
        """A recorded local, or a part of one whose text is plain data."""
        values = self._locals(frame_id)
        names = [each.id for each in ast.walk(node) if isinstance(each, ast.Name)]
        missing = [name for name in names if name not in values]
        if missing:
            withheld = self.record.get("withheld")
            because = f" ({withheld})" if withheld else ""
            raise UsageError(f"NameError: {missing[0]!r} is not a local variable of this frame{because}")
        if isinstance(node, ast.Name):
            return values[node.id] | _plain(values[node.id])
        if isinstance(node, ast.Subscript):
            whole = _plain(self._value(node.value, frame_id))
            try:
                part = whole["data"][ast.literal_eval(node.slice)]
            except (KeyError, IndexError, TypeError, ValueError) as error:
                raise UsageError(f"{type(error).__name__}: {error}; {_GONE}") from None
            return {"type": type(part).__name__, "text": repr(part), "data": part}
        raise UsageError(f"{ast.unparse(node)!r} cannot be evaluated: {_GONE}")

    def _source(self, file: str, first: int, last: int) -> Message:
        """Lines around the frame that asks, from the record; beyond them the file as it is today is not shown."""
        known: dict[int, str] = {}
        for frame, _label in self._frames:
            if frame["file"] == file:
                source = frame.get("source") or {}
                known |= dict(enumerate(source.get("lines") or [], int(source.get("first", 1))))
        wanted = [number for number in sorted(known) if first <= number <= last]
        return {"lines": [known[number] for number in wanted], "total": max(known, default=0)}


def _plain(facts: Message) -> Message:
    """The recorded text as data, when it is a literal."""
    try:
        return {"data": ast.literal_eval(facts["text"])}
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return {}
