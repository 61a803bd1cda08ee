"""An assistant's answer in parts: reasoning, text, and tool calls."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

PartKind = Literal["reasoning", "text", "call"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """`arguments` is JSON text, as the model wrote it or the same object written again."""

    id: str
    name: str
    arguments: str

    def message(self) -> dict[str, Any]:
        """The form in which chat completions write a call."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass(frozen=True, slots=True)
class AnswerPart:
    """Some of an answer; of a call always the whole."""

    kind: PartKind
    text: str = ""
    call: ToolCall | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    reasoning: str = ""
    text: str = ""
    calls: tuple[ToolCall, ...] = ()

    @classmethod
    def of_parts(cls, parts: Iterable[AnswerPart]) -> "Answer":
        kept = list(parts)
        texts = {kind: "".join(part.text for part in kept if part.kind == kind) for kind in ("reasoning", "text")}
        return cls(**texts, calls=tuple(part.call for part in kept if part.call is not None))

    @classmethod
    def of_message(cls, message: Mapping[str, Any]) -> "Answer":
        """An assistant's message in the form of chat completions."""
        calls = [
            ToolCall(str(call.get("id")), str(call["function"]["name"]), str(call["function"].get("arguments") or "{}"))
            for call in message.get("tool_calls") or ()
        ]
        reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
        return cls(str(reasoning), str(message.get("content") or ""), tuple(calls))

    def parts(self) -> list[AnswerPart]:
        texts = [AnswerPart("reasoning", self.reasoning), AnswerPart("text", self.text)]
        return [part for part in texts if part.text] + [AnswerPart("call", call=call) for call in self.calls]

    def message(self) -> dict[str, Any]:
        """The form of chat completions; without calls the content is a text, with calls it may be null."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text or (None if self.calls else "")}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["tool_calls"] = [call.message() for call in self.calls]
        return message
