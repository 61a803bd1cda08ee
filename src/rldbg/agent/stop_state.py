"""What the next broker must know of a debug session whose broker was killed: stopped threads and pending stops.

The relay shows every message here as it passes. Messages of a killed broker may be lost on their way, the debuggee's
state is not: it is what its events say.
"""

import time
from typing import Any

from .framing import Message

_STEPS = frozenset({"next", "stepIn", "stepOut", "goto"})


class StopState:
    """The stops of one debug session, and the agent's announced stop that was not resumed yet."""

    def __init__(self) -> None:
        # With the time when each has stopped.
        self._stopped: dict[int, tuple[Message, float]] = {}
        # A step or a pause that was asked for and has not ended in a stop.
        self._pending = ""
        # To be restored if the debuggee refuses a resume.
        self._before: tuple[int, dict[int, tuple[Message, float]], tuple[Message, float] | None] | None = None
        self._announced: tuple[Message, float] | None = None

    def announce(self, facts: Message) -> None:
        """The agent has announced a stop in this session."""
        self._announced = (facts, time.monotonic())

    def asked(self, message: Message) -> None:
        """A request on its way to the debuggee."""
        command = message.get("command")
        if command == "continue" or command in _STEPS:
            self._before = (int(message.get("seq") or 0), self._stopped, self._announced)
            self._stopped, self._announced = {}, None
            self._pending = "step" if command in _STEPS else ""
        elif command == "pause":
            self._pending = "pause"

    def said(self, message: Message) -> None:
        """An answer or an event of the debuggee."""
        body = message.get("body") or {}
        if message.get("type") == "response":
            self._answered(message)
        elif message.get("event") == "stopped":
            self._stopped[int(body.get("threadId") or 0)] = (message, time.monotonic())
            self._pending = ""
        elif message.get("event") == "continued":
            self._stopped.clear()

    def _answered(self, message: Message) -> None:
        if self._before is None or message.get("request_seq") != self._before[0]:
            return
        if not message.get("success"):
            self._stopped, self._pending = self._before[1] | self._stopped, ""
            self._announced = self._announced or self._before[2]
        self._before = None

    @property
    def is_stopped(self) -> bool:
        return bool(self._stopped)

    def to_message(self) -> Message:
        now = time.monotonic()
        stopped = [message | {"elapsed_s": now - since} for message, since in self._stopped.values()]
        state: dict[str, Any] = {"stopped": stopped, "pending": self._pending}
        if self._announced is not None:
            facts, since = self._announced
            state["announced"] = facts | {"elapsed_s": now - since}
        return state
