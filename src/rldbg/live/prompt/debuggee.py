"""The prompt's interface to one stopped process: anything that answers a few debug adapter requests."""

import ast
import contextlib
import json
import time
from collections.abc import Callable
from typing import Any, Protocol

from rldbg.agent import Message
from rldbg.core import RldbgError, UnreachableError
from rldbg.live.client.broker_client import BrokerClient

_VALUES = "__import__('sys')._rldbg_values"
# Showing existing values must not start a long computation.
LOOKING_S = 5.0
# By then a main thread that checks for signals has stopped; `ray.get` checks once per second.
_SOON_S = 2.0


class EvaluationError(RldbgError):
    """The user's expression raised; the text is what Python would have printed."""

    kind = "evaluation"


class Debuggee(Protocol):
    """One process as the prompt sees it. `facts` is its line in `rldbg ps`, `top_frame` the id of its top frame."""

    facts: dict[str, Any]
    top_frame: int | str

    def ask(self, command: str, *, timeout_s: float = 30.0, **arguments: Any) -> Message:
        """The body of the answer to a debug adapter request; an evaluation that takes longer than the limit is
        interrupted."""

    def resume(self, how: str, wait_s: float, **arguments: Any) -> None:
        """Steps or continues, and waits for the next stop; `facts` are new afterwards."""

    def pause(self) -> None:
        """Stops it again; `facts` are new afterwards."""

    def set_break(self, **body: Any) -> Message: ...

    def breaks(self) -> list[Message]: ...

    def set_condition(self, number: int, condition: str) -> Message: ...

    def clear_breaks(self, numbers: list[int]) -> None: ...


class BrokerDebuggee:
    """A process whose debug session the broker holds."""

    # The broker knows the frame of the stop and fills it in: no round trip to ask for it.
    top_frame: int | str = "stopped"

    def __init__(
        self,
        client: BrokerClient,
        who: str,
        *,
        stop: bool,
        wait_s: float = 10.0,
        on_delay: Callable[[Message], None] | None = None,
    ) -> None:
        """`on_delay` is called with the facts of a process that cannot be stopped at once."""
        self._client = client
        self.facts: dict[str, Any] = _attach(client, who, stop, wait_s, on_delay)
        # Names change when processes come and go; the process id does not.
        self._who = f"@{self.facts['pid']}"

    def ask(self, command: str, *, timeout_s: float = 30.0, **arguments: Any) -> Message:
        body: Message = self._client.request(
            "dap", timeout_s + 30.0, who=self._who, command=command, arguments=arguments, limit_s=timeout_s
        )
        return body

    def resume(self, how: str, wait_s: float, **arguments: Any) -> None:
        self.facts = self._client.request(
            "resume", timeout_s=wait_s + 60.0, who=self._who, how=how, wait_s=wait_s, arguments=arguments
        )

    def pause(self) -> None:
        """Stops it again; `facts` are new afterwards."""
        self.facts = self._client.request("attach", who=self._who, stop=True)

    def wait(self, wait_s: float) -> None:
        self.facts = self._client.request("wait_stopped", timeout_s=wait_s + 60.0, who=self._who, wait_s=wait_s)

    def leave(self) -> None:
        """Detaches: a stopped process stays stopped; a running one is no longer traced."""
        with contextlib.suppress(RldbgError):
            # It may have ended meanwhile, and then there is nothing to leave.
            self._client.request("detach", who=self._who)

    def set_break(self, **body: Any) -> Message:
        made: Message = self._client.request("break_set", ranks=self._who, **body)
        return made

    def breaks(self) -> list[Message]:
        found: list[Message] = self._client.request("break_list")["breaks"]
        return found

    def set_condition(self, number: int, condition: str) -> Message:
        changed: Message = self._client.request("break_condition", id=number, condition=condition)
        return changed

    def clear_breaks(self, numbers: list[int]) -> None:
        self._client.request("break_clear", ids=numbers)


def _attach(
    client: BrokerClient, who: str, stop: bool, wait_s: float, on_delay: Callable[[Message], None] | None
) -> Message:
    begin, first_s = time.monotonic(), wait_s if on_delay is None else min(wait_s, _SOON_S)
    try:
        facts: Message = client.request("attach", first_s + 60.0, who=who, stop=stop, wait_s=first_s)
        return facts
    except UnreachableError as error:
        (facts,) = client.request("select", who=who)["processes"]
        if on_delay is None or not facts["pausing"]:
            raise
        on_delay(facts)
        left_s = max(wait_s - (time.monotonic() - begin), 0.1)
        facts = client.request("wait_stopped", left_s + 60.0, who=who, wait_s=left_s)
        if facts["state"] != "stopped":
            late = f"{facts['who']} has not reached a line of Python within {wait_s:g} s; it stops as soon as it does"
            raise UnreachableError(late, error.hint) from None
        return facts


