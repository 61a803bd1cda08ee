"""Ray's legacy debugger, a pdb on a socket, used as a debug adapter: requests become pdb commands.

The broker holds it like any other session. What pdb on a socket cannot do (pause, breakpoints from outside) is refused.
"""

import asyncio
import contextlib
import re
from typing import Any

from rldbg.agent import Message, WireError
from rldbg.live.external_ray.injection import lending_expression

_PROMPT = "(Pdb) "
_FRAME = re.compile(r"^(?P<mark>[> ]) (?P<file>.+)\((?P<line>\d+)\)(?P<name>[^()]*)\(\)")
_STEPS = {"next": "n", "stepIn": "s", "stepOut": "r", "continue": "c"}
_FAILURE = re.compile(r"^\*\*\* (?P<text>.*)", re.MULTILINE)


class PdbStream:
    """Behaves like a framed stream: debug adapter messages in, debug adapter messages out."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._requests: asyncio.Queue[Message] = asyncio.Queue()
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue()
        self._depth = 0
        self._seq = 0
        self._working = asyncio.ensure_future(self._work())

    async def receive(self) -> Message:
        message = await self._messages.get()
        if message is None:
            raise WireError("the pdb session ended")
        return message

    def send(self, message: Message) -> None:
        self._requests.put_nowait(message)

    def close(self) -> None:
        self._working.cancel()
        self._writer.close()
        self._messages.put_nowait(None)

    async def _work(self) -> None:
        """Commands one after the other; pdb knows nothing else."""
        try:
            await self._read_prompt()
            await self._command(f"!{lending_expression()}")
            while True:
                await self._answer(await self._requests.get())
        except (OSError, WireError, asyncio.IncompleteReadError):
            self._messages.put_nowait(None)

    async def _answer(self, request: Message) -> None:
        command = str(request.get("command"))
        arguments = request.get("arguments") or {}
        response: Message = {"type": "response", "request_seq": request.get("seq"), "command": command, "success": True}
        if command in _STEPS:
            self._emit(response)
            await self._step(command)
            return
        try:
            response["body"] = await self._body(command, arguments)
        except ValueError as error:
            response |= {"success": False, "message": str(error)}
        self._emit(response)
        if command == "attach":
            self._event("initialized", {})
        elif command == "configurationDone":
            self._event("stopped", {"reason": "breakpoint", "threadId": 1, "allThreadsStopped": True})

    async def _body(self, command: str, arguments: Message) -> Message:
        if command == "stackTrace":
            return {"stackFrames": await self._frames()}
        if command == "evaluate":
            return {"result": await self._evaluate(str(arguments["expression"]), int(arguments.get("frameId") or 1))}
        if command == "threads":
            return {"threads": [{"id": 1, "name": "MainThread"}]}
        if command == "scopes":
            return {"scopes": [{"name": "Locals", "variablesReference": arguments["frameId"]}]}
        if command == "variables":
            names = await self._evaluate("' '.join(locals())", int(arguments["variablesReference"]))
            return {"variables": [{"name": name} for name in names.strip("'\"").split()]}
        if command == "setBreakpoints":
            return {"breakpoints": [{"verified": False} for _ in arguments.get("breakpoints") or []]}
        if command in ("initialize", "attach", "configurationDone", "setExceptionBreakpoints", "disconnect"):
            return {}
        raise ValueError(f"Ray's legacy debugger cannot {command}")

    async def _frames(self) -> list[dict[str, Any]]:
        """Innermost first; the frame's id is its distance from the innermost, plus one."""
        await self._select(0)
        rows = [match for line in (await self._command("w")).splitlines() if (match := _FRAME.match(line))]
        current = next((n for n, row in enumerate(rows) if row["mark"] == ">"), len(rows) - 1)
        return [
            {"id": number, "name": row["name"], "line": int(row["line"]), "source": {"path": row["file"]}}
            for number, row in enumerate(reversed(rows[: current + 1]), 1)
        ]

    async def _evaluate(self, expression: str, frame: int) -> str:
        await self._select(frame - 1)
        # One command is one line; the line break guards against comments, which an evaluation may do without.
        text = " ".join(expression.split("\n"))
        word = "p" if "_rldbg_values" in text or text.startswith("' '.join") else "!"
        answer = (await self._command(f"{word} {text}")).strip("\r\n")
        if failure := _FAILURE.match(answer):
            raise ValueError(failure["text"])
        return answer

    async def _select(self, depth: int) -> None:
        for _ in range(abs(depth - self._depth)):
            await self._command("u" if depth > self._depth else "d")
        self._depth = depth

    async def _step(self, command: str) -> None:
        self._depth = 0
        self._event("continued", {"threadId": 1})
        self._writer.write(f"{_STEPS[command]}\n".encode())
        await self._read_prompt()
        self._event("stopped", {"reason": "step", "threadId": 1, "allThreadsStopped": True})

    async def _command(self, text: str) -> str:
        self._writer.write(f"{text}\n".encode())
        return await self._read_prompt()

    async def _read_prompt(self) -> str:
        data = await self._reader.readuntil(_PROMPT.encode())
        return data.decode("utf-8", "replace").removesuffix(_PROMPT).replace("\r\n", "\n")

    def _event(self, event: str, body: Message) -> None:
        self._emit({"type": "event", "event": event, "body": body})

    def _emit(self, message: Message) -> None:
        self._seq += 1
        with contextlib.suppress(asyncio.QueueFull):
            self._messages.put_nowait(message | {"seq": self._seq})
