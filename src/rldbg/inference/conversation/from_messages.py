"""Anthropic's Messages as a conversation: content blocks become messages, tools become functions."""

import json
from collections.abc import Mapping
from typing import Any

from rldbg.inference.conversation.messages import ChatMessage, Turns, text_of
from rldbg.inference.conversation.tools import AUTO, ToolChoice, function, listed
from rldbg.inference.request_error import RequestError


def messages_of(system: Any, messages: Any) -> list[ChatMessage]:
    turns = Turns()
    if system:
        turns.say("system", text_of(system, "text"))
    if not isinstance(messages, list) or not all(isinstance(item, Mapping) for item in messages) or not messages:
        raise RequestError("messages must be a list of objects with role and content")
    for message in messages:
        role, content = message.get("role"), message.get("content")
        if role not in ("user", "assistant", "system"):
            raise RequestError(f"a message has the role {role!r:.40}; it must be user or assistant")
        if content is not None and not isinstance(content, str | list):
            raise RequestError("content must be a string or a list of blocks")
        for block in [{"type": "text", "text": content}] if isinstance(content, str) else content or []:
            _add(turns, role, block)
    return turns.messages


def _add(turns: Turns, role: str, block: Any) -> None:
    kind = block.get("type") if isinstance(block, Mapping) else None
    if kind == "text":
        turns.say(role, str(block.get("text", "")))
    elif kind == "tool_use":
        turns.call(str(block.get("id")), str(block.get("name")), json.dumps(block.get("input") or {}))
    elif kind == "tool_result":
        turns.result(str(block.get("tool_use_id")), text_of(block.get("content"), "text"))
    elif kind == "thinking":
        turns.reason(str(block.get("thinking", "")))
    else:
        raise RequestError(f"content blocks of type {kind!r:.60} are not supported")


def tools_of(tools: Any) -> list[dict[str, Any]]:
    for tool in listed(tools):
        if tool.get("type") not in (None, "custom") or not isinstance(tool.get("name"), str):
            raise RequestError(
                f"tools of type {tool.get('type')!r:.60} are not supported; send custom ones with a name"
            )
    return [function(tool["name"], tool.get("description"), tool.get("input_schema")) for tool in listed(tools)]


def choice_of(value: Any) -> ToolChoice:
    kind = value.get("type") if isinstance(value, Mapping) else "auto" if value is None else None
    if kind == "auto":
        return AUTO
    if kind == "none":
        return ToolChoice("none")
    if kind == "any":
        return ToolChoice("required")
    if kind == "tool" and isinstance(value.get("name"), str):
        return ToolChoice("required", value["name"])
    raise RequestError("tool_choice must be an object of type auto, any, none, or tool with a name")
