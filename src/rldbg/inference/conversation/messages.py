"""Messages of a conversation in the form that chat templates take."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rldbg.inference.request_error import RequestError

ChatMessage = dict[str, Any]


def text_of(content: Any, *kinds: str) -> str:
    """The text of a message's content: parts of text are joined, anything else is refused."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError("the content of a message must be a string or a list of parts")
    for part in content:
        if not isinstance(part, Mapping) or part.get("type") not in kinds:
            kind = part.get("type") if isinstance(part, Mapping) else part
            raise RequestError(f"parts of type {kind!r:.60} are not supported in a message; send {' or '.join(kinds)}")
    return "".join(str(part.get("text") or part.get("refusal") or "") for part in content)


def for_template(messages: Sequence[Mapping[str, Any]]) -> list[ChatMessage]:
    """Texts as content, arguments of calls as objects, developers as the system, as templates expect them."""
    return [_plain(message) for message in messages]


def _plain(message: Mapping[str, Any]) -> ChatMessage:
    plain = dict(message) | {"content": text_of(message.get("content"), "text", "refusal")}
    if plain.get("role") == "developer":
        plain["role"] = "system"
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        plain["tool_calls"] = [_with_object(call) for call in calls]
    return plain


def _with_object(call: Any) -> Any:
    """A call whose arguments are an object: most templates would write JSON text as JSON once more."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError:
        # What an agent made of a broken call is its own text, and the template shows it.
        return call
    return dict(call) | {"function": dict(function) | {"arguments": arguments}}


def conversation_text(messages: Any) -> str:
    """One text for a conversation, the same whenever its messages are equal."""
    return json.dumps(messages, sort_keys=True, separators=(",", ":"))


class Turns:
    """Puts messages together from items that other protocols send one by one: an assistant's are one message."""

    def __init__(self) -> None:
        self.messages: list[ChatMessage] = []

    def say(self, role: str, text: str) -> None:
        if role == "assistant":
            own = self._own()
            own["content"] = (own["content"] or "") + text
        else:
            self.messages.append({"role": role, "content": text})

    def reason(self, text: str) -> None:
        own = self._own()
        own["reasoning_content"] = own.get("reasoning_content", "") + text

    def call(self, id: str, name: str, arguments: str) -> None:
        function = {"name": name, "arguments": arguments}
        self._own().setdefault("tool_calls", []).append({"id": id, "type": "function", "function": function})

    def result(self, id: str, text: str) -> None:
        self.messages.append({"role": "tool", "tool_call_id": id, "content": text})

    def _own(self) -> ChatMessage:
        """The assistant's message that is being put together."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append({"role": "assistant", "content": ""})
        return self.messages[-1]
