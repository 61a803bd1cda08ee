"""A debug adapter over the frames of an exception: look and evaluate where it was raised, on any Python version.

pydevd's own post-mortem shows the wrong stack on Python 3.12 and later. The frames of a traceback are ordinary objects,
so the thread that holds the exception answers the few requests that make sense after an exception, and any client of
the debug adapter protocol can show them. `continue` and every kind of step let the exception propagate.
"""

from __future__ import annotations

import sys
import threading
import traceback
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from .values import describe

if TYPE_CHECKING:  # it is also sent as source text into workers that have no agent, together with `values` only
    from .framing import Message

THREAD_ID = 1
_CHAIN = 20
_ENDING = frozenset({"continue", "next", "stepIn", "stepOut", "disconnect", "terminate"})


class FramesAdapter:
    """Answers debug adapter requests about frames that no thread executes, innermost first, each with its line and a
    label; `ended` is set by the request that lets them go."""

    def __init__(self, frames: list[tuple[FrameType, int, str]]) -> None:
        self.ended = False
        self._frames = frames
        self._sent = 0

    def handle(self, request: Message) -> list[Message]:
        """The messages that answer `request`: always a response, sometimes events after it."""
        command = str(request.get("command"))
        arguments = request.get("arguments") or {}
        method = getattr(self, f"_on_{command}", None)
        response: Message = {
            "type": "response",
            "request_seq": request.get("seq", 0),
            "command": command,
            "success": True,
        }
        if command in _ENDING:
            self.ended = True
            return self._numbered([response, self._event("continued", {"threadId": THREAD_ID})])
        if method is None:
            return self._numbered([response | {"success": False, "message": f"{command}: not after an exception"}])
        try:
            response["body"] = method(arguments)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - the user's expression may raise anything; `exit()` ends nothing
            text = "".join(traceback.format_exception_only(error)).strip()
            return self._numbered([response | {"success": False, "message": text}])
        return self._numbered([response, *self._events_after(command)])

    def _events_after(self, _command: str) -> list[Message]:
        return []

    def _event(self, event: str, body: Message) -> Message:
        return {"type": "event", "event": event, "body": body}

    def _numbered(self, messages: list[Message]) -> list[Message]:
        for message in messages:
            self._sent += 1
            message["seq"] = self._sent
        return messages

    def _on_initialize(self, _arguments: Message) -> Message:
        return {"supportsConfigurationDoneRequest": True, "supportsExceptionInfoRequest": True}

    def _on_attach(self, _arguments: Message) -> Message:
        return {}

    _on_configurationDone = _on_attach  # noqa: N815 - named by the protocol
    _on_setExceptionBreakpoints = _on_attach  # noqa: N815
    _on_setFunctionBreakpoints = _on_attach  # noqa: N815

    def _on_setBreakpoints(self, arguments: Message) -> Message:  # noqa: N802
        return {"breakpoints": [{"verified": False} for _ in arguments.get("breakpoints", [])]}

    def _on_threads(self, _arguments: Message) -> Message:
        return {"threads": [{"id": THREAD_ID, "name": threading.current_thread().name}]}

    def _on_stackTrace(self, _arguments: Message) -> Message:  # noqa: N802
        frames = [
            {
                "id": number,
                "name": label + getattr(frame.f_code, "co_qualname", frame.f_code.co_name),
                "line": line,
                "column": 1,
                "source": {"path": frame.f_code.co_filename},
            }
            for number, (frame, line, label) in enumerate(self._frames, 1)
        ]
        return {"stackFrames": frames, "totalFrames": len(frames)}

    def _on_scopes(self, arguments: Message) -> Message:
        reference = int(arguments["frameId"])
        return {"scopes": [{"name": "Locals", "variablesReference": reference, "expensive": False}]}

    def _on_variables(self, arguments: Message) -> Message:
        variables = []
        for name, value in list(self._frame(arguments["variablesReference"]).f_locals.items()):
            facts = describe(value)
            variables.append({"name": name, "value": facts["text"], "type": facts["type"], "variablesReference": 0})
        return {"variables": variables}

    def _on_evaluate(self, arguments: Message) -> Message:
        frame = self._frame(arguments.get("frameId") or 1)
        # Names of the frame must be visible inside comprehensions and lambdas too, which see globals only.
        scope = {**frame.f_globals, **frame.f_locals}
        text = str(arguments["expression"])
        code = _compiled(text)
        if code is not None:
            value = eval(code, scope)
        else:
            exec(compile(text, "<rldbg>", "exec"), scope)
            value = None
        sys.stdout.flush()
        return {"result": "" if value is None else repr(value), "type": type(value).__name__, "variablesReference": 0}

    def _frame(self, number: Any) -> FrameType:
        return self._frames[int(number) - 1][0]


class PostMortemAdapter(FramesAdapter):
    """The frames of one exception and of its causes."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(_frames(error))
        self.error = error

    def _events_after(self, command: str) -> list[Message]:
        if command == "attach":
            return [self._event("initialized", {})]
        if command == "configurationDone":
            kind = type(self.error).__name__
            body = {"reason": "exception", "threadId": THREAD_ID, "allThreadsStopped": True, "text": kind}
            return [self._event("stopped", body | {"description": "post-mortem"})]
        return []

    def _on_exceptionInfo(self, _arguments: Message) -> Message:  # noqa: N802
        return {
            "exceptionId": type(self.error).__name__,
            "description": str(self.error),
            "breakMode": "unhandled",
            "details": {"stackTrace": "".join(traceback.format_exception(self.error))},
        }


def _compiled(text: str) -> CodeType | None:
    try:
        return compile(text, "<rldbg>", "eval")
    except SyntaxError:
        return None


def exception_chain(error: BaseException) -> list[tuple[BaseException, str]]:
    """The exception and what led to it, as a traceback would print it: the parts of a group, then its cause or what was
    being handled. Cycles end."""
    chain: list[tuple[BaseException, str]] = []
    seen, waiting = set[int](), [(error, "raised")]
    while waiting and len(chain) < _CHAIN:
        last, relation = waiting.pop(0)
        if id(last) in seen:
            continue
        seen.add(id(last))
        chain.append((last, relation))
        # Groups came with Python 3.11. Parts that were never raised, or came from another process, have no frames.
        parts = getattr(last, "exceptions", ())
        links = [(part, "part") for part in (parts if isinstance(parts, tuple) else ()) if _was_raised(part)]
        if last.__cause__ is not None:
            links.append((last.__cause__, "cause"))
        elif last.__context__ is not None and not last.__suppress_context__:
            links.append((last.__context__, "context"))
        waiting = links + waiting
    return chain


def _was_raised(part: object) -> bool:
    return isinstance(part, BaseException) and part.__traceback__ is not None


def _frames(error: BaseException) -> list[tuple[FrameType, int, str]]:
    """Innermost first; the frames of the exception are followed by those of what led to it, each labelled with its
    type."""
    return [
        (frame, line, "" if relation == "raised" else f"[{type(each).__name__}] ")
        for each, relation in exception_chain(error)
        for frame, line in reversed(list(traceback.walk_tb(each.__traceback__)))
    ]
