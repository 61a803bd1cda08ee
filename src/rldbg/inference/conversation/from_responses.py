"""OpenAI's Responses as a conversation: instructions and input items become messages, function tools stay tools."""

from collections.abc import Mapping
from typing import Any

from rldbg.inference.conversation.messages import ChatMessage, Turns, text_of
from rldbg.inference.conversation.tools import ToolChoice, function, listed
from rldbg.inference.request_error import RequestError

_TEXT = ("input_text", "output_text", "text", "refusal")


def messages_of(instructions: Any, items: Any, before: list[ChatMessage]) -> list[ChatMessage]:
    """The conversation so far. `before` is what a stored response had; its instructions are not taken over."""
    turns = Turns()
    if instructions is not None and not isinstance(instructions, str):
        raise RequestError("instructions must be a string")
    if instructions:
        turns.say("system", instructions)
    turns.messages += [dict(message) for message in before]
    if isinstance(items, str):
        turns.say("user", items)
        return turns.messages
    if not isinstance(items, list) or not all(isinstance(item, Mapping) for item in items):
        raise RequestError("input must be a string or a list of items")
    for item in items:
        _add(turns, item)
    return turns.messages


def _add(turns: Turns, item: Mapping[str, Any]) -> None:
    kind = item.get("type", "message")
    if kind == "message":
        turns.say(str(item.get("role", "user")), text_of(item.get("content"), *_TEXT))
    elif kind == "function_call":
        turns.call(str(item.get("call_id")), str(item.get("name")), str(item.get("arguments") or "{}"))
    elif kind == "function_call_output":
        turns.result(str(item.get("call_id")), text_of(item.get("output"), *_TEXT))
    elif kind == "reasoning":
        text = text_of(item.get("content"), "reasoning_text") or text_of(item.get("summary"), "summary_text")
        turns.reason(text)
    else:
        raise RequestError(f"input items of type {kind!r:.60} are not supported")


def tools_of(tools: Any) -> list[dict[str, Any]]:
    for tool in listed(tools):
        if tool.get("type") != "function" or not isinstance(tool.get("name"), str):
            raise RequestError(f"tools of type {tool.get('type')!r:.60} are not supported; send functions with a name")
    return [function(tool["name"], tool.get("description"), tool.get("parameters")) for tool in listed(tools)]


def choice_of(value: Any) -> ToolChoice:
    """The tool choice of chat completions and Responses: a word, or the function to call."""
    if value in (None, "auto", "none", "required"):
        return ToolChoice(value or "auto")
    if isinstance(value, Mapping) and value.get("type") == "function":
        named = value.get("function", value)
        if isinstance(named, Mapping) and isinstance(named.get("name"), str):
            return ToolChoice("required", named["name"])
    raise RequestError("tool_choice must be auto, none, required, or the function to call")
