"""One breakpoint: as a client describes it, as a broker keeps it, and as a debuggee is asked for it."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rldbg.agent import Selection, parse_selection
from rldbg.core import UsageError
from rldbg.live.broker.processes import Process

EXCEPTION_FILTERS = {"raised": ["raised"], "unhandled": ["userUnhandled", "uncaught"]}


@dataclass(eq=False)
class Break:
    """One breakpoint: a line, or an exception when `file` is empty."""

    number: int
    file: str
    line: int
    condition: str
    log: str
    exception: str
    selection: Selection
    once: bool
    # Of a step: gone with the next stop of the process, wherever that is.
    step: bool = False
    hits: Counter[str] = field(default_factory=Counter)
    verified: dict[str, bool] = field(default_factory=dict)
    # Where it stops, by process: on a line without code it cannot.
    lines: dict[int, int] = field(default_factory=dict)
    # What processes call the file; empty where it was not found.
    paths: dict[int, str] = field(default_factory=dict)
    # The line that is asked for, by process: the one below, if it has no code.
    wanted: dict[int, int] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    spent: set[str] = field(default_factory=set)

    def is_meant_for(self, process: Process) -> bool:
        return identity(process) not in self.spent and self.selection.matches(process.subject())

    def request_for(self, process: Process) -> dict[str, Any]:
        """As it is sent to the debuggee."""
        line: dict[str, Any] = {"line": self.wanted.get(process.number, self.line)}
        if self.condition:
            line["condition"] = self.condition
        if self.log:
            line["logMessage"] = self.log
        return line

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.number,
            "file": self.file or None,
            "line": self.line or None,
            "if": self.condition or None,
            "log": self.log or None,
            "on_exception": self.exception or None,
            "ranks": self.selection.text,
            "once": self.once,
            "step": self.step,
            "stops_at": sorted(set(self.lines.values()) - {self.line}),
            "found_at": sorted(set(self.paths.values()) - {""}),
            "hits": dict(self.hits),
            "set_in": dict(sorted(self.verified.items())),
            "condition_fails": dict(sorted(self.failures.items())),
        }


def described_break(number: int, body: Mapping[str, Any]) -> Break:
    """The breakpoint that a request describes. Raises UsageError, or SelectionError for `ranks`."""
    exception = str(body.get("on_exception") or "")
    if exception and exception not in EXCEPTION_FILTERS:
        raise UsageError(f"invalid exception stop: {exception!r}", f"use one of {', '.join(EXCEPTION_FILTERS)}")
    condition = str(body.get("if") or "")
    check_condition(condition)
    log = str(body.get("log") or "")
    _check_log(log)
    file, line = str(body.get("file") or ""), body.get("line") or 0
    if type(line) is not int or (line < 1 if file else not exception):
        raise UsageError(f"invalid place: {f'{file}:{line}'!r} (expected FILE:LINE)", "for example train.py:88")
    return Break(
        number=number,
        file=file,
        line=line,
        condition=condition,
        log=log,
        exception=exception,
        selection=parse_selection(str(body.get("ranks") or "all")),
        once=bool(body.get("once")),
        step=bool(body.get("step")),
    )


def restored_break(row: Mapping[str, Any]) -> Break:
    """A breakpoint as the killed broker has kept it."""
    made = described_break(int(row["id"]), row)
    made.hits.update(row["hits"])
    made.spent.update(row.get("spent") or ())
    return made


def identity(process: Process) -> str:
    """The key of a process, the same for every broker of the run."""
    return f"{process.facts.get('host')}:{process.facts.get('pid')}"


def check_condition(text: str) -> None:
    """Refuses a condition that is not an expression: it would never be true, and nothing would report it."""
    try:
        if text:
            compile(text, "condition", "eval")
    except (SyntaxError, ValueError) as error:
        raise UsageError(
            f"the condition {text!r} is not a Python expression: {error}", "correct it and try again"
        ) from None


def _check_log(text: str) -> None:
    """Refuses a message whose {expressions} are none: it would be logged in its own words, or not at all."""
    rest = text
    while "{" in rest:
        expression, rest = _braced(text, rest.partition("{")[2])
        try:
            compile(f"({expression}\n)", "message", "eval")
        except (SyntaxError, ValueError) as error:
            raise UsageError(
                f"{{{expression}}} in the message {text!r} is not a Python expression: {error}",
                "correct it and try again",
            ) from None


def _braced(text: str, after: str) -> tuple[str, str]:
    """The expression that an opening brace begins, and what follows it; braces inside it are its own."""
    level = 1
    for number, character in enumerate(after):
        level += (character == "{") - (character == "}")
        if not level:
            return after[:number].strip(), after[number + 1 :]
    raise UsageError(f"the message {text!r} has a brace that is not closed", "write {expression}, with both braces")
