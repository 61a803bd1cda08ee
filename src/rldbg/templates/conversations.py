"""Conversations to try a template with: the standard ones, one of given roles, or the user's own."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rldbg.core import UsageError

TemplateMessage = Mapping[str, Any]

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a place.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["place"],
        },
    },
}
_ROLES = ("system", "user", "assistant", "tool")
_ARGUMENTS: Mapping[str, Any] = {"integer": 2, "number": 1.5, "boolean": True, "array": [], "object": {}, "null": None}
_SAID = {
    "system": "You are a careful assistant.",
    "user": "What is {n} + {n}?",
    "assistant": "It is {double}.",
    "tool": '{{"result": {n}}}',
}


@dataclass(frozen=True, slots=True)
class Conversation:
    name: str
    messages: tuple[TemplateMessage, ...]
    tools: tuple[Mapping[str, Any], ...] = ()

    @property
    def assistant_turns(self) -> list[int]:
        return [number for number, message in enumerate(self.messages) if message["role"] == "assistant"]


def standard_conversations() -> tuple[Conversation, ...]:
    """Plain turns, turns with reasoning, and turns with a tool call."""
    thinking: list[TemplateMessage] = [
        {"role": "user", "content": "What is 2 + 3?"},
        {"role": "assistant", "content": "<think>\nTwo and three make five.\n</think>\n\nIt is 5."},
        {"role": "user", "content": "And 4 + 4?"},
        {"role": "assistant", "content": "<think>\nTwice four is eight.\n</think>\n\nIt is 8."},
    ]
    return (
        conversation_of_roles(("system", "user", "assistant", "user", "assistant"), name="plain"),
        Conversation("thinking", tuple(thinking)),
        conversation_with_tools((WEATHER,)),
    )


def conversation_with_tools(tools: Sequence[Mapping[str, Any]]) -> Conversation:
    """The first tool is called, with an argument of each of its parameters."""
    known = tools[0].get("function", tools[0])
    properties = (known.get("parameters") or {}).get("properties") or {}
    arguments = {name: _ARGUMENTS.get(str(kind.get("type")), "Łódź") for name, kind in properties.items()}
    call = {"name": known["name"], "arguments": arguments}
    messages: list[TemplateMessage] = [
        {"role": "user", "content": "Will it rain in Łódź?"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "call00001", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": "call00001", "name": known["name"], "content": '{"rain": true}'},
        {"role": "assistant", "content": "Yes, take an umbrella."},
        {"role": "user", "content": "Thank you."},
        {"role": "assistant", "content": "You are welcome."},
    ]
    return Conversation("tools", tuple(messages), tuple(tools))


def _is_tool(item: object) -> bool:
    known = item.get("function", item) if isinstance(item, dict) else None
    return isinstance(known, dict) and "name" in known


def read_tools(file: Path) -> tuple[Mapping[str, Any], ...]:
    """A JSON file: a list of functions, as in the `tools` of a chat request."""
    hint = 'write [{"type": "function", "function": {"name": "...", "parameters": {...}}}]'
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the tools {file}: {error}", hint) from error
    if not isinstance(data, list) or not data or not all(_is_tool(item) for item in data):
        raise UsageError(f"{file} is not a list of tools with names", hint)
    return tuple(data)


def conversation_of_roles(roles: Sequence[str], *, name: str = "turns") -> Conversation:
    """A short conversation of these roles."""
    unknown = [role for role in roles if role not in _ROLES]
    if unknown:
        raise UsageError(f"{unknown[0]!r} is not a role", f"use {', '.join(_ROLES)}")
    if "assistant" not in roles:
        raise UsageError("without an assistant turn nothing is trained on", "--turns user,assistant,user,assistant")
    said = [_SAID[role].format(n=number, double=2 * number - 2) for number, role in enumerate(roles, 1)]
    return Conversation(name, tuple({"role": role, "content": text} for role, text in zip(roles, said, strict=True)))


def read_conversation(file: Path) -> Conversation:
    """A JSON file: a list of messages, or an object with `messages` and perhaps `tools`."""
    hint = 'write [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]'
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the conversation {file}: {error}", hint) from error
    body = data if isinstance(data, dict) else {"messages": data}
    messages, tools = body.get("messages"), body.get("tools") or []
    if not isinstance(messages, list) or not all(isinstance(item, dict) and "role" in item for item in messages):
        raise UsageError(f"{file} is not a list of messages", hint)
    if not isinstance(tools, list):
        raise UsageError(f"`tools` of {file} is not a list", hint)
    conversation = Conversation(file.stem, tuple(messages), tuple(tools))
    if not conversation.assistant_turns:
        raise UsageError(f"{file} has no assistant turn: nothing in it would be trained on", hint)
    return conversation