def evaluate(debuggee: Debuggee, expression: str, frame_id: int | str) -> Message:
    """The value of an expression in a frame: {"type", "text", "tensor"?, "data"?}. Raises EvaluationError."""
    return call(debuggee, f"{_VALUES}.answer(({expression}\n))", frame_id, expression)


def evaluate_names(debuggee: Debuggee, names: list[str], frame_id: int | str) -> dict[str, Message]:
    """The values of several variables in one round trip."""
    pairs = ", ".join(f"{name!r}: {name}" for name in names)
    body = call(debuggee, f"{_VALUES}.answers({{{pairs}}})", frame_id, "locals", LOOKING_S)
    values: dict[str, Message] = body["values"]
    return values


def local_names(debuggee: Debuggee, frame_id: int | str) -> list[str]:
    """The variables of a frame; `locals()` would not do, since debuggers evaluate in a scope with globals too."""
    scopes = debuggee.ask("scopes", frameId=frame_id).get("scopes") or []
    reference = next((scope["variablesReference"] for scope in scopes if scope["name"] == "Locals"), 0)
    variables = debuggee.ask("variables", timeout_s=LOOKING_S, variablesReference=reference).get("variables") or []
    return [str(each["name"]) for each in variables if str(each["name"]).isidentifier()]


def members(debuggee: Debuggee, expression: str, frame_id: int | str) -> Message:
    """What the value of an expression is made of, one level down; of "", the frame. Raises EvaluationError."""
    if not expression:
        expression = "{" + ", ".join(f"{name!r}: {name}" for name in local_names(debuggee, frame_id)) + "}"
    return call(debuggee, f"{_VALUES}.members(({expression}\n))", frame_id, expression, LOOKING_S)


def last_recorded(debuggee: Debuggee, frame_id: int | str) -> Message:
    """The record with samples that the process made last; empty when it made none."""
    return call(debuggee, f"{_VALUES}.recorded()", frame_id, "what was recorded", LOOKING_S)


def source_lines(debuggee: Debuggee, file: str, first: int, last: int, frame_id: int | str) -> tuple[list[str], int]:
    """Lines of a file as the process itself sees it, and how many the file has."""
    lines: list[str] = []
    while True:
        body = call(debuggee, f"{_VALUES}.source({file!r}, {first + len(lines)}, {last})", frame_id, file)
        lines += body["lines"]
        total = int(body["total"])
        if not body["lines"] or first + len(lines) > min(last, total):
            return lines, total


def function_place(debuggee: Debuggee, expression: str, frame_id: int | str) -> tuple[str, int]:
    """File and first line of a function that an expression names. Raises EvaluationError."""
    body = call(debuggee, f"{_VALUES}.place(({expression}\n))", frame_id, expression)
    return str(body["file"]), int(body["line"])


def execute(debuggee: Debuggee, statement: str, frame_id: int | str) -> str:
    """Runs a statement in a frame; what it prints goes where the process prints."""
    try:
        body = debuggee.ask("evaluate", expression=statement, frameId=frame_id, context="repl")
    except RldbgError as error:
        raise EvaluationError(_last_line(error.message)) from error
    return str(body.get("result") or "")


def call(debuggee: Debuggee, expression: str, frame_id: int | str, shown: str, timeout_s: float = 30.0) -> Message:
    """The JSON that an expression of ours gives; `shown` stands for it in errors."""
    try:
        body = debuggee.ask("evaluate", timeout_s=timeout_s, expression=expression, frameId=frame_id, context="watch")
    except RldbgError as error:
        if error.kind == "unreachable":
            raise
        raise EvaluationError(_last_line(error.message)) from error
    return parse_answer(str(body.get("result") or ""), shown)


def parse_answer(text: str, shown: str) -> Message:
    """JSON that came as the repr of a value; adapters quote it when they took it for a string."""
    try:
        answer: Message = json.loads(text if text.startswith("{") else ast.literal_eval(text))
    except (ValueError, SyntaxError) as error:
        raise EvaluationError(f"cannot read the value of {shown!r}: {text[:200]}") from error
    return answer


def _last_line(text: str) -> str:
    if "Unable to find thread" in text:
        return "that thread is in C code and cannot evaluate; `rldbg stacks --locals` shows its variables"
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1] if lines else "failed without a message"
